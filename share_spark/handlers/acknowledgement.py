"""What a handler says about a record, and how its many ways of saying so become two arrays of numbers.

A handler may answer with ``Ack`` members, their numbers, their names, a NumPy array, an Arrow array, a pandas Series, a
table with a column ``ack``. All of them end here as ``Answers``: one code per record and, for those that were not
accepted, the number of an error text. Columns are judged as columns; a Python loop over records runs only where the
handler itself answered with a list of mixed things.

Pure: no Spark, no handler is called here. pandas is never imported (a Series is known by its methods), so that a worker
whose handler does not use it does not load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from share_spark.model.errors import HandlerError

Codes = npt.NDArray[np.int8]
ErrorIds = npt.NDArray[np.int32]

ERROR_TEXT_LIMIT = 1000
"""Characters of an error that are kept. It is written to the state and into dead-letter headers."""


class Ack(IntEnum):
    """How a handler is done with a record. The numbers are the protocol's (``AcknowledgeType``).

    ``ACCEPT``: done. ``RELEASE``: try again later, up to the delivery limit. ``REJECT``: it can never succeed; it goes
    to the dead letters if there are any. ``Ack.release("why")`` and ``Ack.reject("why")`` keep a reason.
    """

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3

    @staticmethod
    def release(why: str) -> Acknowledgement:
        """A release whose reason is kept as the record's last error."""
        return Acknowledgement(Ack.RELEASE, why)

    @staticmethod
    def reject(why: str) -> Acknowledgement:
        """A rejection whose reason is kept as the record's last error."""
        return Acknowledgement(Ack.REJECT, why)


class Acknowledgement(NamedTuple):
    """An acknowledgement with the reason for it."""

    ack: Ack
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Acknowledgements of a batch: ``codes`` (1, 2 or 3) and ``error_ids`` have one element per record.

    An error id of 0 is no error, n is ``texts[n - 1]``. Accepted records have none. Codes below 0 are a ``Loss``.
    ``misfits``: how many are released because their answer broke the contract; the last text is of one of them.
    """

    codes: Codes
    error_ids: ErrorIds
    texts: tuple[str, ...] = ()
    misfits: int = 0

    @classmethod
    def concatenated(cls, parts: Sequence[Answers]) -> Answers:
        """One after another."""
        if len(parts) == 1:
            return parts[0]
        texts = tuple(text for part in parts for text in part.texts)
        before = np.cumsum([0, *(len(part.texts) for part in parts[:-1])])
        ids = [np.where(part.error_ids, part.error_ids + at, 0) for part, at in zip(parts, before, strict=True)]
        return cls(
            codes=np.concatenate([part.codes for part in parts]),
            error_ids=np.concatenate(ids).astype(np.int32),
            texts=texts,
            misfits=sum(part.misfits for part in parts),
        )

    def errors(self) -> dict[int, str]:
        """Errors by position."""
        return {int(at): self.texts[self.error_ids[at] - 1] for at in np.flatnonzero(self.error_ids)}

    def with_misfits(self, misfits: dict[int, str]) -> Answers:
        """These records are released instead, each for breaking the contract."""
        if not misfits:
            return self
        known = {text: number for number, text in enumerate(dict.fromkeys(map(error_text, misfits.values())), 1)}
        codes, ids = self.codes.copy(), self.error_ids.copy()
        for at, text in misfits.items():
            codes[at], ids[at] = Ack.RELEASE, len(self.texts) + known[error_text(text)]
        return Answers(codes=codes, error_ids=ids, texts=(*self.texts, *known), misfits=self.misfits + len(misfits))

    @classmethod
    def same(cls, rows: int, code: int, error: str | None = None) -> Answers:
        """One answer for all of ``rows`` records."""
        noted = error is not None and code != Ack.ACCEPT
        return cls(
            codes=np.full(rows, code, np.int8),
            error_ids=np.full(rows, int(noted), np.int32),
            texts=(error_text(error),) if noted and error is not None else (),
        )

    @classmethod
    def listed(cls, codes: Sequence[int], errors: dict[int, str]) -> Answers:
        """From a code per record and the errors by position in the batch."""
        texts: dict[str, int] = {}
        error_ids = np.zeros(len(codes), np.int32)
        for position, error in errors.items():
            if codes[position] != Ack.ACCEPT:
                error_ids[position] = texts.setdefault(error_text(error), len(texts) + 1)
        return cls(codes=np.array(codes, np.int8), error_ids=error_ids, texts=tuple(texts))


def error_text(error: str) -> str:
    """The error as it is kept: cut to ERROR_TEXT_LIMIT characters."""
    return error if len(error) <= ERROR_TEXT_LIMIT else error[: ERROR_TEXT_LIMIT - 3] + "..."


def exception_text(error: BaseException) -> str:
    """``ValueError: bad amount``, the form in which an exception of a handler is kept."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# ------------------------------------------------------------------------------ one record's answer

