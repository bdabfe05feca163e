"""The rate limit of a group: a token bucket. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

_LEAST_MS = 1_000
"""The time whose records may always be saved up, in milliseconds."""

_ROUNDING = 1e-6
"""Room for rounding: ten times a tenth is not quite one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A limit on acquired records, or on their units of cost, per second, 0 for no limit. ``tokens``: as of ``at_ms``;
    below 0 after a piece that is never cut (``planning.Search``), or that has cost more than was expected. An engine
    begins with none, so that successive engines share one rate."""

    per_s: float = 0.0
    tokens: float = 0.0
    at_ms: int | None = None

    def at(self, now_ms: int, budget_ms: int) -> RateLimit:
        """Return the limit at ``now_ms``, with the tokens of the time since the last micro-batch. Twice at one time is
        once."""
        if now_ms == self.at_ms:
            return self
        passed_ms = 0 if self.at_ms is None else now_ms - self.at_ms
        most_ms = max(_LEAST_MS, min(passed_ms, budget_ms))
        most = max(1.0, self.per_s * most_ms / 1_000)
        return replace(self, tokens=min(most, self.tokens + self.per_s * passed_ms / 1_000), at_ms=now_ms)

    def limited_to(self, per_s: float) -> RateLimit:
        """Return the limit with this rate from now on. What was acquired without a limit is not counted; of the tokens
        saved at a higher rate, those of one second are kept."""
        if per_s == self.per_s:
            return self
        kept = min(self.tokens, max(1.0, per_s)) if self.per_s else 0.0
        return replace(self, per_s=per_s, tokens=kept)

    def after(self, used: float) -> RateLimit:
        """Return the limit after so many records have been acquired, or units used."""
        return replace(self, tokens=self.tokens - used)

    def most_records(self, wanted: int) -> int:
        """Return how many of ``wanted`` may be acquired now."""
        return wanted if not self.per_s else max(0, min(wanted, int(self.tokens + _ROUNDING)))
