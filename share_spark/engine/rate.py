"""How many records a group may acquire in a micro-batch, so that a service behind its handler is not overrun. Pure.

A token bucket: each record takes a token, and time brings them back.

    time        0 s      1 s      2 s      2.1 s           12.1 s      limit 10 a second
    tokens      0        10       10       1               10
    acquired    0        0        10       1               10          an idle group keeps a second's worth

A micro-batch that took longer than a second has brought more, which may be taken at once: else slow micro-batches would
halve the rate. Tokens of a time longer than the budget of a delivery are never there at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_LEAST_MS = 1_000
"""Worth of this time may always be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """``records_per_s``: 0 for no limit. ``tokens``: as of ``at_ms``, below 0 after a piece that is never cut
    (``planning.Search``). An engine begins with none, so that engines that follow each other have one rate."""

    records_per_s: float = 0.0
    tokens: float = 0.0
    at_ms: int | None = None

    def at(self, now_ms: int, budget_ms: int) -> RateLimit:
        """With what the time since the last micro-batch has brought."""
        passed_ms = 0 if self.at_ms is None else now_ms - self.at_ms
        most_ms = max(_LEAST_MS, min(passed_ms, budget_ms))
        most = max(1.0, self.records_per_s * most_ms / 1_000)
        return replace(self, tokens=min(most, self.tokens + self.records_per_s * passed_ms / 1_000), at_ms=now_ms)

    def limited_to(self, records_per_s: float) -> RateLimit:
        """With this rate from now on. What was acquired without a limit is owed to nobody; of what was saved at a
        higher rate a second's worth is left."""
        if records_per_s == self.records_per_s:
            return self
        kept = min(self.tokens, max(1.0, records_per_s)) if self.records_per_s else 0.0
        return replace(self, records_per_s=records_per_s, tokens=kept)

    def after(self, records: int) -> RateLimit:
        """So many have been acquired."""
        return replace(self, tokens=self.tokens - records)

    def most_records(self, wanted: int) -> int:
        """How many of ``wanted`` may be acquired now."""
        return wanted if not self.records_per_s else max(0, min(wanted, int(self.tokens + _ROUNDING)))


_ROUNDING = 1e-6
"""Ten times a tenth is not quite one."""