_BY_NAME = {ack.name: int(ack) for ack in Ack}
_CHOICES = "Ack.ACCEPT, Ack.RELEASE or Ack.REJECT"


def single_answer(value: object) -> tuple[int, str | None]:
    """(code, error) of one record's answer: an Ack, an Acknowledgement, its number or its name.

    Raises HandlerError for anything else; a bool is something else, as True would pass for an accept.
    """
    if type(value) is Ack:
        return int(value), None
    if isinstance(value, Acknowledgement):
        return single_answer(value.ack)[0], value.error
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= value <= 3:
        return int(value), None
    if isinstance(value, str) and value.upper() in _BY_NAME:
        return _BY_NAME[value.upper()], None
    raise HandlerError(_not_an_answer(value))


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, np.integer) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------- a batch of answers


def batch_answers(answer: Any, rows: int) -> Answers:
    """What a batch handler returned, for a batch of ``rows`` records, without output columns.

    A table or frame with a column ``ack`` (and perhaps ``error``), one answer per row as list, tuple or array of any
    kind, or one Ack for the whole batch. A row whose answer is none (a null, an unknown number or name) is released.
    Raises HandlerError: nothing, another length, no such column, a column of another type.
    """
    if answer is None:
        raise HandlerError("returned nothing: a batch handler returns one acknowledgement per row")
    if isinstance(answer, Acknowledgement | Ack):
        return Answers.same(rows, *single_answer(answer))
    if (columns := table_columns(answer)) is not None:
        if "ack" not in columns:
            raise HandlerError(f"returned a table without a column ack (it has {', '.join(columns)})")
        errors = column_of(answer, "error") if "error" in columns else None
        return column_answers(column_of(answer, "ack"), errors, rows)
    if isinstance(answer, list | tuple):
        return _list_answers(answer, rows)
    if not is_column(answer):
        raise HandlerError(f"returned {_shown(answer)}, not one acknowledgement per row")
    return column_answers(answer, None, rows)


def table_columns(answer: Any) -> list[str] | None:
    """Column names of an Arrow table or batch or a pandas frame; None if it is none of these."""
    if isinstance(answer, pa.Table | pa.RecordBatch):
        return list(answer.schema.names)
    if hasattr(answer, "columns") and hasattr(answer, "iloc"):
        return [str(name) for name in answer.columns]
    return None


def column_of(answer: Any, name: str) -> Any:
    """A column of what ``table_columns`` knows."""
    return answer.column(name) if isinstance(answer, pa.Table | pa.RecordBatch) else answer[name]


def is_column(answer: Any) -> bool:
    """An Arrow or NumPy array, or a pandas Series."""
    series = hasattr(answer, "iloc") and hasattr(answer, "array")
    return isinstance(answer, pa.Array | pa.ChunkedArray | np.ndarray) or series


def column_answers(acks: Any, errors: Any | None, rows: int) -> Answers:
    """A column of acknowledgements, with a column of error texts or nulls, judged without a loop over the rows that are
    right."""
    _check_length(len(acks), rows)
    codes, misfits = _column_codes(acks)
    if errors is None:
        return Answers(codes=codes, error_ids=np.zeros(rows, np.int32)).with_misfits(misfits)
    error_ids, texts = _column_errors(errors, rows)
    answers = Answers(codes=codes, error_ids=np.where(codes == Ack.ACCEPT, 0, error_ids), texts=texts)
    return answers.with_misfits(misfits)


