"""A restart: the state as the files of the log have it, without Spark, whatever has been done to them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from share_spark.delta import table_log
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog
from share_spark.model.errors import StateError
from share_spark.spark.public_files import LocalFiles
from share_spark.state import direct_rows
from share_spark.state.direct_rows import _in_order, _Part, rows_by_batch
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from tests.support.group_details import run
from tests.support.state_logs import StateLog, snapshot, update

MICRO_BATCHES = 12


@pytest.fixture
def log(tmp_path: Path, row_form: str) -> StateLog:
    """Two share-partitions; each micro-batch acquires one more record of the first."""
    log = StateLog(tmp_path)
    log.claim()
    log.records(snapshot(0), snapshot(7, partition=1))
    for offset in range(MICRO_BATCHES):
        log.records(update(-1, run("Q", offset, offset)))
    return log


def store_of(log: StateLog, run_id: str = "new") -> DeltaShareStateStore:
    group = GroupLog(spark=None, location=Location.parse(log.location), group_id=log.group_id, run_id=run_id)
    return DeltaShareStateStore(log=group, updates_per_snapshot=500)


def ends(store: DeltaShareStateStore) -> dict[int, tuple[int, int]]:
    """By partition, its SPSO and SPEO."""
    store.claim()
    return {key.partition: (found.start_offset, found.end_offset) for key, found in store.load().items()}


EXPECTED = {0: (0, MICRO_BATCHES), 1: (7, 7)}


def test_the_topics_and_the_state_are_read_once(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def noted(*given: object) -> object:
        reads.append(given)
        return rows_by_batch(*given)

    monkeypatch.setattr("share_spark.state.group_log.rows_by_batch", noted)
    store = store_of(log)
    assert set(store.known_topics()) == {("orders", "id of orders")}
    assert ends(store) == EXPECTED
    assert len(reads) == 1


def test_what_was_committed_between_the_look_and_the_claim_counts(log: StateLog) -> None:
    store = store_of(log)
    store.known_topics()
    log.records(update(-1, run("Q", MICRO_BATCHES, MICRO_BATCHES)))
    assert ends(store) == {0: (0, MICRO_BATCHES + 1), 1: (7, 7)}
    assert store.last_counted == (1, log.batch_id)


def test_what_a_fenced_engine_commits_after_the_claim_does_not_count(log: StateLog) -> None:
    store = store_of(log)
    store.claim()
    log.records(update(-1, run("Q", MICRO_BATCHES, MICRO_BATCHES)))
    assert {key.partition: found.end_offset for key, found in store.load().items()} == {0: MICRO_BATCHES, 1: 7}


def test_files_that_others_have_joined(log: StateLog) -> None:
    """The rows of a segment in one file, in any order."""
    DeltaTable(log.directory).optimize.compact()
    assert len(DeltaTable(log.directory).file_uris()) == 1
    assert ends(store_of(log)) == EXPECTED


def test_a_table_with_a_large_checkpoint(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are not kept in memory, and looked up for the restart alone."""
    DeltaTable(log.directory).create_checkpoint()
    monkeypatch.setattr(table_log, "_MOST_WITH_FILES", 1)
    store = store_of(log)
    assert ends(store) == EXPECTED
    assert store.log.table_log is not None
    assert not store.log.table_log.keeps_files


def test_a_file_that_is_gone_is_a_damaged_log(log: StateLog) -> None:
    log.segment = 5
    log.records(snapshot(3))
    table = TableLog.open(CommitFiles(LocalFiles(), log.directory), keeps_files=True)
    (path,) = (path for path, file in table.active.items() if file.values["segment"] == "5")
    DeltaTable(log.directory).delete("segment = 5")
    Path(log.directory, path).unlink()
    with pytest.raises(StateError, match="damaged"):
        ends(store_of(log))


def test_rows_come_some_at_a_time(log: StateLog, row_form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim, which has no micro-batch, does not make all of them one. The notes of a segment are read together."""
    sizes = []

    def noted(parts: object) -> object:
        for together in _in_order(parts):
            sizes.append(len(together))
            yield together

    monkeypatch.setattr(direct_rows, "_in_order", noted)
    assert ends(store_of(log)) == EXPECTED
    assert sizes == [1] * (MICRO_BATCHES + 1 if row_form == "files" else 2)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=12))
def test_parts_are_read_together_only_where_they_overlap(bounds: list[tuple[int, int]]) -> None:
    parts = [_Part(first, first + more, 0, pa.null(), number) for number, (first, more) in enumerate(bounds)]
    groups = list(_in_order(parts))
    assert sorted(part.number for group in groups for part in group) == list(range(len(parts)))
    for before, after in itertools.pairwise(groups):
        assert max(part.last for part in before) <= min(part.first for part in after)
    for group in groups:
        for part in group[1:]:
            assert any(part.first < other.last for other in group if other is not part)
