"""Throttled records in an engine: uncounted, delayed, and rejected in the end."""

from __future__ import annotations

import pytest

from share_spark.engine.attempts import ErrorRun
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.throttles import MOST_RANGES, Throttles
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss, RetryDelay
from tests.support.answers import answered
from tests.support.engine_world import ACCEPT, RELEASE, Death, InMemoryGroup, Interruption
from tests.support.window_forms import ALWAYS, NEVER, columns_from
from tests.twins.memory import Moment
from tests.twins.memory_delivery import Answer, RecordHandler

KEY, AT = SharePartitionKey("billing", "id", 0), TopicPartition("orders", 0)
THROTTLED, REJECT = Loss.THROTTLED, AcknowledgeType.REJECT
HOUR_MS = 3_600_000
TOO_LONG = "throttled for longer than 1 h (delivery.throttle.max.age)"


def said(*rows: tuple[int, int, int], text: str = "") -> dict[SharePartitionKey, AcknowledgedSpan]:
    waiting = [(first, last) for first, last, answer in rows if answer == THROTTLED]
    errors = [ErrorRun(first, last, text) for first, last in waiting] if text else []
    return {KEY: AcknowledgedSpan(AT, answered(rows), errors, [RetryDelay(*at, 500) for at in waiting])}


def bounded(
    throttles: Throttles, now_ms: int, *rows: tuple[int, int, int], text: str = ""
) -> tuple[list[tuple[int, ...]], list[ErrorRun], list[RetryDelay]]:
    span = throttles.bounded(said(*rows, text=text), now_ms, HOUR_MS)[KEY]
    return [tuple(one) for one in span.ranges], list(span.errors), list(span.delays)


@pytest.mark.parametrize("columns_at", [ALWAYS, NEVER])
def test_what_is_throttled_for_too_long_is_rejected(columns_at: int) -> None:
    with columns_from(columns_at):
        throttles = Throttles()
        bounded(throttles, 0, (3, 5, THROTTLED))
        assert bounded(throttles, HOUR_MS, (3, 9, THROTTLED))[0] == [(3, 9, THROTTLED)]
        found = bounded(throttles, HOUR_MS + 1, (0, 1, 1), (2, 4, THROTTLED), (5, 5, THROTTLED), (6, 7, 2), text="busy")
    ranges, errors, delays = found
    assert ranges == [(0, 1, 1), (2, 2, THROTTLED), (3, 5, REJECT), (6, 7, 2)]
    assert errors[0] == (2, 2, "busy")
    assert {(first, last, text) for first, last, text in errors[1:]} <= {
        (first, last, f"{TOO_LONG}: busy") for first, last in ((3, 4), (5, 5), (3, 5))
    }
    assert errors[1].first == 3
    assert errors[-1].last == 5
    assert delays == [(2, 2, 500)]


def test_an_error_without_a_text_says_why() -> None:
    throttles = Throttles()
    bounded(throttles, 0, (3, 3, THROTTLED))
    assert bounded(throttles, HOUR_MS + 1, (3, 3, THROTTLED)) == ([(3, 3, REJECT)], [(3, 3, TOO_LONG)], [])


@pytest.mark.parametrize(
    ("between", "is_rejected"),
    [
        ((3, 3, Loss.NOT_ENTERED), True),
        ((4, 4, ACCEPT), True),
        ((3, 3, RELEASE), False),
        ((3, 3, Loss.FINISHED), False),
        ((3, 3, ACCEPT), False),
    ],
)
def test_a_throttle_is_forgotten_with_another_answer(between: tuple[int, int, int], is_rejected: bool) -> None:
    throttles = Throttles()
    bounded(throttles, 0, (3, 3, THROTTLED))
    bounded(throttles, 10, between)
    assert bounded(throttles, HOUR_MS + 5, (3, 3, THROTTLED))[0] == [(3, 3, REJECT if is_rejected else THROTTLED)]


def test_what_is_rejected_or_forgotten_is_not_remembered() -> None:
    throttles = Throttles()
    bounded(throttles, 0, (3, 3, THROTTLED))
    bounded(throttles, 2 * HOUR_MS, (3, 3, THROTTLED))
    assert throttles.ranges == {}
    bounded(throttles, 2 * HOUR_MS, (3, 3, THROTTLED))
    throttles.forget()
    assert throttles.ranges == {}


