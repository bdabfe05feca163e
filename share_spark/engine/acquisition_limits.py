"""How many records an engine may acquire in its next micro-batch: what handlers are likely to be done with in time
(``planning.Pace``), what the rate of the group allows (``RateLimit``), and what its failures allow (``breaker``)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from share_spark.engine.answers import attempts_in
from share_spark.engine.breaker import Breaker
from share_spark.engine.planning import Pace
from share_spark.engine.ports import AcknowledgedSpans, Delivered
from share_spark.model.config import GroupConfig

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


_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class AcquisitionLimits:
    """Of one engine; it remembers what came of its deliveries."""

    pace: Pace = field(default_factory=Pace)
    _rate: RateLimit = field(default_factory=RateLimit)
    _breaker: Breaker = field(default_factory=Breaker)

    def most_records(self, config: GroupConfig, now_ms: int) -> int:
        """For the micro-batch of this time, by the settings that count in it."""
        budget_ms = config.delivery_budget_ms
        self._rate = self._rate.at(now_ms, budget_ms).limited_to(config.rate_limit)
        self._breaker = self._breaker.under(config)
        in_time = self.pace.most_records(config.max_records_per_trigger, budget_ms)
        return self._breaker.most_records(now_ms, self._rate.most_records(in_time))

    @property
    def breaker(self) -> str:
        """Why the circuit breaker is open; empty while it is closed."""
        return str(self._breaker) if self._breaker.is_open else ""

    def acquired(self, records: int) -> None:
        """So many have been."""
        self._rate = self._rate.after(records)

    def delivered(self, delivered: Delivered, answers: AcknowledgedSpans, now_ms: int, *, in_turn: bool) -> None:
        """What came of the delivery. The pace of records that run ``in_turn`` says nothing of others."""
        if not in_turn:
            self.pace = self.pace.after(delivered.entered, delivered.busy_s)
        if self._breaker.failure_rate:
            before, self._breaker = self._breaker, self._breaker.after(attempts_in(answers, now_ms))
            if self._breaker.is_open != before.is_open:
                _log.warning("%s", self._breaker)
