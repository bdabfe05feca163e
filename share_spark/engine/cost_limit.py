"""A limit on what records cost, in units of the user's own (``handlers.costs``). Pure.

A cost is known after the call, so the bucket is charged twice: with the average for each record that is acquired, and
once it is answered with the difference. It may go below zero, and nothing is acquired until it is above again.

    100 units/s, average 40      units    in flight
    acquire                        100    2 records           most: 100 / 40
    delivered, both in flight       20    2, charged 80
    answered, cost 300            -200    -                   20 + 80 - 300
    two seconds later                0    -                   nothing until above 0
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from share_spark.engine.rate_limit import RateLimit

FIRST_RECORDS = 10
"""The most records that are in flight before the first one has told its cost."""

_REMEMBERED = 50
"""The records that the average goes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLimit:
    """A limit on units per second. ``bucket``: the units. ``per_record``: the average cost of a record, None until it
    is known. ``charged``: the units for the records ``in_flight``, by the average."""

    bucket: RateLimit = field(default_factory=RateLimit)
    per_record: float | None = None
    in_flight: int = 0
    charged: float = 0.0

    def at(self, now_ms: int, budget_ms: int, units_per_s: float) -> CostLimit:
        """Return the limit at ``now_ms`` with this setting, 0 for none, and with the units of the time since the last
        micro-batch."""
        if units_per_s == self.bucket.per_s == 0:
            return self
        return replace(self, bucket=self.bucket.at(now_ms, budget_ms).limited_to(units_per_s))

    def after(self, cost: float, entered: int, in_flight: int) -> CostLimit:
        """Return the limit after a delivery that has answered ``entered`` records, which have cost so much, and has so
        many in flight now."""
        if not self.bucket.per_s:
            return self
        average = self._average(cost, entered)
        charged = in_flight * (average or 0.0)
        bucket = self.bucket.after(cost + charged - self.charged)
        return CostLimit(bucket=bucket, per_record=average, in_flight=in_flight, charged=charged)

    def _average(self, cost: float, entered: int) -> float | None:
        if not entered:
            return self.per_record
        found = cost / entered
        before = found if self.per_record is None else self.per_record
        return before + (found - before) * entered / (entered + _REMEMBERED)

    def most_records(self, wanted: int) -> int:
        """Return how many of ``wanted`` may be acquired now."""
        if not self.bucket.per_s:
            return wanted
        if self.bucket.tokens <= 0:
            return 0
        if self.per_record is None:
            return max(0, min(wanted, FIRST_RECORDS - self.in_flight))
        if not self.per_record:
            return wanted
        return min(wanted, max(1, int(self.bucket.tokens / self.per_record)))