def test_an_engine_remembers_so_many_ranges_and_no_more() -> None:
    throttles = Throttles()
    rows = [(2 * number, 2 * number, int(THROTTLED)) for number in range(MOST_RANGES + 1)]
    bounded(throttles, 0, *rows)
    assert throttles.ranges == {}
    bounded(throttles, 0, *rows[:-1])
    assert len(throttles.ranges[KEY]) == MOST_RANGES


# ---------------------------------------------------------------------------------------------- in an engine


def throttled(times: int, delay_ms: int = 5_000, *, offset: int = 0) -> RecordHandler:
    """Asks to wait, so many times, with the record at ``offset``."""
    left = [times]

    def handler(_topic: str, _partition: int, at: int, _count: int) -> Answer:
        if at != offset or not left[0]:
            return ACCEPT
        left[0] -= 1
        return THROTTLED, "429", delay_ms

    return handler


@pytest.mark.usefixtures("window_form")
def test_a_throttled_record_is_delivered_after_its_delay_as_if_for_the_first_time() -> None:
    world = InMemoryGroup(handler=throttled(10, offset=1), share__delivery__count__limit=2)
    world.produce(3)
    progress = world.engine(available_now=True).run_until_done(step_ms=2_500)
    assert world.calls == [(0, 0, 1), (0, 1, 1), (0, 2, 1), *[(0, 1, 1)] * 10]
    assert [sum(getattr(one, name) for one in progress) for name in ("throttled", "accepted", "released")] == [10, 3, 0]
    assert sum(one.not_entered + one.archived for one in progress) == 0
    assert progress[0].errors == {"429": 1}
    assert world.dead_letters.letters == []


@pytest.mark.usefixtures("window_form")
def test_it_waits_from_the_answer_on_and_the_policy_has_no_say() -> None:
    world = InMemoryGroup(
        handler=throttled(1, 700),
        share__record__redelivery__backoff__policy="fixed",
        share__record__redelivery__backoff__ms=60_000,
    )
    world.produce(1)
    engine = world.engine()
    engine.run()
    world.clock.advance(10_000)
    assert engine.run().throttled == 1
    assert engine.next_available_ms == world.clock() + 700
    assert world.window() == "0-1: 0-0 V0"
    world.clock.advance(699)
    assert engine.run().idle
    world.clock.advance(1)
    assert engine.run().acquired == 1


def test_a_record_that_is_always_throttled_becomes_a_dead_letter_in_the_end() -> None:
    world = InMemoryGroup(handler=throttled(10**6, 60_000), delivery__throttle__max__age="1h")
    world.produce(2)
    world.engine(available_now=True).run_until_done(step_ms=60_000)
    (letter,) = world.dead_letters.letters
    assert letter[1:] == (0, 0, 1, "rejected", f"{TOO_LONG}: 429")
    assert world.deliveries[0, 0] == 32, "every other minute: a delay begins with the commit of its answer"


def test_the_next_engine_takes_over_what_was_throttled() -> None:
    """Its answer was in the ledger only: the delivery is not counted, and the delay begins again."""
    world = InMemoryGroup(handler=throttled(1, 700))
    world.produce(1)
    first = world.engine(interrupt=Interruption(Moment.BEFORE_APPEND, Death(), 2))
    first.run()
    with pytest.raises(Death):
        first.run()
    second = world.engine()
    assert second.run().throttled == 1
    assert second.next_available_ms == world.clock() + 700
    world.clock.advance(700)
    second.run()
    assert world.calls == [(0, 0, 1), (0, 0, 1)]


def test_throttled_records_neither_open_the_breaker_nor_slow_down_the_pace() -> None:
    world = InMemoryGroup(handler=lambda *_: (THROTTLED, "429", 0), delivery__breaker__failure__rate=0.1)
    world.produce(200)
    engine = world.engine()
    engine.run()
    assert engine.engine.look().breaker == ""
    assert engine.engine._limits.pace.records_per_s is None
    assert engine.run().acquired == 200


def test_a_throttled_record_holds_back_its_key_for_its_delay() -> None:
    world = InMemoryGroup(handler=throttled(1, 700), delivery__order="key")
    world.produce_keys("aab")
    engine = world.engine()
    engine.run()
    found = engine.run()
    assert (found.throttled, found.not_entered, found.accepted, found.acquired) == (1, 1, 1, 0)
    world.clock.advance(700)
    engine.run()
    assert world.calls == [(0, 0, 1), (0, 2, 1), (0, 0, 1), (0, 1, 1)]
