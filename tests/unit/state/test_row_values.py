"""Rows for the notes of commits are the rows of files, in another form."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.coordinator.group import GroupRecord
from share_spark.coordinator.group.records import RecordKey, RecordKind, Tombstone
from share_spark.delta.noted_rows import NotedRows, noted_rows, table_of
from share_spark.engine.attempts import EndedAttempt
from share_spark.model.records import ShareRecord
from share_spark.state.commits import CommitNote
from share_spark.state.live_state import rows_of
from share_spark.state.log_rows import LOG_SCHEMA, group_row_values, record_table, stamp_values
from share_spark.state.row_values import share_values
from tests.unit.state.test_record_rows import RECORDS

pytestmark = pytest.mark.usefixtures("window_form")

NOTE = CommitNote("group", "records", 7, "run", 3, 11, 1_763_820_000_000)
ENDED = st.builds(
    EndedAttempt,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**15 - 1),
    st.sampled_from(["accepted", "released", "lost"]),
    st.none() | st.text(max_size=20),
)
GROUP_RECORDS = st.lists(
    st.builds(Tombstone, key=st.builds(RecordKey, st.sampled_from(RecordKind), st.just("group"), st.text(max_size=3))),
    max_size=2,
)
WRITTEN = st.tuples(st.text(max_size=5), RECORDS, st.lists(ENDED, max_size=3).map(tuple))


def parsed(text: str) -> NotedRows:
    found = noted_rows(8, text, ["group_id", "segment"])
    assert found is not None
    return found


@settings(deadline=None)
@given(st.lists(WRITTEN, min_size=1, max_size=4), GROUP_RECORDS, st.none() | st.text(max_size=5))
def test_a_note_has_the_rows_that_a_file_would_have(
    written: list[tuple[str, ShareRecord, tuple[EndedAttempt, ...]]],
    group_records: list[GroupRecord],
    query_id: str | None,
) -> None:
    of_group = [group_row_values(group_records, is_snapshot=False)] if group_records else []
    text = NOTE.with_rows([*(share_values(*one) for one in written), *of_group], stamp_values(query_id))
    found = parsed(text)
    assert found.values == {"group_id": "group", "segment": "3"}
    assert CommitNote.from_json(text) == NOTE
    records, ended = [one[:2] for one in written], [one[2] for one in written]
    wanted = record_table(rows_of(records, group_records, ended, is_snapshot=False), NOTE, query_id)
    assert _plain(table_of([found], LOG_SCHEMA)) == _plain(wanted)


def _plain(rows: pa.Table) -> list[dict[str, object]]:
    """Without the time of writing; an empty list and none are the same to readers."""
    return [
        {name: value for name, value in row.items() if value not in ([], None) and name != "written_at"}
        for row in rows.to_pylist()
    ]


def test_the_time_of_writing_is_a_timestamp() -> None:
    text = NOTE.with_rows([{"kind": "ShareUpdate"}], {"written_at": 1_763_820_000_000_001})
    (row,) = table_of([parsed(text)], LOG_SCHEMA).to_pylist()
    assert row["written_at"].isoformat() == "2025-11-22T14:00:00.000001+00:00"
    assert json.loads(text)["share_spark"] == 1
