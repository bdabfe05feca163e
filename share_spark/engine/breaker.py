"""The circuit breaker of a group: where too many attempts fail, the service behind the handler is assumed to be down,
and only a few records are delivered now and then, until they succeed. Pure.

    closed   all that may be acquired is         too many of the attempts within the window have failed   ->  open
    open     ``probes`` records, each interval   fewer of them fail than that                             ->  closed

Without it an outage uses up the attempts of every record. A failed attempt is one that was released, by the handler or
because of an exception, or lost with its worker; a rejected record is one that the handler could judge. A new engine
begins with a closed breaker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from share_spark.model.config import GroupConfig

LEAST_ATTEMPTS = 10
"""The fewest attempts within the window that open it."""


class Attempts(NamedTuple):
    """The attempts of the delivery that was acquired at ``at_ms``."""

    at_ms: int
    total: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A circuit breaker. It opens at ``failure_rate``, a share of the attempts, 0: never. ``recent``: those in the
    window, or that opened it. ``probed_ms``: the time of the last probe, at first of opening; None while closed."""

    failure_rate: float = 0.0
    window_ms: int = 60_000
    probes: int = 10
    probe_interval_ms: int = 10_000
    recent: tuple[Attempts, ...] = ()
    probed_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether only probes may be acquired."""
        return self.probed_ms is not None

    def under(self, config: GroupConfig) -> Breaker:
        """Return the breaker under these settings. Without a failure rate it closes, and forgets its attempts."""
        return replace(
            self if config.breaker_failure_rate else Breaker(),
            failure_rate=config.breaker_failure_rate,
            window_ms=config.breaker_window_ms,
            probes=config.breaker_probes,
            probe_interval_ms=config.breaker_probe_interval_ms,
        )

    def most_records(self, now_ms: int, wanted: int) -> int:
        """Return how many of ``wanted`` may be acquired now."""
        if self.probed_ms is None:
            return wanted
        return min(wanted, self.probes) if now_ms - self.probed_ms >= self.probe_interval_ms else 0

    def after(self, found: Attempts) -> Breaker:
        """Return the breaker after a delivery."""
        if not self.failure_rate or not found.total:
            return self
        if self.is_open:
            is_over = not self._is_too_much(found.total, found.failed)
            return replace(self, recent=(), probed_ms=None) if is_over else replace(self, probed_ms=found.at_ms)
        recent = (*(one for one in self.recent if found.at_ms - one.at_ms < self.window_ms), found)
        total, failed = sum(one.total for one in recent), sum(one.failed for one in recent)
        opens = total >= LEAST_ATTEMPTS and self._is_too_much(total, failed)
        return replace(self, recent=recent, probed_ms=found.at_ms if opens else None)

    def _is_too_much(self, total: int, failed: int) -> bool:
        return failed >= self.failure_rate * total

    def __str__(self) -> str:
        """Return the reason for its state."""
        if not self.is_open:
            return "the circuit breaker is closed: records are delivered as before"
        total, failed = sum(one.total for one in self.recent), sum(one.failed for one in self.recent)
        return (
            f"the circuit breaker is open: {failed} of {total} attempts have failed; {self.probes} records are "
            f"delivered every {self.probe_interval_ms} ms, until fewer fail than {self.failure_rate:.0%}"
        )
