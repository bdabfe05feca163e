"""Where a group begins, how much it takes, when it has nothing to do, and when an available-now run is done."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from share_spark.model.errors import TopicError
from tests.support.engine_world import ACCEPT, RELEASE, TOPIC, InMemoryGroup, at
from tests.twins.memory import InMemoryTopicLog, MemoryRecord


def test_latest_begins_at_the_end_of_the_log() -> None:
    """R26."""
    world = InMemoryGroup(share__auto__offset__reset="latest")
    world.produce(5)
    engine = world.engine()
    engine.run()
    world.produce(2)
    engine.run()
    assert world.calls == [(0, 5, 1), (0, 6, 1)]


def test_latest_is_chosen_once_even_if_nothing_was_delivered_before_the_restart() -> None:
    """R26: the first SPSO is durable."""
    world = InMemoryGroup(share__auto__offset__reset="latest")
    world.produce(5)
    world.engine().run()
    world.produce(2)
    world.engine().run()
    assert world.calls == [(0, 5, 1), (0, 6, 1)]


def test_earliest_begins_at_the_log_start() -> None:
    world = InMemoryGroup()
    world.produce(5)
    world.topics.move_log_start(at(), 3)
    world.engine().run()
    assert world.calls == [(0, 3, 1), (0, 4, 1)]


def test_by_duration_passes_over_nothing_that_came_after_the_look_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are asked after the ends; whatever is written in between is new."""
    world = InMemoryGroup(share__auto__offset__reset="by_duration:PT1M")
    original = type(world.topics).offsets_at

    def late(topics: InMemoryTopicLog, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        topics.append(at(), [MemoryRecord(timestamp_ms - 1)] * 2)
        return original(topics, topic, timestamp_ms)

    monkeypatch.setattr(type(world.topics), "offsets_at", late)
    engine = world.engine()
    engine.run()
    assert world.window() == "0-0"
    engine.run()
    assert world.calls[:2] == [(0, 0, 1), (0, 1, 1)]


def test_by_duration_begins_at_the_first_record_young_enough() -> None:
    world = InMemoryGroup(partitions=2, share__auto__offset__reset="by_duration:PT1M")
    for age_ms in (120_000, 60_000, 1_000):
        world.topics.append(at(0), [MemoryRecord(world.clock() - age_ms)])
    world.topics.append(at(1), [MemoryRecord(world.clock() - 90_000)])
    world.engine().run()
    assert world.calls == [(0, 1, 1), (0, 2, 1)]
    assert world.window(1) == "1-1"


@pytest.mark.parametrize("policy", ["latest", "earliest"])
def test_a_partition_added_later_begins_at_its_log_start(policy: str) -> None:
    """Whatever the policy: nothing written before it was noticed is skipped."""
    world = InMemoryGroup(share__auto__offset__reset=policy)
    engine = world.engine()
    engine.run()
    world.topics.add_partitions(TOPIC, 1)
    world.produce(2, partition=1)
    engine.run()
    assert world.calls == [(1, 0, 1), (1, 1, 1)]


def test_an_idle_engine_appends_nothing() -> None:
    world = InMemoryGroup(partitions=3)
    engine = world.engine()
    engine.run()
    version = world.state_log.version
    assert all(engine.run().idle for _ in range(5))
    assert world.state_log.version == version


def test_a_new_engine_without_work_appends_one_snapshot_and_no_more() -> None:
    """R74, R75: its segment begins with the state of every share-partition, idle ones included."""
    world = InMemoryGroup(partitions=2)
    world.produce(1)
    world.engine(available_now=True).run_until_done()
    engine = world.engine()
    engine.run()
    engine.run()
    last = world.state_log.commits[-1]
    assert (last.batch_id, len(last.records)) == (0, 2)
    assert world.window(0) == "1-1"


def test_the_lock_limit_bounds_the_window() -> None:
    """R37: a window of 100 offsets, SPSO to end, finished ones included."""
    world = InMemoryGroup(
        handler=lambda _topic, _partition, offset, _count: RELEASE if offset == 0 else ACCEPT,
        share__partition__max__record__locks=100,
    )
    world.produce(300)
    engine = world.engine()
    assert engine.run().acquired == 100
    assert engine.run().acquired == 1
    assert world.window() == "0-100: 0-0 Q2, 1-99 D1"
    world.handler = lambda *_: ACCEPT
    engine.run()
    assert engine.run().acquired == 100
    assert world.window() == "100-200: 100-199 Q1"


def test_an_available_now_run_gets_through_a_window_smaller_than_the_log() -> None:
    world = InMemoryGroup(share__partition__max__record__locks=100)
    world.produce(250)
    runs = world.engine(available_now=True).run_until_done()
    assert [p.acquired for p in runs] == [100, 100, 50, 0]


def test_records_per_trigger_are_shared_out() -> None:
    world = InMemoryGroup(partitions=3, max__records__per__trigger=100)
    world.produce(10, 0)
    world.produce(200, 1)
    world.produce(200, 2)
    progress = world.engine().run()
    assert progress.acquired == 100
    taken = [sum(1 for call in world.calls if call[0] == partition) for partition in range(3)]
    assert taken == [10, 45, 45]


def test_redeliveries_come_before_new_records() -> None:
    """R38: in offset order."""
    world = InMemoryGroup(
        handler=lambda _topic, _partition, _offset, count: RELEASE if count == 1 else ACCEPT,
        max__records__per__trigger=3,
    )
    world.produce(9)
    world.engine(available_now=True).run_until_done()
    assert [call[1:] for call in world.calls[:6]] == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]


