"""Properties of decide and evolve that hold where handlers and clients of Kafka share a group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.model.ids import OffsetRange
from share_spark.model.records import ShareRecord
from share_spark.model.requests import (
    Acknowledge,
    Acquire,
    AnsweredRange,
    ExpireLocks,
    MoveLogStart,
    ReleaseMember,
)
from share_spark.partition import SharePartition, from_kip, restore, take_snapshot
from share_spark.partition.kafka_modes import (
    AcknowledgeOrRenew,
    AcquireBatches,
    AcquireMode,
    KafkaLimits,
    KafkaPartition,
    LogBatch,
    TypedBatch,
    check_invariants,
    decide,
    evolve,
    load_from_kip,
)
from share_spark.partition.kafka_modes.requests import KafkaRequest
from tests.property.test_partition_drain import durable
from tests.support.examples import examples
from tests.support.share_partition import KEY

pytestmark = pytest.mark.usefixtures("window_form")

MEMBERS = st.sampled_from(["a", "b"])
OFFSETS = st.integers(0, 30)


@st.composite
def log_batches(draw: st.DrawFn) -> tuple[LogBatch, ...]:
    """Ascending, with natural gaps, some aborted."""
    at = draw(OFFSETS)
    batches = []
    for size, gap, kind in draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(0, 5)), max_size=4)
    ):
        batches.append(LogBatch(at, at + size - 1, aborted=kind == 0))
        at += size + gap
    return tuple(batches)


@st.composite
def ranges(draw: st.DrawFn, kinds: int) -> list[tuple[int, int, int]]:
    """Ascending, disjoint."""
    at = draw(OFFSETS)
    found = []
    for size, gap, kind in draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(0, kinds - 1)), max_size=3)
    ):
        found.append((at, at + size - 1, kind))
        at += size + gap
    return found


def typed(found: list[tuple[int, int, int]]) -> tuple[TypedBatch, ...]:
    return tuple(TypedBatch(first, last, (kind,)) for first, last, kind in found)


REQUESTS: st.SearchStrategy[KafkaRequest] = st.one_of(
    st.builds(
        AcquireBatches,
        member_id=MEMBERS,
        max_records=st.integers(1, 12),
        mode=st.sampled_from(AcquireMode),
        log_batches=log_batches(),
        batch_size=st.integers(1, 20),
    ),
    st.builds(
        Acquire,
        member_id=MEMBERS,
        max_records=st.integers(1, 12),
        readable=st.builds(OffsetRange, OFFSETS, OFFSETS),
    ),
    st.builds(AcknowledgeOrRenew, member_id=MEMBERS, batches=ranges(5).map(typed)),
    st.builds(
        Acknowledge,
        member_id=MEMBERS,
        batches=ranges(4).map(lambda found: tuple(AnsweredRange(*one) for one in found)),
    ),
    st.builds(ReleaseMember, member_id=MEMBERS),
    st.just(ExpireLocks()),
    st.builds(MoveLogStart, log_start_offset=OFFSETS, pass_finished=st.booleans()),
)
STEPS = st.lists(st.tuples(st.integers(0, 8), REQUESTS), max_size=14)
LIMITS = st.builds(
    KafkaLimits,
    max_delivery_count=st.integers(2, 4),
    max_record_locks=st.integers(3, 40),
    lock_duration_ms=st.just(10),
    delivery_throttling=st.booleans(),
)
EPOCHS = {"key": KEY, "state_epoch": 0, "leader_epoch": 0}
BEGINNINGS = st.one_of(
    st.just(KafkaPartition(state=SharePartition(key=KEY, snapshot_epoch=0, start_offset=0))),
    durable().map(lambda held: load_from_kip(**EPOCHS, start_offset=held[0], batches=held[1])),
    durable().map(lambda held: KafkaPartition(state=from_kip(**EPOCHS, start_offset=held[0], batches=held[1]))),
)


def read_from_next(partition: KafkaPartition, request: KafkaRequest) -> KafkaRequest:
    """A log read begins at or past the next fetch offset; move its batches there."""
    if not isinstance(request, AcquireBatches) or not request.log_batches:
        return request
    by = max(0, partition.next_fetch_offset - request.log_batches[0].last_offset)
    moved = tuple(
        batch._replace(base_offset=batch.base_offset + by, last_offset=batch.last_offset + by)
        for batch in request.log_batches
    )
    return replace(request, log_batches=moved, fetch_offset=partition.next_fetch_offset)


Steps = list[tuple[int, KafkaRequest]]


@settings(max_examples=examples(300), deadline=None)
@given(begin=BEGINNINGS, steps=STEPS, limits=LIMITS, forgets=st.integers(0, 14))
def test_invariants_and_recovery_hold_after_every_step(
    begin: KafkaPartition, steps: Steps, limits: KafkaLimits, forgets: int
) -> None:
    """Also if what is remembered is forgotten at some step."""
    partition, now_ms, highest_start = begin, 0, begin.state.start_offset
    log: list[ShareRecord] = [replace(take_snapshot(begin.state), snapshot_epoch=0)]
    for number, (ms, request) in enumerate(steps):
        now_ms += ms
        if number == forgets and partition.read_gap is None:
            partition = KafkaPartition(state=partition.state)
        decision = decide(partition, [read_from_next(partition, request)], limits, now_ms)
        partition = evolve(partition, decision)
        if decision.record is not None:
            log.append(decision.record)
        check_invariants(partition)
        assert restore(log) == partition.state
        assert partition.state.start_offset >= highest_start
        highest_start = partition.state.start_offset


@settings(max_examples=examples(300), deadline=None)
@given(begin=BEGINNINGS, steps=STEPS, limits=LIMITS)
def test_requests_decided_together_or_one_by_one_come_to_the_same(
    begin: KafkaPartition, steps: Steps, limits: KafkaLimits
) -> None:
    """So the record of many requests is the sum of their changes, and the draft is what evolve makes of it."""
    partition, requests, responses = begin, [], []
    for _, drawn in steps:
        request = read_from_next(partition, drawn)
        decision = decide(partition, [request], limits, 0)
        partition = evolve(partition, decision)
        requests.append(request)
        responses += decision.responses
    together = decide(begin, requests, limits, 0)
    assert list(together.responses) == responses
    assert evolve(begin, together) == partition
    if partition.state == begin.state and together.record is not None:
        assert together.record.batches, "a record that changes nothing is not written"
