"""The share coordinator on Delta: what it answers, and that engines go on from what it wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark import coordinator
from share_spark.audit.verify import verify
from share_spark.coordinator import state_partition_of
from share_spark.coordinator.messages import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadStateSummary,
    ShareGroupStateRequest,
    StateRequest,
    StateResult,
    WriteState,
)
from share_spark.maintenance import share_coordinator
from share_spark.maintenance.heartbeat import heartbeat_file
from share_spark.maintenance.kip_takeover import after_write, changed_batches, durable_state, new_live_form
from share_spark.maintenance.share_coordinator import DeltaShareCoordinator
from share_spark.model.errors import ConfigError, ErrorCode, FencedError
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import StateBatch
from share_spark.partition import check_invariants, restore
from share_spark.state import commits
from share_spark.state.state_view import state_bucket
from share_spark.state.tables import log_table, state_table
from tests.property.test_stream_check import MICRO_BATCHES, log_of
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import GROUP, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVAILABLE, ACKNOWLEDGED = 0, 2
FIRST = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The topic id that the world gives to its topic."""


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> DeltaWorld:
    made = DeltaWorld(spark, str(tmp_path / "state"))
    assert made.topics.describe(TOPIC).topic_id == FIRST
    made.produce(10)
    return made


@pytest.fixture
def loaded(world: DeltaWorld) -> DeltaShareCoordinator:
    """Which does all of it without Spark."""
    found = DeltaShareCoordinator(None, world.location, topic_names={FIRST: TOPIC})
    found.load()
    return found


def ask(asked: DeltaShareCoordinator, *entries: StateRequest) -> tuple[StateResult, ...]:
    return asked.answer(ShareGroupStateRequest(group_id=GROUP, entries=entries))


def errors(asked: DeltaShareCoordinator, *entries: StateRequest) -> list[ErrorCode]:
    return [result.error for result in ask(asked, *entries)]


def initialize(start_offset: int, *, state_epoch: int = 1, partition: int = 0) -> InitializeState:
    return InitializeState(topic_id=FIRST, partition=partition, state_epoch=state_epoch, start_offset=start_offset)


READ = ReadState(topic_id=FIRST, partition=0)
SUMMARY = ReadStateSummary(topic_id=FIRST, partition=0)
DELETE = DeleteState(topic_id=FIRST, partition=0)


def write(*batches: StateBatch, start_offset: int = -1, state_epoch: int = 1, leader_epoch: int = 0) -> WriteState:
    return WriteState(
        topic_id=FIRST,
        partition=0,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        state_batches=batches,
    )


def test_an_engine_begins_where_initialize_said(
    spark: SparkSession, world: DeltaWorld, loaded: DeltaShareCoordinator
) -> None:
    """R101; and what is asked before, elsewhere or twice is answered by the rules (R72, R73, R93, R95)."""
    bucket = state_partition_of(SharePartitionKey(GROUP, FIRST, 0))
    elsewhere = DeltaShareCoordinator(spark, world.location, buckets=[(bucket + 1) % 50])
    assert errors(DeltaShareCoordinator(spark, world.location), READ) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    elsewhere.load()
    assert errors(elsewhere, initialize(4)) == [ErrorCode.NOT_COORDINATOR]
    assert errors(loaded, READ, SUMMARY, DELETE) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2 + [ErrorCode.NONE]
    assert world.versions() == 1, "nothing of this is a reason to claim the group"
    (done, summary) = ask(loaded, initialize(4, state_epoch=3), SUMMARY)
    assert (done.error, summary.state_epoch, summary.start_offset) == (ErrorCode.NONE, 3, 4)
    versions = world.versions()
    assert errors(loaded, initialize(9, state_epoch=2)) == [ErrorCode.FENCED_STATE_EPOCH]
    assert errors(loaded, initialize(4, state_epoch=3)) == [ErrorCode.NONE]
    assert world.versions() == versions
    engine = world.engine(available_now=True)
    assert engine.claim.writer_epoch == 2
    engine.run_until_done()
    assert world.calls == [(0, offset, 1) for offset in range(4, 10)]
    (summary,) = ask(loaded, SUMMARY)
    assert (summary.state_epoch, summary.start_offset) == (3, 10)
    assert verify(spark, world.location).agrees


