"""An outage of the brokers does not end an engine: it commits what it knows, acquires nothing, and goes on later."""

from __future__ import annotations

import logging

import pytest

from share_spark.engine.delivery_port import AcquiredSpan, Delivered, DeliveryLimits
from share_spark.engine.outage import Outage
from share_spark.model.errors import SinkError, TopicUnreachableError
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, EngineLife, InMemoryGroup
from tests.twins.memory import InMemoryTopicLog
from tests.twins.memory_delivery import InMemoryDelivery
from tests.twins.memory_output import InMemoryDeadLetters

pytestmark = pytest.mark.usefixtures("window_form")


class Brokers:
    """They take 15 s to give no answer, while they are down."""

    def __init__(self, world: InMemoryGroup, patched: pytest.MonkeyPatch, *names: str) -> None:
        """``names``: of what they do not answer."""
        self.are_down, self.asked = False, 0
        self.world = world
        for name in names or ("log_ends", "offsets_at"):
            patched.setattr(InMemoryTopicLog, name, self._asking(getattr(InMemoryTopicLog, name)))

    def _asking(self, answer):  # type: ignore[no-untyped-def]
        def ask(*given: object) -> object:
            self.asked += 1
            self.refuse()
            return answer(*given)

        return ask

    def refuse(self) -> None:
        if self.are_down:
            self.world.clock.advance(15_000)
            raise TopicUnreachableError("Kafka at b:9092 gave no answer within 15 s")


def test_what_was_handled_is_committed_and_nothing_is_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InMemoryGroup()
    brokers = Brokers(world, monkeypatch)
    world.produce(5)
    engine = world.engine()
    engine.run()
    world.produce(5)
    brokers.are_down = True
    assert engine.run().accepted == 5
    assert engine.run().idle
    assert world.window() == "5-5"
    brokers.are_down = False
    assert [engine.run().acquired for _ in range(2)] == [5, 0]
    assert world.window() == "10-10"
    assert set(world.deliveries.values()) == {1}


def test_the_log_and_the_look_say_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Not each try: at first, after half a minute, and then with growing distance."""
    world = InMemoryGroup()
    brokers = Brokers(world, monkeypatch)
    engine = world.engine()
    brokers.are_down = True
    with caplog.at_level(logging.WARNING, "share_spark.engine.outage"):
        for _ in range(40):
            engine.run()
        look = engine.engine.look()
        assert look.outage is not None
        assert look.outage.text(world.clock()) == "broker unreachable for 600 s"
        brokers.are_down = False
        engine.run()
    assert engine.engine.look().outage is None
    reason = "it is tried again and again: Kafka at b:9092 gave no answer within 15 s"
    assert caplog.messages == [
        *(f"broker unreachable for {seconds} s; {reason}" for seconds in (15, 30, 60, 120, 240, 480)),
        "broker answers again, after 600 s",
    ]


def test_a_limit_ends_it_and_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InMemoryGroup(handler=lambda *_: RELEASE, outage__timeout__ms=40_000)
    brokers = Brokers(world, monkeypatch)
    world.produce(5)
    engine = world.engine()
    engine.run()
    brokers.are_down = True
    for _ in range(2):
        engine.run()
    with pytest.raises(
        TopicUnreachableError, match=r"^broker unreachable for 45 s, as long as outage.timeout.ms allows"
    ):
        engine.run()
    asked = brokers.asked
    engine.run(stopping=True)
    assert brokers.asked == asked, "who stops does not wait once more"
    assert world.window() == "0-5: 0-4 V1"


def test_partitions_begin_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log ends may be known when their beginnings are not."""
    world = InMemoryGroup(share__auto__offset__reset="by_duration:PT1H")
    brokers = Brokers(world, monkeypatch, "offsets_at")
    world.produce(5)
    engine = world.engine()
    brokers.are_down = True
    for _ in range(2):
        assert engine.run().idle
    brokers.are_down = False
    assert engine.run().acquired == 5