def test_available_now_ends_at_the_log_end_of_its_start() -> None:
    world = InMemoryGroup(partitions=2)
    world.produce(3)
    engine = world.engine(available_now=True)
    world.produce(4)
    engine.run_until_done()
    assert world.calls == [(0, offset, 1) for offset in range(3)]


def test_available_now_is_done_only_when_the_last_acknowledgement_is_committed() -> None:
    world = InMemoryGroup()
    world.produce(3)
    engine = world.engine(available_now=True)
    engine.run()
    assert not engine.engine.done
    engine.run()
    assert engine.engine.done


def test_available_now_on_an_empty_topic_ends() -> None:
    world = InMemoryGroup(partitions=2)
    assert len(world.engine(available_now=True).run_until_done()) == 1


def test_available_now_waits_for_the_locks_of_the_dead() -> None:
    """R55."""
    world = InMemoryGroup()
    world.produce(3)
    world.engine().run()
    world.machine_is_lost()
    engine = world.engine(available_now=True)
    version = world.state_log.version
    for _ in range(5):
        engine.run()
    assert not engine.engine.done
    assert world.state_log.version == version + 1
    assert engine.engine.next_deadline_ms == world.clock() + 30_000
    world.clock.advance(29_999)
    assert engine.run().idle
    world.clock.advance(1)
    engine.run_until_done()
    assert world.calls[3:] == [(0, offset, 2) for offset in range(3)]


def test_a_topic_created_again_under_a_running_group_is_an_error() -> None:
    world = InMemoryGroup()
    world.produce(5)
    engine = world.engine()
    engine.run()
    version = world.state_log.version
    world.topics.create_topic(TOPIC, 1)
    world.produce(2)
    with pytest.raises(TopicError, match="deleted and created again"):
        engine.run()
    assert world.state_log.version == version


def test_a_topic_created_again_and_filled_past_its_old_end_is_noticed_in_seconds() -> None:
    world = InMemoryGroup()
    world.produce(5)
    engine = world.engine()
    engine.run()
    world.topics.create_topic(TOPIC, 1)
    world.produce(50)
    world.clock.advance(5_000)
    with pytest.raises(TopicError, match="deleted and created again"):
        engine.run()


def test_a_topic_created_again_between_two_runs_is_an_error() -> None:
    world = InMemoryGroup()
    world.produce(5)
    world.engine().run()
    world.topics.create_topic(TOPIC, 1)
    with pytest.raises(TopicError, match="use another group or delete the state"):
        world.engine()


def test_an_unknown_topic_claims_nothing() -> None:
    world = InMemoryGroup()
    world.topics.delete_topic(TOPIC)
    with pytest.raises(TopicError, match="does not exist"):
        world.engine()
    assert world.state_log.version == -1


def test_a_clock_that_goes_back_ends_no_lock_early() -> None:
    world = InMemoryGroup(handler=lambda *_: RELEASE)
    world.produce(1)
    engine = world.engine()
    engine.run()
    world.clock.advance(-60_000)
    engine.run()
    assert world.state().in_flight[0].lock_deadline_ms == 1_000_000 + 30_000
