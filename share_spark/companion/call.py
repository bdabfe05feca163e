"""A call that runs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from share_spark.companion.judgement import Prepared
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
    ignored. ``prepared``: of its records, once that was done; none if there is nothing to do before a call."""

    records: Sequence[Waiting]
    cell: memoryview
    cell_value: int
    began: float
    until: float
    limit_ms: int
    round_number: int
    is_over: bool = False
    prepared: Sequence[Prepared] = ()
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

    def prepare(self, prepared: Callable[[Record], Prepared | Judged]) -> list[tuple[Waiting, Judged]]:
        """Decode the records, and ask what each will cost. Leave out of the call, and return, those for which there is
        only a judgement."""
        self.cell[0] = self.cell_value
        try:
            found = [(one, prepared(one.record)) for one in self.present]
        finally:
            self.cell[0] = 0
        known = [(one, said) for one, said in found if isinstance(said, Prepared)]
        self.records, self.prepared = [one for one, _ in known], [said for _, said in known]
        return [(one, said) for one, said in found if isinstance(said, Judged)]

    @property
    def argument(self) -> Any:
        """The argument for a handler of one record."""
        return self.prepared[0].argument if self.prepared else self.records[0].record

    @property
    def arguments(self) -> list[Any]:
        """The argument for a handler of a list."""
        if self.prepared:
            return [one.argument for one in self.prepared]
        return [one.record for one in self.records]

    def cost(self, found: Iterable[Judged]) -> float:
        """Return what the call has cost: what its answers say, else what was estimated."""
        cost = 0.0
        for answer, prepared in itertools.zip_longest(found, self.prepared):
            estimate = 0.0 if prepared is None else prepared.cost
            cost += estimate if answer.cost is None else answer.cost
        return cost

    @property
    def present(self) -> Sequence[Waiting]:
        """The records that are of interest."""
        return [one for one in self.records if not one.handed.is_forgotten]
