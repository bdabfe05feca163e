"""The conversion of a batch handler's answer to ``Answers``. Columns are checked as columns; a Python loop over
records runs only where the handler itself answered with a list of mixed types.

Pure: no Spark, no handler is called here. pandas is never imported (a Series is recognized by its methods), so that a
worker whose handler does not use it does not load it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from share_spark.handlers.acknowledgement import (
    ACK_BY_NAME,
    CHOICES,
    NO_DELAY,
    Ack,
    Acknowledgement,
    Answers,
    Codes,
    DelaysMs,
    ErrorIds,
    OneAnswer,
    not_an_answer,
    refuse_coroutine,
    single_answer,
)
from share_spark.handlers.costs import cost_of, with_column
from share_spark.handlers.error_texts import NO_FAULTS, error_text, shown
from share_spark.model.config import MOST_DELAY_MS
from share_spark.model.errors import HandlerError
from share_spark.model.requests import Loss


def batch_answers(answer: Any, rows: int, outputs: Collection[str] = ()) -> Answers:
    """Convert a batch handler's answer for ``rows`` records, without output columns.

    A table or frame with a column ``ack`` (optionally ``error``, ``delay_ms`` of released or throttled records, and
    ``cost`` of accepted ones), one answer per row as list, tuple or array of any kind, or one Ack for the whole batch.
    A row without a valid answer (a null, an unknown number or name) is released. Raises HandlerError: nothing, another
    length, no such column, a column of another type. ``outputs``: the declared output columns; one that is called
    ``delay_ms`` or ``cost`` is only that.
    """
    refuse_coroutine(answer)
    if answer is None:
        raise HandlerError("returned nothing: a batch handler returns one acknowledgement per row")
    if isinstance(answer, OneAnswer):
        code, error, delay_ms = single_answer(answer)
        found, cost = Answers.same(rows, code, error, delay_ms), cost_of(answer, code)
        return found if cost is None else replace(found, costs=np.full(rows, cost / rows))
    if (columns := table_columns(answer)) is not None:
        if "ack" not in columns:
            raise HandlerError(f"returned a table without a column ack (it has {', '.join(columns)})")
        hidden = {"delay_ms", "cost"}.intersection(outputs)
        names = [name for name in (*ANSWER_COLUMNS, "cost") if name in columns and name not in hidden]
        return column_answers({name: column_of(answer, name) for name in names}, rows)
    if isinstance(answer, list | tuple):
        return _list_answers(list(answer), rows)
    if not is_column(answer):
        raise HandlerError(f"returned {shown(answer)}, not one acknowledgement per row")
    return column_answers({"ack": answer}, rows)


def table_columns(answer: Any) -> list[str] | None:
    """Return the column names of an Arrow table or batch or a pandas frame; None if it is none of these."""
    if isinstance(answer, pa.Table | pa.RecordBatch):
        return list(answer.schema.names)
    if hasattr(answer, "columns") and hasattr(answer, "iloc"):
        return [str(name) for name in answer.columns]
    return None


def column_of(answer: Any, name: str) -> Any:
    """Return a column of a table that ``table_columns`` knows."""
    return answer.column(name) if isinstance(answer, pa.Table | pa.RecordBatch) else answer[name]


def is_column(answer: Any) -> bool:
    """Return whether it is an Arrow or NumPy array, or a pandas Series."""
    series = hasattr(answer, "iloc") and hasattr(answer, "array")
    return isinstance(answer, pa.Array | pa.ChunkedArray | np.ndarray) or series


ANSWER_COLUMNS = ("ack", "error", "delay_ms")
"""The columns of a table of answers beside ``cost``; only the first is required."""


def column_answers(columns: Mapping[str, Any], rows: int) -> Answers:
    """Convert those columns that are there: acknowledgements, error texts or nulls, delays or nulls, costs. Raises
    HandlerError."""
    for column in columns.values():
        _check_length(len(column), rows)
    typed = {name: _arrow_column(column) for name, column in columns.items()}
    answers = _without_costs(columns, typed, rows)
    return with_column(answers, columns["cost"], typed["cost"]) if "cost" in columns else answers


def _without_costs(columns: Mapping[str, Any], typed: Mapping[str, Any], rows: int) -> Answers:
    """Convert all but the costs. ``typed``: the columns as Arrow arrays, None for one whose objects have no common
    type. Loops only over rows that are wrong, unless there is such a column. Raises HandlerError."""
    if any(typed[name] is None for name in ANSWER_COLUMNS if name in typed):
        return _list_answers(_by_row(columns, rows), rows)
    codes, misfits = _column_codes(typed["ack"])
    no_errors: tuple[ErrorIds, tuple[str, ...]] = np.zeros(rows, np.int32), ()
    error_ids, texts = _column_errors(typed["error"], rows) if "error" in typed else no_errors
    answers = Answers(codes=codes, error_ids=np.where(codes == Ack.ACCEPT, 0, error_ids), texts=texts)
    if "delay_ms" in typed:
        delays_ms, wrong = _column_delays(typed["delay_ms"], codes)
        answers, misfits = answers.with_delays(delays_ms), wrong | misfits
    elif (codes == Loss.THROTTLED).any():
        answers = answers.with_delays(answers.every_delay_ms)
    return answers.with_misfits(misfits)


def _by_row(columns: Mapping[str, Any], rows: int) -> list[object]:
    acks, errors, delays = (
        [_not_nan(value) for value in columns[name]] if name in columns else [None] * rows for name in ANSWER_COLUMNS
    )
    return [
        ack if error is None and delay_ms is None else Acknowledgement(ack, error, delay_ms)
        for ack, error, delay_ms in zip(acks, errors, delays, strict=True)
    ]


def _not_nan(value: Any) -> Any:
    """Return None for NaN, which pandas has for missing values."""
    return None if type(value) is float and value != value else value


def _column_delays(column: Any, codes: Codes) -> tuple[DelaysMs, dict[int, str]]:
    """Return the delays of a column of whole numbers, null for none, and the errors of records that need one and
    whose delay is out of range. Raises HandlerError."""
    if pa.types.is_null(column.type):
        return np.full(len(codes), NO_DELAY, np.int64), {}
    if not pa.types.is_integer(column.type) and not _is_whole(column):
        raise HandlerError(f"returned a column delay_ms of type {column.type}, not whole numbers")
    found = column.fill_null(0).to_numpy(zero_copy_only=False)
    is_delay = (found >= 0) & (found <= MOST_DELAY_MS)
    wrong = np.flatnonzero(np.isin(codes, [Ack.RELEASE, Loss.THROTTLED]) & ~is_delay)
    texts = {int(at): f"answered with a delay_ms of {found[at]}, not 0 to 30 days" for at in wrong}
    is_asked = is_delay & column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_asked, found, NO_DELAY).astype(np.int64), texts


def _list_answers(answers: Sequence[object], rows: int) -> Answers:
    """Convert a list: as a column when all its elements are numbers or names, else one by one."""
    _check_length(len(answers), rows)
    if (numbers := _as_numbers(answers)) is not None:
        codes, misfits = _number_codes(numbers)
        return Answers(codes=codes, error_ids=np.zeros(rows, np.int32)).with_misfits(misfits)
    listed: list[int] = []
    errors: dict[int, str] = {}
    delays: dict[int, int] = {}
    costs: dict[int, float] = {}
    misfits = {}
    for position, answer in enumerate(answers):
        try:
            code, error, delay_ms = single_answer(answer)
            cost = cost_of(answer, code)
        except HandlerError as fault:
            code, error, delay_ms, cost = Ack.RELEASE, None, None, None
            misfits[position] = str(fault)
        listed.append(code)
        if error is not None:
            errors[position] = error
        if delay_ms is not None:
            delays[position] = delay_ms
        if cost is not None:
            costs[position] = cost
    return Answers.listed(listed, errors, delays, costs).with_misfits(misfits)


def _as_numbers(answers: Sequence[object]) -> npt.NDArray[np.int64] | None:
    """Return the answers as numbers; None if not all are numbers that an array can hold."""
    if not set(map(type, answers)) <= {Ack, int}:
        return None
    try:
        return np.array(answers, np.int64)
    except OverflowError:
        return None


_NO_ANSWER = "returned no acknowledgement (null)"


def _column_codes(column: Any) -> tuple[Codes, dict[int, str]]:
    """Return the codes of a column of numbers or names, and the errors of those that are none. Raises HandlerError."""
    if pa.types.is_null(column.type):
        return np.full(len(column), Ack.RELEASE, np.int8), dict.fromkeys(range(len(column)), _NO_ANSWER)
    if pa.types.is_integer(column.type):
        whole = column.fill_null(int(Ack.RELEASE)) if column.null_count else column
        codes, misfits = _number_codes(whole.to_numpy(zero_copy_only=False))
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        codes, misfits = _named_codes(column.fill_null(Ack.RELEASE.name))
    elif _is_whole(column):  # pandas converts integers with a null to floats
        codes, misfits = _number_codes(column.fill_null(float(Ack.RELEASE)).to_numpy())
    else:
        raise HandlerError(f"returned acknowledgements of type {column.type}, not {CHOICES}")
    if column.null_count:
        misfits |= dict.fromkeys(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist(), _NO_ANSWER)
    return codes, misfits


def _is_whole(column: Any) -> bool:
    if not pa.types.is_floating(column.type) or (len(column) and not column.null_count):
        return False
    return bool(pc.all(pc.equal(column, pc.floor(column)), min_count=0).as_py())


def _column_errors(column: Any, rows: int) -> tuple[ErrorIds, tuple[str, ...]]:
    """Return error ids and texts of a column of strings; null is no error. Raises HandlerError."""
    if pa.types.is_null(column.type):
        return np.zeros(rows, np.int32), ()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise HandlerError(f"returned a column error of type {column.type}, not string")
    encoded = column.dictionary_encode()
    ids = pc.fill_null(pc.add(encoded.indices.cast(pa.int32()), 1), 0)
    texts = tuple(error_text(text) for text in encoded.dictionary.to_pylist())
    return ids.to_numpy(zero_copy_only=False), texts


def _arrow_column(column: Any) -> Any:
    """Return any column as one Arrow array, dictionaries (pandas categories) decoded; None if its objects have no
    common type."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        try:
            column = pa.array(column, from_pandas=True)
        except NO_FAULTS:
            raise
        except BaseException:  # noqa: BLE001 - the user's code runs when its objects are looked at
            return None
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _named_codes(names: Any) -> tuple[Codes, dict[int, str]]:
    """Return the codes of a column of names; each different name is looked up once."""
    encoded = names.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    wrong = {at: not_an_answer(name) for at, name in enumerate(texts) if name.upper() not in ACK_BY_NAME}
    codes = np.array([ACK_BY_NAME.get(name.upper(), Ack.RELEASE) for name in texts], np.int8)
    positions: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    misfits = {int(row): wrong[int(positions[row])] for row in np.flatnonzero(np.isin(positions, list(wrong)))}
    return codes[positions], misfits


def _number_codes(numbers: npt.NDArray[Any]) -> tuple[Codes, dict[int, str]]:
    wrong = (numbers < Ack.ACCEPT) | (numbers > Ack.REJECT)
    misfits = {int(row): not_an_answer(numbers[row]) for row in np.flatnonzero(wrong)}
    codes = np.where(wrong, Ack.RELEASE, numbers) if misfits else numbers
    return codes.astype(np.int8, copy=False), misfits


def _check_length(length: int, rows: int) -> None:
    if length != rows:
        raise HandlerError(f"returned {length} acknowledgements for {rows} records")