def test_an_engine_delivers_what_was_written_as_available_and_what_no_write_named(
    world: DeltaWorld, loaded: DeltaShareCoordinator
) -> None:
    """With the counts that were written; holes of the window are fetched again (R22)."""
    batches = (StateBatch(4, 5, AVAILABLE, 2), StateBatch(8, 8, ACKNOWLEDGED, 1))
    assert errors(loaded, initialize(-1), write(*batches)) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert errors(loaded, write(*batches, start_offset=2)) == [ErrorCode.NONE]
    assert world.windows() == world.windows_by_spark() == ["2-9: 2-3 V0, 4-5 V2, 6-7 V0, 8-8 D1"]
    (read,) = ask(loaded, READ)
    assert read.start_offset == 2
    assert coordinator.normal_form(2, read.state_batches or ()) == (2, batches)
    world.engine(available_now=True).run_until_done()
    counts = {2: 1, 3: 1, 4: 3, 5: 3, 6: 1, 7: 1, 9: 1}
    assert sorted(world.calls) == [(0, offset, count) for offset, count in counts.items()]
    assert world.windows() == ["10-10"]


def test_what_a_write_does_not_name_stays_as_the_last_engine_left_it(
    spark: SparkSession, world: DeltaWorld, loaded: DeltaShareCoordinator
) -> None:
    """Its running attempts, which the KIP's form does not count (R8), count for the next engine."""
    dead = world.engine()
    dead.run()
    (read,) = ask(loaded, READ)
    assert (read.state_epoch, read.start_offset, read.state_batches) == (0, 0, ())
    said = write(StateBatch(0, 1, ACKNOWLEDGED, 1), StateBatch(4, 4, ACKNOWLEDGED, 1), state_epoch=0)
    assert errors(loaded, said) == [0]
    assert world.windows() == ["2-10: 2-3 Q1, 4-4 D1, 5-9 Q1"]
    with pytest.raises(FencedError, match="coordinator-"):
        dead.run()
    assert world.windows() == ["2-10: 2-3 Q1, 4-4 D1, 5-9 Q1"]
    world.calls.clear()
    world.clock.advance(60_000)
    world.machine_is_lost()
    world.engine(available_now=True).run_until_done()
    assert Counter(offset for _, offset, _ in world.calls) == Counter([2, 3, 5, 6, 7, 8, 9])
    assert {count for _, _, count in world.calls} == {2}
    assert verify(spark, world.location).agrees