def test_an_available_now_run_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InMemoryGroup()
    brokers = Brokers(world, monkeypatch)
    world.produce(5)
    engine = world.engine(available_now=True)
    brokers.are_down = True
    for _ in range(3):
        assert engine.run().acquired == 0
        assert not engine.engine.done
    brokers.are_down = False
    engine.run_until_done()
    assert world.deliveries == {(0, offset): 1 for offset in range(5)}


@pytest.mark.parametrize("output", [False, True])
def test_records_that_cannot_be_reached_are_given_back_uncharged(monkeypatch: pytest.MonkeyPatch, output: bool) -> None:
    """What was handled until then counts, with its output."""
    world = InMemoryGroup(output=output)
    world.produce(10)
    engine = world.engine()
    deliver = InMemoryDelivery.deliver

    def breaks_off(self: InMemoryDelivery, acquired: list[AcquiredSpan], **how: object) -> Delivered:
        (one,) = acquired
        reached = one._replace(ranges=one.ranges.copy())
        reached.ranges[:, 1] = 3
        return deliver(self, [reached], limits=DeliveryLimits(1, 1))._replace(fault=TopicUnreachableError("silence"))

    with monkeypatch.context() as patched:
        patched.setattr(InMemoryDelivery, "deliver", breaks_off)
        engine.run()
    assert engine.engine.outage is not None
    for _ in range(3):
        engine.run()
    assert engine.engine.outage is None
    assert world.calls == [(0, offset, 1) for offset in range(10)]
    assert world.window() == "10-10"
    if world.output is not None:
        assert [row.offset for row in world.output.rows] == list(range(10))


def test_a_delivery_that_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InMemoryGroup()
    world.produce(3)
    engine = world.engine()

    def fails(*_: object, **__: object) -> Delivered:
        raise TopicUnreachableError("silence")

    with monkeypatch.context() as patched:
        patched.setattr(InMemoryDelivery, "deliver", fails)
        engine.run()
    for _ in range(3):
        engine.run()
    assert world.calls == [(0, offset, 1) for offset in range(3)]


def test_other_faults_of_a_delivery_end_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InMemoryGroup()
    world.produce(3)
    engine = world.engine()
    monkeypatch.setattr(InMemoryDelivery, "deliver", lambda *_, **__: Delivered((), SinkError("refused")))
    with pytest.raises(SinkError):
        engine.run()


def late_letters(world: InMemoryGroup) -> InMemoryDeadLetters:
    world.dead_letters = InMemoryDeadLetters(is_late=True)
    return world.dead_letters


def rejected_with_letters_out_of_reach() -> tuple[InMemoryGroup, EngineLife]:
    world = InMemoryGroup(handler=lambda _t, _p, offset, _c: REJECT if offset < 3 else ACCEPT)
    letters = late_letters(world)
    world.produce(3)
    engine = world.engine()
    engine.run()
    letters.refuse = TopicUnreachableError("silence")
    engine.run()
    world.produce(3)
    while engine.engine.outage is None:
        engine.run()
    return world, engine


def test_letters_that_cannot_be_written_are_tried_again() -> None:
    world, engine = rejected_with_letters_out_of_reach()
    for _ in range(4):
        assert engine.run().acquired == 0
        assert engine.engine.outage is not None
    world.dead_letters.refuse = None
    for _ in range(4):
        engine.run()
    assert engine.engine.outage is None
    assert [(one.first_offset, one.last_offset) for one in world.dead_letters.letters] == [(0, 2)]
    assert world.window() == "6-6"


def test_who_stops_does_not_wait_for_letters_that_cannot_be_written() -> None:
    world, engine = rejected_with_letters_out_of_reach()
    engine.run(stopping=True)
    engine.engine.close()
    assert world.dead_letters.letters == []
    world.dead_letters = InMemoryDeadLetters(world.dead_letters.table)
    world.engine()
    assert [(one.first_offset, one.last_offset) for one in world.dead_letters.letters] == [(0, 2)]


def test_texts() -> None:
    outage = Outage(since_ms=1_000, what="topic table", reason="gone")
    assert outage.text(31_500) == "topic table unreachable for 30 s"
    assert outage.text(0) == "topic table unreachable for 0 s", "a clock that was set back"
