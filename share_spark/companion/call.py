"""A call that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from share_spark.companion.waiting import Waiting


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call that runs (``Stepping``). ``cell_value``: 0 once it has ended, as its place in the ledger may get another
    record; tasks that it has started may go on. ``until``: its time limit. ``is_over``: what it still does is
    ignored."""

    records: Sequence[Waiting]
    cell: memoryview
    cell_value: int
    began: float
    until: float
    limit_ms: int
    round_number: int
    is_over: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def present(self) -> Sequence[Waiting]:
        """The records that are of interest."""
        return [one for one in self.records if not one.handed.is_forgotten]
