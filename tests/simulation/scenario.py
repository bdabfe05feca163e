"""What a seed chooses before the play begins: sizes, limits, how bad the weather is, what handlers do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from share_spark.model.config import GroupConfig


class Behaviour(NamedTuple):
    """What the handler does with a record while its delivery count is at most ``times``; after that it accepts."""

    kind: str
    times: int = 99


ACCEPTS = Behaviour("accept")
_CALM = (
    Behaviour("release", 1),
    Behaviour("release", 3),
    Behaviour("release"),
    Behaviour("raise", 1),
    Behaviour("raise"),
    Behaviour("reject"),
    Behaviour("reject", 1),
    Behaviour("break contract", 1),
    Behaviour("break contract"),
    Behaviour("hang", 1),
    Behaviour("hang"),
)
_DEADLY = (
    Behaviour("kill worker", 1),
    Behaviour("kill worker"),
    Behaviour("kill engine", 1),
    Behaviour("kill engine"),
)


_MANY, _LATE = 0.01, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Rates are per point (a moment before or after an effect), or per record for behaviours.

    ``machine_rate``: how many of the deaths take the machine along, and its ledgers. ``has_batches``: the handler takes
    several records at once. ``slow_ms``: what a call takes. ``is_supervised``: an engine that ends by a fault is
    started again at once. ``truncation_rate``: of the log, among what else may happen in a turn. ``compaction_weight``:
    of a compaction that begins, likewise. ``targetless_rate``: how many engines have no dead-letter target.
    ``asks_delays``: handlers say when they want to have a record again. ``pause_weight``: of an operator who pauses or
    resumes something, among what else may happen in a turn. ``setting_weight``: of one who changes a setting, likewise.
    ``different_keys``: of the records of a partition. ``most_throttles``: by a service, of each record
    before anything else. ``is_late``: calls outlast deliveries. ``outlive_rate``: how often workers outlive
    their engine, if all answers come with the delivery. ``most_clients``: outside members at a time.
    ``has_handlers``: there are others than these.
    """

    config: GroupConfig
    partitions: tuple[int, ...]
    steps: int
    has_sink: bool
    death_rate: float
    sleep_rate: float
    refusal_rate: float
    odd_rate: float
    deadly_rate: float
    most_engines: int
    skewed_clocks: bool
    burst: int
    least_ranges: int
    machine_rate: float
    has_batches: bool
    slow_ms: int
    is_supervised: bool
    truncation_rate: float
    compaction_weight: float
    targetless_rate: float
    asks_delays: bool = False
    pause_weight: float = 0.0
    setting_weight: float = 0.0
    different_keys: int = 1
    most_throttles: int = 0
    is_late: bool = False
    outlive_rate: float = 0.0
    most_clients: int = 0
    has_handlers: bool = True

    def asked_ms(self, number: int) -> int | None:
        """The delay that a handler asks for with one of its releases."""
        return (None, 0, 500, 20_000)[number % 4] if self.asks_delays else None

    def behaviour(self, rng: Random) -> Behaviour:
        """What becomes of one more record."""
        chance = rng.random()
        if chance < self.deadly_rate:
            return rng.choice(_DEADLY)
        return rng.choice(_CALM) if chance < self.deadly_rate + self.odd_rate else ACCEPTS


def draw(rng: Random) -> Scenario:
    """A quarter of all scenarios have no deaths, a quarter no sleepers, and so on: faults hide each other."""
    found = Scenario(
        config=_config(rng),
        partitions=_partitions(rng),
        steps=rng.choice([20, 50, 100, 150]),
        has_sink=rng.random() < 0.6,
        death_rate=rng.choice([0.0, 0.005, 0.02, 0.06]),
        sleep_rate=rng.choice([0.0, 0.01, 0.04, 0.1]),
        refusal_rate=rng.choice([0.0, 0.005, 0.02, 0.06]),
        odd_rate=rng.choice([0.0, 0.1, 0.4]),
        deadly_rate=rng.choice([0.0, 0.0, 0.01, 0.04]),
        most_engines=rng.choice([1, 2, 2, 3, 4]),
        skewed_clocks=rng.random() < 0.3,
        burst=rng.choice([3, 10, 40]),
        least_ranges=rng.choice([2, 10, 1_000_000]),
        machine_rate=rng.choice([0.0, 0.0, 0.0, 0.3, 1.0]),
        has_batches=rng.random() < 0.3,
        slow_ms=rng.choice([0, 0, 0, 5, 50]),
        is_supervised=rng.random() < 0.5,
        truncation_rate=rng.choice([0.0, 0.0, 0.3, 1.0]),
        compaction_weight=rng.choice([0.0, 0.0, 0.1, 0.5]),
        targetless_rate=rng.choice([0.0, 0.0, 0.3]),
    )
    return _with_flow(found, Random(f"{found.steps} {found.burst} {rng.getstate()[1][:3]}"))


