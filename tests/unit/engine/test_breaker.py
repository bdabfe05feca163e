"""The circuit breaker of a group: when it opens, what it lets through, when it closes."""

from __future__ import annotations

import logging

import pytest

from share_spark.engine.breaker import LEAST_ATTEMPTS, Attempts, Breaker
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, InMemoryGroup
from tests.twins.memory_delivery import Answer

BREAKER = Breaker(failure_rate=0.5, window_ms=1_000, probes=3, probe_interval_ms=100)


def after(*attempts: tuple[int, int, int], breaker: Breaker = BREAKER) -> Breaker:
    for one in attempts:
        breaker = breaker.after(Attempts(*one))
    return breaker


@pytest.mark.parametrize(
    ("attempts", "is_open"),
    [
        ([(0, 20, 9)], False),
        ([(0, 20, 10)], True),
        ([(0, LEAST_ATTEMPTS - 1, LEAST_ATTEMPTS - 1)], False),
        ([(0, 5, 5), (999, 5, 0)], True),  # within one window
        ([(0, 5, 5), (1_000, 10, 0)], False),
        ([(0, 0, 0)], False),
    ],
)
def test_too_many_failures_within_the_window_open_it(attempts: list[tuple[int, int, int]], is_open: bool) -> None:
    assert after(*attempts).is_open is is_open


def test_without_a_rate_it_is_never_open() -> None:
    assert not after((0, 1_000, 1_000), breaker=Breaker()).is_open


def test_while_it_is_open_there_are_probes_each_interval() -> None:
    opened = after((0, 20, 20))
    assert [opened.most_records(now_ms, 50) for now_ms in (0, 99, 100, 5_000)] == [0, 0, 3, 3]
    assert opened.most_records(100, 2) == 2
    failed = after((100, 3, 2), breaker=opened)
    assert [failed.most_records(now_ms, 50) for now_ms in (199, 200)] == [0, 3]


def test_probes_that_succeed_close_it_and_what_was_before_is_forgotten() -> None:
    closed = after((0, 20, 20), (100, 3, 1))
    assert not closed.is_open
    assert closed.most_records(101, 50) == 50
    assert not after((102, 20, 9), breaker=closed).is_open


class Service:
    """What a handler calls: down until it is repaired."""

    def __init__(self) -> None:
        self.is_up, self.calls = False, 0

    def handle(self, *_: object) -> Answer:
        self.calls += 1
        return ACCEPT if self.is_up else RELEASE


def guarded(service: Service) -> InMemoryGroup:
    return InMemoryGroup(
        handler=service.handle,
        delivery__breaker__failure__rate=0.5,
        delivery__breaker__probes=2,
        delivery__breaker__probe__interval=1_000,
    )


def test_an_outage_does_not_use_up_the_attempts_of_all_records(caplog: pytest.LogCaptureFixture) -> None:
    service = Service()
    world = guarded(service)
    world.produce(100)
    engine = world.engine(available_now=True)
    with caplog.at_level(logging.INFO, "share_spark"):
        for _ in range(30):
            engine.run()
            world.clock.advance(100)
        assert service.calls == 100 + 2 * 2
        service.is_up = True
        engine.run_until_done(step_ms=100)
    assert max(count for _, _, count in world.calls) == 4, "of the first two records, which were the probes"
    assert [record.message.split(":")[0] for record in caplog.records if "breaker" in record.message] == [
        "the circuit breaker is open",
        "the circuit breaker is closed",
    ]
    assert "100 of 100 attempts have failed; 2 records are delivered every 1000 ms" in caplog.text
    assert world.window() == "100-100"


def test_rejected_records_do_not_open_it() -> None:
    world = InMemoryGroup(handler=lambda *_: REJECT, delivery__breaker__failure__rate=0.1)
    world.produce(50)
    engine = world.engine()
    engine.run()
    world.produce(50)
    assert engine.run().acquired == 50


def test_while_it_is_open_nothing_is_written_between_the_probes() -> None:
    world = guarded(Service())
    world.produce(20)
    engine = world.engine()
    engine.run()
    engine.run()
    version = world.state_log.version
    world.clock.advance(500)
    assert engine.run().idle
    assert world.state_log.version == version
