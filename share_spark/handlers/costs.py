"""The costs of records, in units of the user's own: tokens of a model, or money.

    Ack.accept(cost=812)          the answer says what the record has cost
    a column cost, beside ack     so does a batch handler, of each record that it accepts
    process(handler, cost=fn)     fn(record) says before the call what the service will charge, also if that fails; it
                                  is valid where the answer says nothing

A throttled call costs nothing, as the service has refused it. A record is released if its cost is no number of 0 or
more; if that, or an exception, is what the cost function has given, the handler is not called with the record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from share_spark.handlers.acknowledgement import (
    NO_COST,
    Acceptance,
    Ack,
    Answers,
    Costs,
    exact_int,
    refuse_coroutine,
)
from share_spark.handlers.error_texts import NO_FAULTS, exception_text, shown
from share_spark.model.errors import HandlerError
from share_spark.model.requests import Loss

if TYPE_CHECKING:
    from share_spark.handlers.handler import Record

CostFunction = Callable[["Record"], float]


class CostError(HandlerError):
    """The cost function of a handler has failed for a record."""


def cost_of(value: object, code: int) -> float | None:
    """Return what an answer with this code says that its record has cost, None if it says nothing. Raises HandlerError:
    that is no cost."""
    if code == Loss.THROTTLED:
        return 0.0
    if not isinstance(value, Acceptance):
        return None
    found = _number(value.cost)
    if found is None:
        raise HandlerError(_wrong_cost(value.cost))
    return found


def estimate(cost: CostFunction, record: Record) -> float:
    """Return what the cost function says of a record. Raises CostError, and NO_FAULTS."""
    try:
        said = cost(record)
        refuse_coroutine(said)
    except NO_FAULTS:
        raise
    except BaseException as fault:  # noqa: BLE001 - the user's code may raise anything
        raise CostError(f"the cost function failed: {exception_text(fault)}") from None
    found = _number(said)
    if found is None:
        raise CostError(f"the cost function returned {shown(said)}, not a number of 0 or more")
    return found


def estimates(cost: CostFunction, records: Iterable[Record]) -> tuple[Costs, dict[int, str]]:
    """Return what the cost function says of each record, and by position the errors where it fails. Raises
    NO_FAULTS."""
    found, faults = [], {}
    for position, record in enumerate(records):
        try:
            found.append(estimate(cost, record))
        except CostError as fault:
            found.append(NO_COST)
            faults[position] = str(fault)
    return np.array(found, np.float64), faults


def with_column(answers: Answers, column: Any, typed: pa.Array[Any] | None) -> Answers:
    """Return the answers with the costs of a column. ``typed``: the same as an Arrow array, None if its objects have no
    common type. An accepted record whose cost is none is released. Raises HandlerError: a column of another type."""
    values = [*column] if typed is None else typed.to_pylist()
    if typed is not None and not _has_numbers(typed):
        raise HandlerError(f"returned a column cost of type {typed.type}, not numbers")
    found = np.array([NO_COST if (cost := _number(value)) is None else cost for value in values], np.float64)
    is_accepted = answers.codes == Ack.ACCEPT
    wrong = {int(at): _wrong_cost(values[at]) for at in np.flatnonzero(is_accepted & np.isnan(found))}
    return replace(answers, costs=np.where(is_accepted, found, NO_COST)).with_misfits(wrong)


def _has_numbers(column: pa.Array[Any]) -> bool:
    kind = column.type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)


def _number(value: object) -> float | None:
    """Return a number of 0 or more, ignoring methods that a subclass overrides; None for anything else, and for a
    bool."""
    try:
        if isinstance(value, float | np.floating):
            found = float.__float__(value) if isinstance(value, float) else float(value)
        else:
            whole = exact_int(value)
            found = math.nan if whole is None else float(whole)
    except NO_FAULTS:
        raise
    except BaseException:  # noqa: BLE001 - too large for a float, or the user's code runs when its object is looked at
        return None
    return found if 0 <= found < math.inf else None


def _wrong_cost(value: object) -> str:
    return f"accepted with a cost of {shown(value)}, not a number of 0 or more"
