"""How many records one micro-batch may acquire, so that its handlers are done within the budget of time. Pure.

The rate is measured while handlers run. One that is fast is not held back by it; after a slow one hardly anything has
to be given back.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_RECORDS = 1_000_000
"""The most that is acquired before anything has been measured: what is given back has been read for nothing."""

_ENOUGH_RECORDS, _ENOUGH_S = 100, 1.0
"""A measurement of fewer records, in less time, is not used: the first call imports, connects, compiles."""

_USED = 0.8
"""Share of the budget that is planned for: workers do not all get the same number of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``records_per_s``: of all workers together; None until it has been measured."""

    records_per_s: float | None = None

    def after(self, entered: int, busy_s: float) -> Pace:
        """After a delivery of ``entered`` records that kept the busiest worker for ``busy_s`` seconds. A slower rate
        is taken over at once, a faster one by half: to acquire too much costs more than to acquire too little."""
        if not entered or (entered < _ENOUGH_RECORDS and busy_s < _ENOUGH_S):
            return self
        found = entered / max(busy_s, 1e-6)
        before = self.records_per_s
        return Pace(records_per_s=found if before is None else min(found, (before + found) / 2))

    def most_records(self, max_records: int, budget_ms: int) -> int:
        """For the next micro-batch."""
        if self.records_per_s is None:
            return min(max_records, FIRST_RECORDS)
        return max(1, min(max_records, int(self.records_per_s * budget_ms / 1_000 * _USED)))