def _list_answers(answers: Sequence[object], rows: int) -> Answers:
    """A list: as a column when all its elements are numbers or names, else one by one."""
    _check_length(len(answers), rows)
    if set(map(type, answers)) <= {Ack, int}:
        codes, misfits = _number_codes(np.array(answers, np.int64))
        return Answers(codes=codes, error_ids=np.zeros(rows, np.int32)).with_misfits(misfits)
    listed: list[int] = []
    errors: dict[int, str] = {}
    misfits = {}
    for position, answer in enumerate(answers):
        try:
            code, error = single_answer(answer)
        except HandlerError as fault:
            code, error = Ack.RELEASE, None
            misfits[position] = str(fault)
        listed.append(code)
        if error is not None:
            errors[position] = error
    return Answers.listed(listed, errors).with_misfits(misfits)


_NO_ANSWER = "returned no acknowledgement (null)"


def _column_codes(acks: Any) -> tuple[Codes, dict[int, str]]:
    """Codes of a column of numbers or names, and what is wrong with those that are none. Raises HandlerError."""
    column = _arrow_column(acks, "ack")
    if pa.types.is_null(column.type):
        return np.full(len(column), Ack.RELEASE, np.int8), dict.fromkeys(range(len(column)), _NO_ANSWER)
    if pa.types.is_integer(column.type):
        codes, misfits = _number_codes(column.fill_null(int(Ack.RELEASE)).to_numpy(zero_copy_only=False))
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        codes, misfits = _named_codes(column.fill_null(Ack.RELEASE.name))
    elif _is_whole(column):  # pandas makes floats of integers with a null among them
        codes, misfits = _number_codes(column.cast(pa.int64()).fill_null(int(Ack.RELEASE)).to_numpy())
    else:
        raise HandlerError(f"returned acknowledgements of type {column.type}, not {_CHOICES}")
    if column.null_count:
        misfits |= dict.fromkeys(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist(), _NO_ANSWER)
    return codes, misfits


def _is_whole(column: Any) -> bool:
    if not pa.types.is_floating(column.type) or (len(column) and not column.null_count):
        return False
    return bool(pc.all(pc.equal(column, pc.floor(column)), min_count=0).as_py())


def _column_errors(errors: Any, rows: int) -> tuple[ErrorIds, tuple[str, ...]]:
    """Error ids and texts of a column of strings; null is no error. Raises HandlerError."""
    _check_length(len(errors), rows)
    column = _arrow_column(errors, "error")
    if pa.types.is_null(column.type):
        return np.zeros(rows, np.int32), ()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise HandlerError(f"returned a column error of type {column.type}, not string")
    encoded = column.dictionary_encode()
    ids = pc.fill_null(pc.add(encoded.indices.cast(pa.int32()), 1), 0)
    texts = tuple(error_text(text) for text in encoded.dictionary.to_pylist())
    return ids.to_numpy(zero_copy_only=False), texts


def _arrow_column(column: Any, name: str) -> Any:
    """Any column as one Arrow array, dictionaries (pandas categories) decoded."""
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if not isinstance(column, pa.Array):
            column = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as fault:
        raise HandlerError(f"returned a column {name} of mixed types: {fault}") from None
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _named_codes(names: Any) -> tuple[Codes, dict[int, str]]:
    """Codes of a column of names: each different name is looked up once."""
    encoded = names.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    wrong = {at: _not_an_answer(name) for at, name in enumerate(texts) if name.upper() not in _BY_NAME}
    codes = np.array([_BY_NAME.get(name.upper(), Ack.RELEASE) for name in texts], np.int8)
    positions: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    misfits = {int(row): wrong[int(positions[row])] for row in np.flatnonzero(np.isin(positions, list(wrong)))}
    return codes[positions], misfits


def _number_codes(numbers: npt.NDArray[Any]) -> tuple[Codes, dict[int, str]]:
    wrong = (numbers < Ack.ACCEPT) | (numbers > Ack.REJECT)
    misfits = {int(row): _not_an_answer(numbers[row]) for row in np.flatnonzero(wrong)}
    codes = np.where(wrong, Ack.RELEASE, numbers) if misfits else numbers
    return codes.astype(np.int8, copy=False), misfits


def _not_an_answer(value: object) -> str:
    return f"answered {_shown(value)}, which is not {_CHOICES}"


def _check_length(length: int, rows: int) -> None:
    if length != rows:
        raise HandlerError(f"returned {length} acknowledgements for {rows} records")
