"""When a segment ends, and what the twin of the store keeps of time."""

from __future__ import annotations

import pytest

from share_spark.engine.pending import OpenSegment
from share_spark.model.errors import FencedError
from tests.support.engine_world import ACCEPT, GROUP, RELEASE, InMemoryGroup
from tests.twins.memory import InMemoryShareStateStore


def after(*commits: int) -> OpenSegment:
    """Of commits of so many ranges to segment 3."""
    segment = OpenSegment(number=3)
    for ranges in commits:
        segment = segment.after(3, ranges)
    return segment


def test_a_segment_begins_with_its_first_commit() -> None:
    assert [after().begins, after(5).begins, after().is_full(1, 0)] == [True, False, False]


@pytest.mark.parametrize(
    ("commits", "full"),
    [
        ([10, 40], False),
        ([10, 41], True),
        ([10, 20, 21], True),
        ([2, 10], False),
        ([2, 11], True),
        ([1_000], False),
        ([0, 0, 0, 0], False),
        ([0, 0, 0, 0, 0], True),
    ],
)
def test_a_segment_ends_by_its_commits_and_by_the_ranges_after_its_snapshot(commits: list[int], full: bool) -> None:
    """Five commits, or more than 10 ranges and more than four times the snapshot's: large states are not written over
    and over."""
    assert after(*commits).is_full(5, least_ranges=10) is full


def test_the_first_commit_to_another_segment_counts_from_zero() -> None:
    assert after(10, 30).after(4, 7) == OpenSegment(number=4, updates=1, snapshot_ranges=7)


def segments_of(world: InMemoryGroup) -> list[int]:
    return [commit.segment for commit in world.state_log.commits if commit.kind == "records"]


def fragmenting(least_ranges: int) -> InMemoryGroup:
    """Every second record is released, each time; a segment may hold ``least_ranges`` ranges."""

    def store(world: InMemoryGroup, run_id: str) -> InMemoryShareStateStore:
        return InMemoryShareStateStore(log=world.state_log, group_id=GROUP, run_id=run_id, least_ranges=least_ranges)

    world = InMemoryGroup(
        handler=lambda *record: RELEASE if record[2] % 2 else ACCEPT,
        store=store,
        share__delivery__count__limit=25,
    )
    world.produce(20)
    return world


def test_large_updates_end_a_segment_and_the_next_one_is_the_whole_state() -> None:
    world = fragmenting(least_ranges=30)
    engine = world.engine()
    for _ in range(12):
        engine.run()
    assert segments_of(world) == sorted(segments_of(world))
    assert segments_of(world)[-1] >= 1
    windows = world.window()
    world.engine()
    assert world.window() == windows
    calm = fragmenting(least_ranges=1_000_000)
    engine = calm.engine()
    for _ in range(12):
        engine.run()
    assert set(segments_of(calm)) == {0}
    assert calm.window() == windows


def test_the_time_of_the_last_micro_batch_that_counts_survives_its_engine() -> None:
    world = InMemoryGroup()
    world.produce(3)
    first = world.engine()
    assert first.store.last_time_ms == 0
    world.clock.advance(500)
    first.run()
    world.clock.advance(70)
    first.run()
    decided_at = world.clock()
    assert first.store.last_time_ms == 0, "as of the load"
    world.clock.advance(-300)
    second = world.engine()
    assert second.store.last_time_ms == decided_at
    third = world.engine()
    assert third.store.last_time_ms == decided_at, "the second has claimed and committed nothing"
    assert [commit.at_ms for commit in world.state_log.commits if commit.kind == "claim"] == [0, decided_at, decided_at]


def test_the_time_of_a_stale_append_is_ignored_as_well() -> None:
    world = InMemoryGroup()
    world.produce(3)
    zombie = world.engine()
    zombie.run()
    decided_at = world.clock()
    world.engine()
    world.clock.advance(1_000)
    with pytest.raises(FencedError, match="writer epoch 2"):
        zombie.run()
    assert world.engine().store.last_time_ms == decided_at