def _with_flow(found: Scenario, rng: Random) -> Scenario:
    """In half of the scenarios released records are not delivered again at once, in some operators pause, or a rate is
    kept. Drawn by themselves, so that the plays of all others stay what they are."""
    config = replace(
        found.config,
        backoff_policy=rng.choice(["none", "none", "none", "fixed", "exponential"]),
        backoff_ms=rng.choice([1, 700, 5_000]),
        backoff_max_ms=rng.choice([2_000, 20_000]),
        backoff_jitter=rng.choice([0.0, 0.3, 1.0]),
        rate_limit=rng.choice([0.0] * 6 + [5.0]),
    )
    found = replace(found, config=config, asks_delays=rng.random() < 0.2, pause_weight=rng.choice([0.0] * 4 + [0.5]))
    breaker = replace(config, breaker_failure_rate=rng.choice([0.1, 0.5]), breaker_probes=2)
    found = replace(found, config=breaker) if rng.random() < 0.1 else found
    found = replace(found, setting_weight=0.5) if rng.random() < 0.2 else found
    by_key = replace(found.config, delivery_order="key")
    found = replace(found, config=by_key, different_keys=rng.choice([1, 2, 6])) if rng.random() < 0.3 else found
    found = replace(found, most_throttles=rng.choice([0, 0, 0, 3]))
    in_flight = replace(found.config, max_in_flight=rng.choice([1, 2, 3, 5, 16, 40]))
    found = replace(found, config=in_flight, is_late=rng.random() < _LATE)
    return replace(found, outlive_rate=rng.choice([0.5, 0.5, 0.0, 1.0, 0.0, 0.0]))


def with_clients(found: Scenario, seed: int) -> Scenario:
    """The same group with outside members. Drawn by themselves, so that the plays without them stay what they are."""
    rng = Random(f"clients of {seed}")
    found = replace(found, steps=3 * found.steps, most_clients=rng.choice([1, 2, 3, 5]))
    unordered = replace(found.config, delivery_order="none")  # an order by key is refused where clients may come
    return replace(found, config=unordered, has_handlers=rng.random() < 0.7)


def another_setting(config: GroupConfig, rng: Random, *, is_late: bool) -> GroupConfig:
    """``config`` with one setting as an operator may change it beside a running engine."""
    changes: list[dict[str, Any]] = [
        {"max_delivery_count": rng.randint(2, 5)},
        {"lock_duration_ms": rng.choice([1_000, 10_000, 30_000])},
        {"max_record_locks": rng.choice([2, 5, 20, 100])},
        {"max_records_per_trigger": rng.choice([1, 10, 500])},
        {"backoff_policy": rng.choice(["none", "fixed", "exponential"])},
        {"rate_limit": rng.choice([0.0, 5.0, 50.0])},
        {"breaker_failure_rate": rng.choice([0.0, 0.5])},
        {"delivery_budget_ms": rng.choice([100, 10_000])},
        *([{"max_in_flight": rng.choice([1, 3, 16])}] if is_late else []),
    ]
    return replace(config, **rng.choice(changes))


def unhindered(config: GroupConfig) -> GroupConfig:
    """Without a circuit breaker, which most of the handlers here would keep open."""
    return replace(config, breaker_failure_rate=0.0)


def _partitions(rng: Random) -> tuple[int, ...]:
    """Of each topic. Seldom many."""
    if rng.random() < _MANY:
        return (rng.randint(20, 200),)
    return tuple(rng.randint(1, 3) for _ in range(rng.choice([1, 1, 2])))


def _config(rng: Random) -> GroupConfig:
    """Windows and segments smaller than a user may set them, so that they fill and roll within a play."""
    parsed = GroupConfig.parse(
        {
            "share.auto.offset.reset": rng.choice(["earliest"] * 6 + ["latest", "by_duration:20s"]),
            "share.delivery.count.limit": rng.randint(2, 5),
            "share.record.lock.duration.ms": rng.choice([1_000, 10_000, 30_000]),
            "delivery.budget.ms": rng.choice([100, 1_000, 10_000]),
            "delivery.throttle.max.age": "30d",
            "max.records.per.trigger": rng.choice([1, 3, 10, 50, 500]),
            "share.coordinator.snapshot.update.records.per.snapshot": rng.choice([1, 2, 3, 7, 500]),
        }
    )
    return replace(parsed, max_record_locks=rng.choice([2, 5, 20, 100]))
