"""Whatever a share-partition goes through, its log holds together for ``verify``; and a forged count does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from share_spark.audit.stream_check import LogRecord, first_fault
from share_spark.model.ids import OffsetRange
from share_spark.model.records import UNCHANGED, DeliveryState, Doubt, ShareRecord, ShareSnapshot, ShareUpdate
from share_spark.model.requests import (
    Acknowledge,
    Acquire,
    AnsweredRange,
    ExpireLocks,
    LoseAttempts,
    Loss,
    MoveLogStart,
    PartitionRequest,
    ReleaseMember,
    TruncateLog,
)
from share_spark.partition import PartitionLimits, decide, evolve, restore, take_snapshot
from tests.support.examples import examples
from tests.support.share_partition import Partition

pytestmark = pytest.mark.usefixtures("window_form")

MEMBERS = st.sampled_from(["a", "b"])
OFFSETS = st.integers(0, 24)


@st.composite
def span(draw: st.DrawFn) -> tuple[int, int]:
    first = draw(OFFSETS)
    return first, first + draw(st.integers(0, 6))


REQUESTS: st.SearchStrategy[PartitionRequest] = st.one_of(
    st.builds(
        lambda member, last, most, suspects: Acquire(
            member_id=member,
            max_records=most,
            readable=OffsetRange(0, last),
            searched=Doubt.ACCUSED,
            suspects=suspects,
        ),
        MEMBERS,
        OFFSETS,
        st.integers(1, 12),
        st.booleans(),
    ),
    st.builds(
        lambda member, where, kind: Acknowledge(member_id=member, batches=(AnsweredRange(where[0], where[1], kind),)),
        MEMBERS,
        span(),
        st.integers(0, 3),
    ),
    st.builds(lambda member, charged: ReleaseMember(member_id=member, charged=charged), MEMBERS, st.booleans()),
    st.builds(lambda lost: ExpireLocks(lost=lost), st.booleans()),
    st.builds(
        lambda member, where, loss: LoseAttempts(member_id=member, ranges=((*where, loss),)),
        MEMBERS,
        span(),
        st.sampled_from(list(Loss)),
    ),
    st.builds(lambda offset: MoveLogStart(log_start_offset=offset), OFFSETS),
    st.builds(lambda offset: TruncateLog(end_offset=offset), OFFSETS),
)
MICRO_BATCHES = st.lists(
    st.tuples(st.lists(REQUESTS, min_size=1, max_size=3), st.integers(0, 12), st.booleans()), max_size=15
)


def log_of(micro_batches: list[tuple[list[PartitionRequest], int, bool]], limit: int) -> list[ShareRecord]:
    """Requests decided together, time that passes, and now and then a snapshot."""
    leader = Partition(start=3, limits=PartitionLimits(max_delivery_count=limit, lock_duration_ms=10))
    for requests, ms, snapshot in micro_batches:
        leader.now_ms += ms
        leader.ask(*in_order(requests))
        if snapshot:
            leader.log.append(take_snapshot(leader.state))
            leader.state = evolve(leader.state, leader.log[-1])
    return leader.log


ENGINE_ORDER = (Acknowledge, LoseAttempts, ReleaseMember, TruncateLog, ExpireLocks, MoveLogStart, Acquire)


def in_order(requests: list[PartitionRequest]) -> list[PartitionRequest]:
    """Where the log is truncated, in the order of a micro-batch: what comes after it is acquired last of all."""
    if not any(isinstance(request, TruncateLog) for request in requests):
        return requests
    return sorted(requests, key=lambda request: ENGINE_ORDER.index(type(request)))


def stream(records: list[ShareRecord]) -> list[LogRecord]:
    return [LogRecord(place, record) for place, record in enumerate(records)]


@settings(max_examples=examples(400), deadline=None)
@given(micro_batches=MICRO_BATCHES, limit=st.integers(2, 3))
def test_both_tellings_agree_after_every_micro_batch(
    micro_batches: list[tuple[list[PartitionRequest], int, bool]], limit: int
) -> None:
    log = stream(log_of(micro_batches, limit))
    for size in range(1, len(log) + 1):
        assert first_fault(log[:size]) is None


NEW = Acquire(member_id="a", max_records=50, readable=OffsetRange(0, 40))
TRIED: tuple[list[PartitionRequest], int, bool] = ([NEW, ReleaseMember(member_id="a")], 0, False)
"""New records were handed out and given back."""


@settings(max_examples=examples(200), deadline=None)
@given(micro_batches=MICRO_BATCHES, limit=st.integers(2, 3), data=st.data())
def test_a_forgotten_attempt_is_found(
    micro_batches: list[tuple[list[PartitionRequest], int, bool]], limit: int, data: st.DataObject
) -> None:
    """An Available run that is written again, once as it is and once with an attempt less."""
    log = log_of([*micro_batches, TRIED], limit)
    state = restore(log)
    assert state is not None
    counted = [run for run in state.in_flight if run.delivery_state is DeliveryState.AVAILABLE and run.delivery_count]
    assume(counted)
    run = data.draw(st.sampled_from(counted))
    stated, forged = (
        ShareUpdate(
            key=state.key,
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=UNCHANGED,
            batches=(run._replace(delivery_count=count),),
        )
        for count in (run.delivery_count, run.delivery_count - 1)
    )
    assert first_fault(stream([*log, stated])) is None
    assert first_fault(stream([*log, forged])) is not None


@settings(max_examples=examples(200), deadline=None)
@given(micro_batches=MICRO_BATCHES, end=st.integers(0, 50), data=st.data())
def test_a_truncation_that_takes_back_more_than_the_end_is_found(
    micro_batches: list[tuple[list[PartitionRequest], int, bool]], end: int, data: st.DataObject
) -> None:
    """The snapshot of a truncation, as it is, and with a run of the window whose count is another."""
    log = log_of([*micro_batches, TRIED], 3)
    state = restore(log)
    assert state is not None
    cut_off = decide(state, [TruncateLog(end_offset=end)], PartitionLimits(), 0).record
    assume(isinstance(cut_off, ShareSnapshot) and cut_off.batches)
    assert isinstance(cut_off, ShareSnapshot)
    assert first_fault(stream([*log, cut_off])) is None
    at = data.draw(st.integers(0, len(cut_off.batches) - 1))
    batches = list(cut_off.batches)
    batches[at] = batches[at]._replace(delivery_count=batches[at].delivery_count + 2)
    assert first_fault(stream([*log, replace(cut_off, batches=tuple(batches))])) is not None
