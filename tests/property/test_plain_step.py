"""The short way of a step is compared with the general one, on what it is for and on what lies at its borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from share_spark.engine import plain_step
from share_spark.engine.plain_step import unaudited_step
from share_spark.engine.step import PartitionInput, StepResult, step
from share_spark.model.config import BackoffPolicy
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch
from share_spark.model.requests import AcknowledgeType, AnsweredRange, Loss, RetryDelay, Trace, TracedRange
from share_spark.partition import PartitionLimits, SharePartition
from share_spark.partition.backoff import Backoff
from tests.support.answers import answered
from tests.support.examples import examples

KEY = SharePartitionKey("group", "topic-id", 0)
ACCEPT, RELEASE = int(AcknowledgeType.ACCEPT), int(AcknowledgeType.RELEASE)
NOW_MS = 50_000
ANSWERS = [ACCEPT, ACCEPT, ACCEPT, RELEASE, int(AcknowledgeType.GAP), int(AcknowledgeType.REJECT)]
LOSSES = [int(Loss.UNKNOWN), int(Loss.NOT_ENTERED), int(Loss.THROTTLED)]


def rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * 12 + list(others))


@st.composite
def states(draw: st.DrawFn) -> SharePartition:
    """Most have one run or none."""
    start = draw(rarely(10, 0, -1))
    at = max(start + draw(rarely(0, 3, -3)), 0)
    runs: list[InFlightBatch] = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2])) if start >= 0 else 0):
        size = draw(st.integers(1, 4))
        held_by = draw(rarely("me", "other", None))
        state = DeliveryState.ACQUIRED if held_by is not None or at < start else DeliveryState.AVAILABLE
        member = held_by or ("other" if state is DeliveryState.ACQUIRED else None)
        deadline_ms = draw(rarely(NOW_MS + 1, NOW_MS, NOW_MS - 1)) if member else None
        doubt = draw(rarely(Doubt.NONE, Doubt.LOST_ONCE))
        count = draw(st.integers(1, 5))
        excused = draw(rarely(0, count - 1))
        runs.append(InFlightBatch(at, at + size - 1, state, count, member, deadline_ms, doubt, excused))
        at += size + draw(st.integers(1, 2))
    return SharePartition(
        key=KEY,
        state_epoch=draw(st.integers(0, 2)),
        leader_epoch=draw(st.integers(0, 2)),
        snapshot_epoch=draw(st.integers(0, 2)),
        start_offset=start,
        in_flight=tuple(runs),
    )


@st.composite
def answers(draw: st.DrawFn, state: SharePartition) -> Sequence[AnsweredRange]:
    """Most cover what the engine holds, in one range."""
    rows: list[tuple[int, int, int]] = []
    for run in state.in_flight:
        if run.member_id == "me" and draw(rarely(True, False)):
            first = min(run.first_offset + draw(rarely(0, 1)), run.last_offset)
            last = max(run.last_offset - draw(rarely(0, 1)), first)
            if first < last and draw(rarely(False, True)):
                rows.append((first, first, draw(st.sampled_from(ANSWERS))))
                first += 1
            rows.append((first, last, draw(st.sampled_from(ANSWERS + LOSSES))))
    return answered(rows)


@st.composite
def inputs(draw: st.DrawFn, state: SharePartition) -> PartitionInput:
    said = draw(answers(state))
    end = state.end_offset
    return PartitionInput(
        "topic",
        log_start_offset=draw(rarely(0, 9, 10, 11, 13, 20)),
        end_offset=max(end + draw(st.integers(-3, 12)), 0),
        initial_offset=draw(rarely(None, 5)) if state.start_offset >= 0 else draw(st.sampled_from([5, None])),
        acknowledged=said,
        acknowledged_by=draw(rarely(None, "me", "other")),
        release_member=draw(rarely(False, True)),
        max_records=draw(st.sampled_from([0, 1, 3, 5, 100])),
        searched=draw(rarely(Doubt.NONE, Doubt.LOST_TWICE)),
        suspects=draw(rarely(False, True)),
        traces=draw(rarely((), (Trace("me", (TracedRange(0, 99, 1, Loss.FINISHED),)),))),
        truncated_to=draw(rarely(None, max(end - 1, 0))),
        delays=[RetryDelay(said[0].first_offset, said[0].last_offset, 500)]
        if len(said) and draw(rarely(False, True))
        else (),
        ordered=draw(rarely(False, True)),
    )


limits = st.builds(
    PartitionLimits,
    max_record_locks=st.sampled_from([1, 4, 2_000]),
    max_delivery_count=st.sampled_from([1, 5]),
    backoff=st.sampled_from([Backoff(), Backoff(policy=BackoffPolicy.FIXED)]),
)


def said_by(result: StepResult) -> tuple[Any, ...]:
    """All but what was answered, in a form that can be compared."""
    outcome: Sequence[Any] = [
        (one.shape, one.dtype, one.tolist()) if isinstance(one, np.ndarray) else one for one in result.outcome
    ]
    return result.state, type(result.record), result.record, outcome


@settings(max_examples=examples(500), deadline=None)
@given(st.data())
def test_both_ways_come_to_the_same(data: st.DataObject) -> None:
    state = data.draw(states())
    asked, limit = data.draw(inputs(state)), data.draw(limits)
    long = step(KEY, state, asked, limits=limit, member_id="me", now_ms=NOW_MS)
    found = unaudited_step(KEY, state, asked, limits=limit, member_id="me", now_ms=NOW_MS)
    event("the short way" if found.answered == () else "the general way")
    assert said_by(found) == said_by(long)
    assert isinstance(found.state.in_flight, tuple)


def test_the_frequent_case_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was accepted, with more records behind it or none; and the beginning, without a run."""
    monkeypatch.delattr(plain_step, "step")
    terms: dict[str, Any] = {"limits": PartitionLimits(), "member_id": "me", "now_ms": NOW_MS}
    empty = SharePartition(key=KEY, snapshot_epoch=0, start_offset=10)
    begun = unaudited_step(KEY, empty, PartitionInput("t", 0, 30, max_records=5), **terms)
    assert begun.outcome.acquired.tolist() == [[10, 14, 1]]
    said = answered([(10, 14, ACCEPT)])
    further = unaudited_step(KEY, begun.state, PartitionInput("t", 0, 30, acknowledged=said, max_records=5), **terms)
    assert (further.outcome.accepted, further.outcome.acquired.tolist()) == (5, [[15, 19, 1]])
    done = unaudited_step(KEY, begun.state, PartitionInput("t", 0, 15, acknowledged=said, max_records=5), **terms)
    assert (done.outcome.accepted, done.state.start_offset, done.state.in_flight) == (5, 15, ())
