"""Each operation on columns against the same on tuples."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.model.config import BackoffPolicy
from share_spark.model.ids import OffsetRange
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch, ShareRecord, ShareSnapshot
from share_spark.model.requests import (
    Acknowledge,
    Acquire,
    AnsweredRange,
    ExpireLocks,
    LoseAttempts,
    Loss,
    MoveLogStart,
    PartitionRequest,
    PartitionResponse,
    ReleaseMember,
    RetryDelay,
    Trace,
    TracedRange,
    TruncateLog,
)
from share_spark.partition import (
    PartitionLimits,
    SharePartition,
    check_invariants,
    decide,
    evolve,
    take_snapshot,
    waiting,
)
from share_spark.partition.backoff import NO_BACKOFF, Backoff
from share_spark.partition.columns import Columns, as_columns, between, total_offsets, up_to
from share_spark.partition.runs import (
    below_offset,
    chosen,
    first_unfinished,
    from_offset,
    join,
    offsets_by_kind,
    overlay,
    pieces,
    run_at,
    without_finished_below,
)
from share_spark.partition.state import deadlines_ms
from share_spark.state.record_rows import record_array, records_in
from tests.support.examples import examples
from tests.support.share_partition import KEY
from tests.support.window_forms import ALWAYS, NEVER, columns_from

OFFSETS = st.integers(0, 60)
MEMBERS = st.sampled_from(["a", "b"])
Runs = Sequence[InFlightBatch]


@st.composite
def run_lists(draw: st.DrawFn, least: int = 0) -> tuple[InFlightBatch, ...]:
    """Ascending, disjoint; some touch, and some of these could be joined."""
    found, at = [], draw(st.integers(0, 10))
    for _ in range(draw(st.integers(least, 12))):
        first = at + draw(st.integers(0, 2))
        at = first + draw(st.integers(1, 4))
        state = draw(st.sampled_from(DeliveryState))
        owner: tuple[Any, Any] = (
            (draw(MEMBERS), draw(st.integers(1, 2))) if state is DeliveryState.ACQUIRED else (None, None)
        )
        if state is DeliveryState.AVAILABLE and draw(st.integers(0, 3)) == 0:  # delayed
            owner = None, draw(st.integers(1, 2))
        is_plain = state.is_final or (owner[0] is None and owner[1] is not None)
        doubt = Doubt.NONE if is_plain else draw(st.sampled_from([Doubt.NONE, Doubt.NONE, *list(Doubt)[:5]]))
        excused = 0 if state.is_final else draw(st.integers(0, 1))
        found.append(InFlightBatch(first, at - 1, state, draw(st.integers(1, 2)), *owner, doubt, excused))
    return tuple(found)


@given(run_lists(least=1), run_lists(least=1), st.integers(-14, 14), st.integers(-14, 14))
def test_columns_are_a_sequence_equal_to_the_tuple(runs: Runs, others: Runs, begin: int, end: int) -> None:
    columns = as_columns(runs)
    assert (len(columns), tuple(columns), hash(columns)) == (len(runs), runs, hash(runs))
    assert columns == runs
    assert runs == columns
    assert (columns == as_columns(others)) == (columns == others) == (runs == others)
    assert columns[begin:end] == runs[begin:end]
    assert [columns[at] for at in range(-len(runs), len(runs))] == [*runs, *runs]
    assert pickle.loads(pickle.dumps(columns)) == runs
    assert [list(map(type, run)) for run in columns] == [list(map(type, run)) for run in runs]
    with pytest.raises(IndexError):
        columns[len(runs)]


@pytest.mark.parametrize("forms", [(as_columns, tuple), (tuple, as_columns), (as_columns, as_columns)])
@settings(max_examples=examples(300))
@given(base=run_lists(least=1), changes=run_lists(least=1))
def test_overlay(forms: tuple[Callable[..., Runs], Callable[..., Runs]], base: Runs, changes: Runs) -> None:
    base = tuple(join(base))
    found = overlay(forms[0](base), forms[1](changes))
    assert isinstance(found, Columns)
    assert found == tuple(overlay(base, changes))


OPERATIONS: dict[str, Callable[[Runs, int, int], Any]] = {
    "join": lambda runs, _, __: tuple(join(runs)),
    "from_offset": lambda runs, offset, _: tuple(from_offset(runs, offset)),
    "below_offset": lambda runs, offset, _: tuple(below_offset(runs, offset)),
    "without_finished_below": lambda runs, offset, _: tuple(without_finished_below(runs, offset)),
    "pieces": lambda runs, first, last: tuple(pieces(runs, first, last)),
    "run_at": lambda runs, offset, _: run_at(runs, offset),
    "chosen": lambda runs, _, __: tuple(chosen(runs, lambda run: run.member_id == "a")),
    "first_unfinished": lambda runs, _, __: first_unfinished(runs),
    "offsets_by_kind": lambda runs, _, __: sum(size * run.delivery_count for run, size in offsets_by_kind(runs)),
    "total_offsets": lambda runs, _, __: total_offsets(runs),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@given(runs=run_lists(least=1), first=OFFSETS, size=st.integers(0, 30))
def test_operations_on_one_window(
    operation: Callable[[Runs, int, int], Any], runs: Runs, first: int, size: int
) -> None:
    assert operation(as_columns(runs), first, first + size) == operation(runs, first, first + size)


@given(runs=run_lists(least=1), most=st.integers(1, 60))
def test_the_first_offsets(runs: Runs, most: int) -> None:
    offsets = [offset for run in runs for offset in range(run.first_offset, run.last_offset + 1)]
    found = up_to(as_columns(runs), most)
    assert [offset for run in found for offset in range(run.first_offset, run.last_offset + 1)] == offsets[:most]
    assert set(found) <= set(between(as_columns(runs), offsets[0], offsets[:most][-1]))


@st.composite
def ranges(draw: st.DrawFn, row: Callable[..., Any], fields: st.SearchStrategy[Any]) -> tuple[Any, ...]:
    """Ascending; mostly disjoint."""
    found, at = [], draw(OFFSETS) // 2
    for _ in range(draw(st.integers(1, 8))):
        first = at + draw(st.sampled_from([0, 0, 0, 1, 2]))
        last = first + draw(st.integers(0, 4))
        found.append(row(first, last, *draw(fields)))
        at = last + draw(st.sampled_from([1, 1, 1, 1, 1, 0]))
    return tuple(found)


@st.composite
def disjoint(draw: st.DrawFn, row: Callable[..., Any], fields: st.SearchStrategy[Any]) -> tuple[Any, ...]:
    found = draw(ranges(row, fields))
    return tuple(one for at, one in enumerate(found) if at == 0 or found[at - 1][1] < one[0])


TYPES = st.tuples(st.sampled_from([0, 1, 1, 2, 2, 2, 3, 4, 7]))
PLAIN_TYPES = st.tuples(st.sampled_from([0, 1, 2, 3]))
LOSSES = st.tuples(st.sampled_from(Loss))
ENTERED = st.tuples(st.integers(1, 3), st.sampled_from(Loss))
TRACE = st.builds(Trace, MEMBERS, disjoint(TracedRange, ENTERED))
TRACES = st.lists(TRACE, max_size=2, unique_by=lambda trace: trace.member_id).map(tuple)


@st.composite
def answers_to_all(draw: st.DrawFn) -> tuple[AnsweredRange, ...]:
    """One type for every offset from somewhere on."""
    first = draw(st.integers(0, 5))
    types = draw(st.lists(st.sampled_from([1, 2, 2, 3, 0]), min_size=1, max_size=30))
    return tuple(AnsweredRange(first + at, first + at, kind) for at, kind in enumerate(types))


DELAYS = st.just(()) | disjoint(RetryDelay, st.tuples(st.sampled_from([0, 3, 20])))
REQUESTS: st.SearchStrategy[PartitionRequest] = st.one_of(
    st.builds(
        Acquire,
        member_id=MEMBERS,
        max_records=st.integers(1, 40),
        readable=st.builds(OffsetRange, st.just(0) | OFFSETS, st.just(40) | OFFSETS),
        searched=st.sampled_from(list(Doubt)[:5]),
    ),
    st.builds(Acknowledge, member_id=MEMBERS, batches=answers_to_all(), delays=DELAYS),
    st.builds(Acknowledge, member_id=MEMBERS, batches=ranges(AnsweredRange, PLAIN_TYPES), delays=DELAYS),
    st.builds(Acknowledge, member_id=MEMBERS, batches=ranges(AnsweredRange, TYPES)),
    st.builds(LoseAttempts, member_id=MEMBERS, ranges=disjoint(AnsweredRange, LOSSES)),
    st.builds(ReleaseMember, member_id=MEMBERS, charged=st.booleans()),
    st.just(ExpireLocks()),
    st.builds(
        ExpireLocks,
        lost=st.just(True),
        traces=st.lists(
            st.builds(Trace, MEMBERS, disjoint(TracedRange, ENTERED)), max_size=2, unique_by=lambda t: t[0]
        ).map(tuple),
    ),
    st.builds(MoveLogStart, log_start_offset=OFFSETS.map(lambda offset: offset // 3), pass_finished=st.booleans()),
    st.builds(TruncateLog, end_offset=OFFSETS),
)
STEPS = st.lists(st.tuples(st.integers(0, 6), st.lists(REQUESTS, min_size=1, max_size=3)), max_size=12)
LIMITS = PartitionLimits(max_delivery_count=3, max_record_locks=50, lock_duration_ms=10)
BACKOFFS = [
    NO_BACKOFF,
    Backoff(policy=BackoffPolicy.FIXED, delay_ms=5),
    Backoff(policy=BackoffPolicy.EXPONENTIAL, delay_ms=4, max_delay_ms=9, jitter=0.5),
]

Decided = tuple[ShareRecord | None, tuple[PartitionResponse, ...], SharePartition]


def in_columns(request: PartitionRequest) -> PartitionRequest:
    """With its ranges as columns."""
    if isinstance(request, Acknowledge) and request.batches:
        delays = as_columns(request.delays) if request.delays else ()
        return Acknowledge(member_id=request.member_id, batches=as_columns(request.batches), delays=delays)
    if isinstance(request, LoseAttempts) and request.ranges:
        return LoseAttempts(member_id=request.member_id, ranges=as_columns(request.ranges))
    return request


def decided(steps: list[tuple[int, list[PartitionRequest]]], backoff: Backoff) -> list[Decided]:
    state, now_ms, found = evolve(None, take_snapshot(SharePartition(key=KEY, start_offset=0))), 0, list[Decided]()
    for ms, requests in steps:
        now_ms += ms
        decision = decide(state, requests, replace(LIMITS, backoff=backoff), now_ms)
        state = state if decision.record is None else evolve(state, decision.record)
        check_invariants(state)
        found.append((decision.record, decision.responses, state))
    return found


@settings(max_examples=examples(500), deadline=None)
@given(STEPS, st.sampled_from(BACKOFFS))
def test_the_same_requests_lead_to_the_same_records_answers_and_states(
    steps: list[tuple[int, list[PartitionRequest]]], backoff: Backoff
) -> None:
    with columns_from(NEVER):
        expected = decided(steps, backoff)
    with columns_from(ALWAYS):
        found = decided([(ms, [in_columns(request) for request in requests]) for ms, requests in steps], backoff)
        assert found == expected
        assert [(waiting(state), deadlines_ms(state)) for _, _, state in found] == [
            (waiting(state), deadlines_ms(state)) for _, _, state in expected
        ]


def snapshot_of(batches: Runs) -> ShareSnapshot:
    return ShareSnapshot(key=KEY, snapshot_epoch=1, state_epoch=2, leader_epoch=3, start_offset=4, batches=batches)


def ipc_bytes(rows: pa.StructArray) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.RecordBatch.from_struct_array(rows)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_batch(table)
    return sink.getvalue().to_pybytes()


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(run_lists(), st.booleans()), min_size=1, max_size=5))
def test_log_rows_are_the_same_bytes_and_are_read_as_the_same_records(windows: list[tuple[Runs, bool]]) -> None:
    tuples = [("t", snapshot_of(runs)) for runs, _ in windows]
    mixed = [("t", snapshot_of(as_columns(runs) if runs and many else runs)) for runs, many in windows]
    rows = record_array(mixed)
    assert ipc_bytes(rows) == ipc_bytes(record_array(tuples))
    table = pa.table(rows.flatten(), names=rows.type.names)
    for least in (ALWAYS, 5, NEVER):
        with columns_from(least):
            assert list(records_in(table, KEY.group_id)) == tuples
