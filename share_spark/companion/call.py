"""A call that runs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from share_spark.companion.ledger import cell_value_of_list
from share_spark.companion.messages import Limits
from share_spark.companion.waiting import Waiting
from share_spark.delivery.judging import Judged
from share_spark.handlers.handler import Handler, Record
from share_spark.handlers.kinds import HandlerKind


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call that runs (``Stepping``). ``cell_value``: 0 once it has ended, as its place in the ledger may get another
    record; tasks that it has started may go on. ``until``: its time limit. ``is_over``: what it still does is
    ignored. ``estimates``: of its records, what a cost function has said; none if there is no function."""

    records: Sequence[Waiting]
    cell: memoryview
    cell_value: int
    began: float
    until: float
    limit_ms: int
    round_number: int
    is_over: bool = False
    estimates: Sequence[float] = ()
    task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, records: Sequence[Waiting], handler: Handler, limits: Limits) -> Call:
        """Return a call that begins now. Raises StateError: it cannot be noted which records it has."""
        now, limit_ms = time.monotonic(), handler.limit_ms(limits.timeout_ms)
        first = records[0]
        if handler.kind is HandlerKind.LIST:
            cell_value = cell_value_of_list([(one.block, one.position) for one in records])
        else:
            cell_value = first.block.cell_value(first.position)
        return cls(
            records=records,
            cell=first.block.cell,
            cell_value=cell_value,
            began=now,
            until=now + limit_ms / 1_000,
            limit_ms=limit_ms,
            round_number=limits.round_number,
        )

    def estimate(self, cost: Callable[[Record], float | Judged]) -> list[tuple[Waiting, Judged]]:
        """Ask what each record will cost. Leave out of the call, and return, those for which there is only a
        judgement."""
        self.cell[0] = self.cell_value
        try:
            found = [(one, cost(one.record)) for one in self.present]
        finally:
            self.cell[0] = 0
        known = [(one, said) for one, said in found if not isinstance(said, Judged)]
        self.records, self.estimates = [one for one, _ in known], [said for _, said in known]
        return [(one, said) for one, said in found if isinstance(said, Judged)]

    def cost(self, found: Iterable[Judged]) -> float:
        """Return what the call has cost: what its answers say, else what was estimated."""
        cost = 0.0
        for answer, estimate in zip(found, self.estimates or itertools.repeat(0.0), strict=False):
            cost += estimate if answer.cost is None else answer.cost
        return cost

    @property
    def present(self) -> Sequence[Waiting]:
        """The records that are of interest."""
        return [one for one in self.records if not one.handed.is_forgotten]
