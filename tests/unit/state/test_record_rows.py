"""Records as Arrow rows of the log, and back; states folded from such rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.engine.attempts import EndedAttempt, ErrorRun, ended_attempts
from share_spark.engine.step import PartitionInput, step
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch, ShareRecord, ShareSnapshot, ShareUpdate
from share_spark.model.requests import Loss
from share_spark.partition import PartitionLimits, evolve
from share_spark.state.commits import CommitNote
from share_spark.state.direct_rows import FOLDED_SCHEMA, in_columns
from share_spark.state.fold import fold_rows
from share_spark.state.log_rows import claim_table, record_table
from share_spark.state.record_rows import RECORD_TYPE, record_array, records_in
from tests.support.answers import answered

pytestmark = pytest.mark.usefixtures("window_form")

KEY = SharePartitionKey("g", "tid", 0)
COUNTS = st.integers(0, 2**15 - 1)


@st.composite
def batches(draw: st.DrawFn) -> tuple[InFlightBatch, ...]:
    """Ascending, disjoint ranges; an Acquired one has an owner and a deadline, an Available one may be delayed."""
    found, at = [], draw(st.integers(0, 2**62))
    for _ in range(draw(st.integers(0, 5))):
        first = at + draw(st.integers(0, 3))
        last = first + draw(st.integers(0, 1_000))
        state = draw(st.sampled_from(DeliveryState))
        held = state is DeliveryState.ACQUIRED
        member_id, deadline_ms = (draw(st.text(max_size=5)), draw(st.integers(0, 2**62))) if held else (None, None)
        if state is DeliveryState.AVAILABLE:
            deadline_ms = draw(st.none() | st.integers(0, 2**62))
        doubt = Doubt.NONE if state.is_final else draw(st.sampled_from(Doubt))
        excused = 0 if state.is_final else draw(st.just(0) | COUNTS)
        found.append(InFlightBatch(first, last, state, draw(COUNTS), member_id, deadline_ms, doubt, excused))
        at = last + 1
    return tuple(found)


KEYS = st.builds(SharePartitionKey, st.just("g"), st.text(min_size=1, max_size=5), st.integers(0, 2**31 - 1))
EPOCHS = st.integers(-1, 2**31 - 1)
COMMON = {
    "key": KEYS,
    "snapshot_epoch": EPOCHS,
    "leader_epoch": EPOCHS,
    "start_offset": st.integers(-1, 2**62),
    "batches": batches(),
}
RECORDS = st.one_of(st.builds(ShareSnapshot, state_epoch=EPOCHS, **COMMON), st.builds(ShareUpdate, **COMMON))


def table(records: list[tuple[str, ShareRecord]]) -> pa.Table:
    rows = record_array(records)
    assert rows.type == RECORD_TYPE
    return pa.table(rows.flatten(), names=[field.name for field in RECORD_TYPE])


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), RECORDS), min_size=1, max_size=5))
def test_records_survive_the_log(records: list[tuple[str, ShareRecord]]) -> None:
    assert list(records_in(table(records), "g")) == records


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), RECORDS), min_size=2, max_size=6), st.data())
def test_rows_in_several_chunks_or_sliced_read_the_same(
    records: list[tuple[str, ShareRecord]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(records) - 1))
    chunked = pa.concat_tables([table(records[:cut]), table(records[cut:])])
    assert list(records_in(chunked, "g")) == records
    assert list(records_in(table(records).slice(cut), "g")) == records[cut:]


def snapshot(start: int, *batches: InFlightBatch, epoch: int = 0) -> ShareSnapshot:
    return ShareSnapshot(
        key=KEY, snapshot_epoch=epoch, state_epoch=0, leader_epoch=0, start_offset=start, batches=batches
    )


def update(start: int, *batches: InFlightBatch, epoch: int = 0) -> ShareUpdate:
    return ShareUpdate(key=KEY, snapshot_epoch=epoch, leader_epoch=0, start_offset=start, batches=batches)


def test_rows_are_folded_by_batch_whatever_their_order_in_the_files() -> None:
    """R74, R85: an update of another snapshot epoch is ignored."""
    held = InFlightBatch(0, 4, DeliveryState.ACQUIRED, 1, "m", 9)
    history = [(2, update(5)), (0, snapshot(0)), (3, update(99, epoch=7)), (1, update(-1, held))]
    rows = table([("orders", record) for _, record in history])
    rows = rows.append_column("batch_id", pa.array([batch for batch, _ in history]))
    topic, state = fold_rows(rows, "g")[KEY]
    assert (topic, state.start_offset, state.in_flight) == ("orders", 5, ())


def test_the_audit_column_says_how_attempts_ended() -> None:
    """Empty unless asked for; the reason of what was archived comes with it."""
    state = evolve(
        None, ShareSnapshot(key=KEY, snapshot_epoch=0, state_epoch=0, leader_epoch=0, start_offset=0, batches=())
    )
    limits = PartitionLimits(max_delivery_count=1)
    got = step(KEY, state, PartitionInput("t", 0, 5, max_records=5), limits=limits, member_id="m", now_ms=0)
    said = answered([(0, 0, 1), (1, 1, 3), (2, 2, 2), (3, 4, 1)])
    after = step(KEY, got.state, PartitionInput("t", 0, 5, acknowledged=said), limits=limits, member_id="m", now_ms=1)
    ended = ended_attempts(after.answered)
    assert ended == [
        EndedAttempt(0, 0, 1, "accepted"),
        EndedAttempt(1, 1, 1, "rejected"),
        EndedAttempt(2, 2, 1, "delivery limit reached"),
        EndedAttempt(3, 4, 1, "accepted"),
    ]
    assert after.record is not None
    rows = record_array([("t", after.record)], [ended]).field("ended").to_pylist()
    assert [one["outcome"] for one in rows[0]] == ["accepted", "rejected", "delivery limit reached", "accepted"]
    assert record_array([("t", after.record)]).field("ended").to_pylist() == [[]]


def test_why_attempts_failed_is_a_column_of_its_own_and_cuts_what_ended_alike() -> None:
    """Only what answers said of their own offsets; a file without any has no such column."""
    attempts = [EndedAttempt(0, 4, 1, "accepted"), EndedAttempt(5, 6, 2, "released", "busy")]
    record = update(9)
    rows = record_array([("t", record), ("t", record)], [attempts, []])
    assert rows.field("errors").to_pylist() == [
        [{"first_offset": 5, "last_offset": 6, "delivery_count": 2, "error": "busy"}],
        [],
    ]
    note = CommitNote("g", "records", 1, "run", 0, 0, 0)
    assert "errors" in record_table(rows, note, None).column_names
    assert "errors" not in record_table(record_array([("t", record)], [attempts[:1]]), note, None).column_names
    assert "errors" not in claim_table(note).column_names


@pytest.mark.parametrize("excused", [0, 3])
def test_only_a_file_with_excused_deliveries_has_their_column(excused: int) -> None:
    record = update(9, InFlightBatch(9, 9, DeliveryState.AVAILABLE, 4, excused=excused))
    rows = record_table(record_array([("t", record)]), CommitNote("g", "records", 1, "run", 0, 0, 0), None)
    assert ("excused" in rows.column_names) == bool(excused)
    ((_, read),) = records_in(in_columns(rows, FOLDED_SCHEMA), "g")
    assert read == record


def test_attempts_are_cut_where_their_errors_change() -> None:
    state = evolve(
        None, ShareSnapshot(key=KEY, snapshot_epoch=0, state_epoch=0, leader_epoch=0, start_offset=0, batches=())
    )
    limits = PartitionLimits(max_delivery_count=5)
    got = step(KEY, state, PartitionInput("t", 0, 12, max_records=12), limits=limits, member_id="m", now_ms=0)
    losses = [(5, 6, Loss.FINISHED), (7, 8, Loss.AMONG_OTHERS), (9, 10, Loss.THROTTLED), (11, 11, Loss.NOT_ENTERED)]
    wanted = PartitionInput("t", 0, 12, acknowledged=answered([(0, 3, 2), (4, 4, 1), *losses]))
    after = step(KEY, got.state, wanted, limits=limits, member_id="m", now_ms=1)
    errors = [ErrorRun(1, 1, "busy"), ErrorRun(2, 2, "gone"), ErrorRun(5, 5, "output lost"), ErrorRun(9, 9, "429")]
    assert sorted(ended_attempts(after.answered, errors)) == [
        EndedAttempt(0, 0, 1, "released"),
        EndedAttempt(1, 1, 1, "released", "busy"),
        EndedAttempt(2, 2, 1, "released", "gone"),
        EndedAttempt(3, 3, 1, "released"),
        EndedAttempt(4, 4, 1, "accepted"),
        EndedAttempt(5, 5, 1, "lost", "output lost"),
        EndedAttempt(6, 6, 1, "lost", "the handler was done with it, and the answer was lost with a worker"),
        EndedAttempt(7, 8, 1, "lost", "a worker died while its handler had this record"),
        EndedAttempt(9, 9, 1, "throttled", "429"),
        EndedAttempt(10, 10, 1, "throttled"),
        EndedAttempt(11, 11, 1, "not entered"),
    ]
