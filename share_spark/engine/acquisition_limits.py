"""The number of records that an engine may acquire in its next micro-batch. It depends on the pace of the handlers
(``Pace``), the rate and the costs of the group (``rate_limit``, ``cost_limit``), and its failures (``breaker``)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from share_spark.engine.answers import attempts_in, throttled_in
from share_spark.engine.breaker import Breaker
from share_spark.engine.client_asks import limited, records_asked
from share_spark.engine.cost_limit import CostLimit
from share_spark.engine.delivery_port import AcknowledgedSpans, Delivered
from share_spark.engine.planning import PlanInputs, share_out
from share_spark.engine.rate_limit import RateLimit
from share_spark.model.config import GroupConfig

FIRST_RECORDS = 1_000_000
"""The most records that are acquired before the first measurement: records that are given back were read in vain."""

_ENOUGH_RECORDS, _ENOUGH_S = 100, 1.0
"""The least records and time of a measurement that is used: the first call imports, connects, compiles."""

_USED = 0.8
"""The share of the budget that is planned for: workers do not all get the same number of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The rate of the handlers. ``records_per_s``: of all workers together; None until it has been measured."""

    records_per_s: float | None = None

    def after(self, entered: int, busy_s: float) -> Pace:
        """Return the pace after a delivery of ``entered`` records that took the busiest worker ``busy_s`` seconds. A
        slower rate is taken over at once, a faster one by half: to acquire too much costs more than too little."""
        if not entered or (entered < _ENOUGH_RECORDS and busy_s < _ENOUGH_S):
            return self
        found = entered / max(busy_s, 1e-6)
        before = self.records_per_s
        return Pace(records_per_s=found if before is None else min(found, (before + found) / 2))

    def most_records(self, max_records: int, budget_ms: int) -> int:
        """Return the limit for the next micro-batch."""
        if self.records_per_s is None:
            return min(max_records, FIRST_RECORDS)
        return max(1, min(max_records, int(self.records_per_s * budget_ms / 1_000 * _USED)))


_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class AcquisitionLimits:
    """The limits of one engine; they follow the results of its deliveries."""

    pace: Pace = field(default_factory=Pace)
    _rate: RateLimit = field(default_factory=RateLimit)
    _costs: CostLimit = field(default_factory=CostLimit)
    _breaker: Breaker = field(default_factory=Breaker)
    _turn: int = 0

    def most_records(self, config: GroupConfig, now_ms: int) -> int:
        """Return the limit for the micro-batch at this time, by the settings that are valid in it."""
        budget_ms = config.delivery_budget_ms
        self._rate = self._rate.at(now_ms, budget_ms).limited_to(config.rate_limit)
        self._costs = self._costs.at(now_ms, budget_ms, config.cost_limit)
        self._breaker = self._breaker.under(config)
        in_time = self.pace.most_records(config.max_records_per_trigger, budget_ms)
        return self._breaker.most_records(now_ms, self._costs.most_records(self._rate.most_records(in_time)))

    def shared(self, inputs: PlanInputs, most: int, config: GroupConfig) -> tuple[PlanInputs, int]:
        """Divide what the rate of the group allows among its clients and its handlers, which may acquire ``most``.
        Return the inputs with what clients may acquire, and what is left for handlers."""
        self._rate = self._rate.at(inputs.now_ms, config.delivery_budget_ms).limited_to(config.rate_limit)
        wanted = records_asked(inputs.asked)
        if not config.rate_limit or not wanted:
            return inputs, most
        self._turn += 1
        room = self._rate.most_records(wanted + most)
        demands = {"clients": min(wanted, room), "handlers": min(most, room)}
        order = sorted(demands, reverse=self._turn % 2 == 0)  # whoever comes first has the odd record
        shares = dict(zip(order, share_out([demands[one] for one in order], room), strict=True))
        return replace(inputs, asked=limited(inputs.asked, shares["clients"], self._turn)), shares["handlers"]

    @property
    def breaker(self) -> str:
        """The reason why the circuit breaker is open; empty while it is closed."""
        return str(self._breaker) if self._breaker.is_open else ""

    def acquired(self, records: int) -> None:
        """Note that so many records have been acquired."""
        self._rate = self._rate.after(records)

    def delivered(self, delivered: Delivered, answers: AcknowledgedSpans, now_ms: int, *, in_turn: bool) -> None:
        """Take in the result of a delivery. Records that run ``in_turn`` do not change the pace. Throttled ones are not
        worked off: the pace is then that of the service, however fast it refuses."""
        worked_off = max(delivered.entered - throttled_in(answers.values()), 0)
        self._costs = self._costs.after(delivered.cost, worked_off, delivered.in_flight or 0)
        if not in_turn:
            self.pace = self.pace.after(worked_off, delivered.busy_s)
        if self._breaker.failure_rate:
            before, self._breaker = self._breaker, self._breaker.after(attempts_in(answers, now_ms))
            if self._breaker.is_open != before.is_open:
                _log.warning("%s", self._breaker)
