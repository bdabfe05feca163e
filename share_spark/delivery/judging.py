"""The judgement on what a handler of one record returns: the answer of the record, or a break of the contract; and the
judgement on the handler, if nothing that it returns is an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from share_spark.delivery.ledger import STATUS_OF, CallStatus
from share_spark.handlers.acknowledgement import Ack, single_answer
from share_spark.handlers.costs import cost_of
from share_spark.handlers.handler import Handler
from share_spark.handlers.output_schema import Row, rows_of_answer
from share_spark.model.errors import HandlerError

_ALL_MISFIT = 20
"""The fewest first deliveries that show a handler at fault, if all records that came break the contract. Redelivered
records do not count: a delivery may have only the bad records of a good handler."""


class Judged(NamedTuple):
    """The answer of a record. ``rows``: its output rows, none unless it is accepted. ``status``: the one to note.
    ``cost``: as the answer says, None if it says nothing."""

    code: int
    error: str | None
    delay_ms: int | None
    rows: list[Row]
    status: int
    cost: float | None = None


def judged(answer: Any, names: Mapping[str, None] | None) -> Judged:
    """Judge the return value for a record. ``names``: those of the output columns, None if there is no output schema.
    Raises HandlerError for a value that is no answer."""
    if type(answer) is not tuple:
        code, error, delay_ms = single_answer(answer)
        return Judged(code, error, delay_ms, [], STATUS_OF[code], cost_of(answer, code))
    if names is None:
        raise HandlerError("returned (acknowledgement, rows) but no output schema is declared")
    if len(answer) != 2:
        raise HandlerError(f"returned a tuple of {len(answer)}, not (acknowledgement, rows)")
    code, error, delay_ms = single_answer(Ack.ACCEPT if answer[0] is None else answer[0])
    rows = rows_of_answer(answer[1], names)
    if code == Ack.ACCEPT:
        status = CallStatus.ACCEPTED_WITH_ROWS if rows else CallStatus.ACCEPTED
        return Judged(code, error, delay_ms, rows, status, cost_of(answer[0], code))
    return Judged(code, error, delay_ms, [], STATUS_OF[code], cost_of(answer[0], code))


@dataclass(slots=True, kw_only=True)
class Contract:
    """The record of how a handler keeps its contract. ``entered``: records; ``first_times``: those of them on their
    first delivery. ``misfits``: the number of records that broke the contract; ``misfit``: the text for the last of
    them."""

    entered: int = 0
    first_times: int = 0
    misfits: int = 0
    misfit: str = ""

    def note_misfit(self, text: str, records: int = 1) -> None:
        self.misfits += records
        self.misfit = text

    @property
    def all_misfit(self) -> bool:
        """Whether many records were handled, and none of them by the contract."""
        return self.first_times >= _ALL_MISFIT and self.misfits == self.entered

    def check(self, handler: Handler) -> None:
        """Raise HandlerError if the handler, and not a record, is at fault."""
        if self.all_misfit:
            raise HandlerError(f"handler {handler.name} broke its contract on each record: {self.misfit}")