def test_a_deleted_share_partition_starts_from_the_beginning(
    spark: SparkSession, world: DeltaWorld, loaded: DeltaShareCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R91-R93: the other share-partition stays; with the last one the group is gone, by notes and by rows."""
    world.engine(available_now=True).run_until_done()
    assert errors(loaded, initialize(5, partition=1)) == [ErrorCode.NONE]
    assert world.windows() == ["10-10", "5-5"]
    first, second = (state_bucket(SharePartitionKey(GROUP, FIRST, partition)) for partition in range(2))
    seen = world.frame().selectExpr("*", f"IF(partition = 0, {first}, {second}) AS bucket")
    state_table(world.location).append(seen)
    assert errors(loaded, DELETE, READ) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.windows() == ["5-5"]
    assert [row.partition for row in state_table(world.location).load(spark).collect()] == [1]
    assert errors(loaded, DeleteState(topic_id=FIRST, partition=1)) == [ErrorCode.NONE]
    assert world.windows() == []
    with monkeypatch.context() as patched:
        patched.setattr(commits, "LOOK_BACK", 1)
        assert (world.windows(), world.windows_by_spark()) == ([], [])
    assert errors(loaded, SUMMARY) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert log_table(world.location).load(spark).agg({"writer_epoch": "max"}).first()[0] == 4
    world.calls.clear()
    engine = world.engine(available_now=True)
    assert engine.claim.writer_epoch == 5
    engine.run_until_done()
    assert world.calls == [(0, offset, 1) for offset in range(10)]
    assert verify(spark, world.location).agrees


def test_a_deleted_share_partition_may_begin_with_a_lower_epoch(
    spark: SparkSession, world: DeltaWorld, loaded: DeltaShareCoordinator
) -> None:
    """Nothing of it is known any more (R91), and its segments before are not held against it."""
    assert errors(loaded, initialize(0), initialize(5, state_epoch=7, partition=1)) == [ErrorCode.NONE] * 2
    assert errors(loaded, DeleteState(topic_id=FIRST, partition=1)) == [ErrorCode.NONE]
    assert errors(loaded, initialize(3, state_epoch=2, partition=1)) == [ErrorCode.NONE]
    report = verify(spark, world.location)
    assert report.agrees, report
    assert [(verdict.partition, verdict.segments) for verdict in report.verdicts] == [(0, 3), (1, 2)]


def test_a_living_engine_is_not_claimed_away(
    spark: SparkSession, world: DeltaWorld, loaded: DeltaShareCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its heartbeat; one that starts just then wins the claim. Reading is always allowed."""
    engine = world.engine()
    engine.run()
    heartbeat_file(spark, world.location, GROUP).write("spark-run1")
    versions = world.versions()
    with pytest.raises(FencedError, match=r"'billing' is run by an engine \(spark-run1, last heartbeat \d s ago\)"):
        ask(loaded, initialize(4, state_epoch=2))
    assert errors(loaded, READ, SUMMARY) == [ErrorCode.NONE] * 2
    raised = ReadState(topic_id=FIRST, partition=0, leader_epoch=7)
    with pytest.raises(FencedError):
        ask(loaded, raised)
    assert world.versions() == versions
    started = []
    monkeypatch.setattr(
        share_coordinator._GroupLog, "refuse_unless_idle", lambda _log: started.append(world.engine(available_now=True))
    )
    with pytest.raises(FencedError, match="run2"):
        ask(loaded, initialize(4, state_epoch=2))
    world.clock.advance(60_000)
    started[0].run_until_done()
    monkeypatch.setattr(share_coordinator._GroupLog, "refuse_unless_idle", lambda _log: None)
    assert errors(loaded, raised, SUMMARY) == [ErrorCode.NONE] * 2
    older = ReadState(topic_id=FIRST, partition=0, leader_epoch=6)
    assert errors(loaded, older) == [ErrorCode.FENCED_LEADER_EPOCH]


def test_an_unknown_bucket_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for buckets in ([50], []):
        with pytest.raises(ConfigError, match="they are 0 to 49"):
            DeltaShareCoordinator(spark, str(tmp_path), buckets=buckets)


# ------------------------------------------------------------------------------------------ without Spark

BATCHES = st.lists(
    st.builds(
        lambda first, size, state, count: StateBatch(first, first + size, state, count),
        st.integers(0, 30),
        st.integers(0, 6),
        st.sampled_from([0, 2, 4]),
        st.integers(0, 3),
    ),
    max_size=5,
)


@settings(max_examples=400, deadline=None)
@given(micro_batches=MICRO_BATCHES, batches=BATCHES, start_offset=st.integers(-1, 34))
def test_what_was_written_is_what_the_live_form_says(
    micro_batches: list[tuple[list, int, bool]], batches: list[StateBatch], start_offset: int
) -> None:
    """For every state that an engine can leave, and after any number of conversions (R66)."""
    live = restore(log_of(micro_batches, 2))
    assert live is not None
    known = durable_state(live)
    request = WriteState(
        topic_id=live.key.topic_id,
        partition=0,
        state_epoch=known.state_epoch,
        leader_epoch=known.leader_epoch,
        start_offset=start_offset,
        state_batches=tuple(batches),
    )
    (record, _) = coordinator.decide(live.key, known, request)
    after = coordinator.replay([record], {live.key: known})[live.key] if record else known
    for found in (after_write(live, after), new_live_form(after)):
        check_invariants(found)
        expected = coordinator.normal_form(after.start_offset, after.state_batches)
        assert coordinator.normal_form(found.start_offset, durable_state(found).state_batches) == expected
        assert not found.in_flight or not found.in_flight[0].delivery_state.is_final, "R15"
        holes = set(range(found.start_offset, found.end_offset)) - by_offset(found.in_flight).keys()
        assert not holes, "a hole would never be delivered"
    said_before, said_now = by_offset(known.state_batches), by_offset(after.state_batches)
    was, became = by_offset(live.in_flight), by_offset(after_write(live, after).in_flight)
    for offset in was.keys() & became.keys():
        if said_before.get(offset) == said_now.get(offset):
            assert became[offset] == was[offset], "attempts that the KIP's form does not have"


@settings(max_examples=400, deadline=None)
@given(before=BATCHES, after=BATCHES)
def test_only_what_is_new_is_a_change(before: list[StateBatch], after: list[StateBatch]) -> None:
    known, now = (coordinator.combine_batches((), batches, -1) for batches in (before, after))
    changes = list(changed_batches(known, now))
    assert changes == sorted(changes)
    said = by_offset(known)
    assert by_offset(changes) == {at: state for at, state in by_offset(now).items() if said.get(at) != state}


def by_offset(runs: Iterable[tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    """What is said of each offset."""
    return {offset: tuple(run[2:]) for run in runs for offset in range(run[0], run[1] + 1)}
