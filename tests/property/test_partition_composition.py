"""Properties of decide and evolve that hold in every acquire mode, Kafka's included."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.model.records import ShareRecord
from share_spark.model.requests import (
    Acknowledge,
    AcknowledgementBatch,
    Acquire,
    AcquireMode,
    ExpireLocks,
    LogBatch,
    MoveLogStart,
    PartitionRequest,
    ReleaseMember,
)
from share_spark.partition import (
    PartitionLimits,
    SharePartition,
    check_invariants,
    decide,
    evolve,
    from_kip,
    next_fetch_offset,
    restore,
    take_snapshot,
)
from tests.property.test_partition_drain import durable
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
def ack_batches(draw: st.DrawFn) -> tuple[AcknowledgementBatch, ...]:
    """Ascending, disjoint."""
    at = draw(OFFSETS)
    batches = []
    for size, gap, kind in draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(0, 4)), max_size=3)
    ):
        batches.append(AcknowledgementBatch(at, at + size - 1, (kind,)))
        at += size + gap
    return tuple(batches)


REQUESTS: st.SearchStrategy[PartitionRequest] = st.one_of(
    st.builds(
        Acquire,
        member_id=MEMBERS,
        max_records=st.integers(1, 12),
        mode=st.sampled_from(AcquireMode),
        log_batches=log_batches(),
        batch_size=st.integers(1, 20),
    ),
    st.builds(Acknowledge, member_id=MEMBERS, batches=ack_batches()),
    st.builds(ReleaseMember, member_id=MEMBERS),
    st.just(ExpireLocks()),
    st.builds(MoveLogStart, log_start_offset=OFFSETS),
)
STEPS = st.lists(st.tuples(st.integers(0, 8), REQUESTS), max_size=14)
LIMITS = st.builds(
    PartitionLimits,
    max_delivery_count=st.integers(2, 4),
    max_record_locks=st.integers(3, 40),
    lock_duration_ms=st.just(10),
    delivery_throttling=st.booleans(),
)


BEGINNINGS = st.one_of(
    st.just(SharePartition(key=KEY, snapshot_epoch=0, start_offset=0)),
    durable().map(lambda held: from_kip(key=KEY, state_epoch=0, leader_epoch=0, start_offset=held[0], batches=held[1])),
)


def read_from_next(state: SharePartition, request: PartitionRequest) -> PartitionRequest:
    """A log read begins at or past the next fetch offset; move its batches there."""
    if not isinstance(request, Acquire) or not request.log_batches:
        return request
    by = max(0, next_fetch_offset(state) - request.log_batches[0].last_offset)
    moved = tuple(
        batch._replace(base_offset=batch.base_offset + by, last_offset=batch.last_offset + by)
        for batch in request.log_batches
    )
    return replace(request, log_batches=moved, fetch_offset=next_fetch_offset(state))


@settings(max_examples=300, deadline=None)
@given(begin=BEGINNINGS, steps=STEPS, limits=LIMITS)
def test_invariants_and_recovery_hold_after_every_step(
    begin: SharePartition, steps: list[tuple[int, PartitionRequest]], limits: PartitionLimits
) -> None:
    state, now_ms, highest_start = begin, 0, begin.start_offset
    log: list[ShareRecord] = [replace(take_snapshot(state), snapshot_epoch=0)]
    for ms, request in steps:
        now_ms += ms
        decision = decide(state, [read_from_next(state, request)], limits, now_ms)
        if decision.record is not None:
            state = evolve(state, decision.record)
            log.append(decision.record)
        check_invariants(state)
        assert restore(log) == state
        assert state.start_offset >= highest_start
        highest_start = state.start_offset


@settings(max_examples=300, deadline=None)
@given(begin=BEGINNINGS, steps=STEPS, limits=LIMITS)
def test_requests_decided_together_or_one_by_one_come_to_the_same(
    begin: SharePartition, steps: list[tuple[int, PartitionRequest]], limits: PartitionLimits
) -> None:
    """So the record of many requests is the sum of their changes, and the draft is what evolve makes of it."""
    state, requests, responses = begin, [], []
    for _, drawn in steps:
        request = read_from_next(state, drawn)
        decision = decide(state, [request], limits, 0)
        state = state if decision.record is None else evolve(state, decision.record)
        requests.append(request)
        responses += decision.responses
    together = decide(begin, requests, limits, 0)
    assert list(together.responses) == responses
    assert (begin if together.record is None else evolve(begin, together.record)) == state
    if state == begin and together.record is not None:
        assert together.record.batches, "a record that changes nothing is not written"
