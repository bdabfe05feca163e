"""How many records an engine may acquire in its next micro-batch: what handlers are likely to be done with in time
(``planning.Pace``), what the rate of the group allows (``rate``), and what its failures allow (``breaker``)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from share_spark.engine.answers import attempts_in
from share_spark.engine.breaker import Breaker
from share_spark.engine.planning import Pace
from share_spark.engine.ports import AcknowledgedSpans, Delivered
from share_spark.engine.rate import RateLimit
from share_spark.model.config import GroupConfig

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
