"""What a handler says about a record, and how its many ways of saying so become two arrays of
numbers.

A handler may answer with ``Ack`` members, their numbers, their names, a NumPy array, an Arrow
array, a pandas Series, a table with a column ``ack``. All of them end here as ``Answers``: one code
per record and, for those that were not accepted, the number of an error text. Columns are judged as
columns; a Python loop over records runs only where the handler itself answered with a list of mixed
things.

Pure: no Spark, no handler is called here. pandas is never imported (a Series is known by its
methods), so that a worker whose handler does not use it does not load it.
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

    ``ACCEPT``: done. ``RELEASE``: try again later, up to the delivery limit. ``REJECT``: it can
    never succeed; it goes to the dead letters if there are any. ``Ack.release("why")`` and
    ``Ack.reject("why")`` keep a reason.
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
    """Acknowledgements of a batch: ``codes`` (1, 2 or 3) and ``error_ids`` have one element per
    record.

    An error id of 0 is no error, n is ``texts[n - 1]``. Accepted records have none.
    """

    codes: Codes
    error_ids: ErrorIds
    texts: tuple[str, ...] = ()

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

    Raises HandlerError for anything else; a bool is something else, as True would pass for an
    accept.
    """
    if type(value) is Ack:
        return int(value), None
    if isinstance(value, Acknowledgement):
        return single_answer(value.ack)[0], value.error
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= value <= 3:
        return int(value), None
    if isinstance(value, str) and value.upper() in _BY_NAME:
        return _BY_NAME[value.upper()], None
    raise HandlerError(f"answered {_shown(value)}, which is not {_CHOICES}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------- a batch of answers


def batch_answers(answer: Any, rows: int) -> Answers:
    """What a batch handler returned, for a batch of ``rows`` records, without output columns.

    A table or frame with a column ``ack`` (and perhaps ``error``), one answer per row as list,
    tuple or array of any kind, or one Ack for the whole batch. Raises HandlerError: nothing,
    another length, no such column, not an answer.
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
    """Column names of an Arrow table or batch or a pandas frame; None if it is no such thing."""
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
    """A column of acknowledgements, with a column of error texts or nulls, judged without a loop
    over the rows."""
    codes = _column_codes(acks, rows)
    if errors is None:
        return Answers(codes=codes, error_ids=np.zeros(rows, np.int32))
    error_ids, texts = _column_errors(errors, rows)
    return Answers(codes=codes, error_ids=np.where(codes == Ack.ACCEPT, 0, error_ids), texts=texts)


def _list_answers(answers: Sequence[object], rows: int) -> Answers:
    """A list: as a column when all its elements are numbers or names, else one by one."""
    _check_length(len(answers), rows)
    kinds = set(map(type, answers))
    if kinds <= {Ack, int}:
        return Answers(codes=_checked(np.array(answers, np.int64)), error_ids=np.zeros(rows, np.int32))
    codes, errors = [], {}
    for position, answer in enumerate(answers):
        code, error = single_answer(answer)
        codes.append(code)
        if error is not None:
            errors[position] = error
    return Answers.listed(codes, errors)


def _column_codes(acks: Any, rows: int) -> Codes:
    """Codes of a column of numbers or names. Raises HandlerError."""
    _check_length(len(acks), rows)
    column = _arrow_column(acks, "ack")
    if column.null_count:
        raise HandlerError("returned no acknowledgement (null) for some of the rows")
    if pa.types.is_integer(column.type):
        return _checked(column.to_numpy(zero_copy_only=False))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _named_codes(column)
    if not rows:
        return np.zeros(0, np.int8)
    raise HandlerError(f"returned acknowledgements of type {column.type}, not {_CHOICES}")


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


def _named_codes(names: Any) -> Codes:
    """Codes of a column of names: each different name is looked up once."""
    encoded = names.dictionary_encode()
    codes = [single_answer(name)[0] for name in encoded.dictionary.to_pylist()]
    positions: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    return np.array(codes, np.int8)[positions]


def _checked(codes: npt.NDArray[Any]) -> Codes:
    """Numbers as codes. Raises HandlerError with the first that is none."""
    wrong = (codes < Ack.ACCEPT) | (codes > Ack.REJECT)
    if wrong.any():
        position = int(wrong.argmax())
        raise HandlerError(f"answered {codes[position]} in row {position}, which is not {_CHOICES}")
    return codes.astype(np.int8, copy=False)


def _check_length(length: int, rows: int) -> None:
    if length != rows:
        raise HandlerError(f"returned {length} acknowledgements for {rows} records")
