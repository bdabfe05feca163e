"""Rows in the notes of commits: whoever writes, files, cleans up or reads a table, no row is lost or seen twice."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends, MovedError
from share_spark.delta.direct_metadata import create_table
from share_spark.delta.log_clean_up import remove_old_versions
from share_spark.delta.native_changes import write_natively
from share_spark.delta.noted_rows import file_noted_rows, note_with_rows
from share_spark.delta.own_checkpoints import write_own_checkpoint
from share_spark.delta.table_log import TableLog
from share_spark.spark.public_files import LocalFiles
from tests.support.examples import examples

COLUMNS = StructType(
    [
        StructField("place", StringType()),
        StructField("part", IntegerType()),
        StructField("n", LongType()),
        StructField("word", StringType()),
    ]
)


def opened(place: Path) -> DirectAppends:
    files = CommitFiles(LocalFiles(), str(place))
    if not files.is_table():
        create_table(files, COLUMNS.json(), partitioned_by=["place", "part"])
    return DirectAppends(directory=str(place), log=TableLog.open(files, keeps_files=True))


def note(appends: DirectAppends, *numbers: int, place: str = "a", part: int = 1) -> int:
    fields = {"place": place, "part": part, "word": "noted"}
    return appends.commit([], note=note_with_rows(fields, [{"n": number} for number in numbers]))


def add(appends: DirectAppends, *numbers: int, place: str = "a", part: int = 1) -> int:
    rows = pa.table({"n": pa.array(numbers, pa.int64()), "word": ["filed"] * len(numbers)})
    return appends.commit([appends.write(rows, {"place": place, "part": str(part)})])


def begun(place: Path) -> DirectAppends:
    """Its partition has a file, with row 0."""
    appends = opened(place)
    add(appends, 0)
    return appends


def drop(appends: DirectAppends, place: str) -> None:
    appends.commit([], replaced=lambda _, values: values["place"] == place, operation="DELETE", blind=False)


def rows_in(log: TableLog) -> Counter[int]:
    """All rows, by the files of all rows."""
    return Counter(number for path in log.row_files for number in log.data_file(path).read(["n"])["n"].to_pylist())


def in_files(place: Path) -> Counter[int]:
    """What other programs see."""
    return Counter(DeltaTable(str(place)).to_pyarrow_table()["n"].to_pylist())


def reopened(appends: DirectAppends, version: int | None = None) -> TableLog:
    return TableLog.open(appends.log.files, keeps_files=True, version=version)


def made_old(place: Path) -> int:
    """All that is there was written long ago; a time after that."""
    for path in place.rglob("*"):
        os.utime(path, (1_000, 1_000))
    return 2_000_000


def test_rows_of_notes_are_read_beside_those_of_files_and_other_programs_see_them_once_they_are_filed(
    tmp_path: Path,
) -> None:
    appends = begun(tmp_path)
    add(appends, 1, part=2)
    note(appends, 2, 3)
    note(appends, 4, part=2)
    assert rows_in(appends.log) == rows_in(reopened(appends)) == Counter(range(5))
    assert in_files(tmp_path) == Counter([0, 1])
    assert file_noted_rows(opened(tmp_path)) == 3
    appends.log.refresh()
    assert not appends.log.noted
    assert rows_in(appends.log) == in_files(tmp_path) == Counter(range(5))
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("n").to_pylist()
    assert [(row["n"], row["place"], row["part"], row["word"]) for row in found] == [
        (0, "a", 1, "filed"),
        (1, "a", 2, "filed"),
        (2, "a", 1, "noted"),
        (3, "a", 1, "noted"),
        (4, "a", 2, "noted"),
    ]
    assert file_noted_rows(opened(tmp_path)) == 0


def before_next_write(patch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Something happens when the next file is about to be written."""
    write = DirectAppends.write

    def beside(appends: DirectAppends, rows: pa.Table, values: dict[str, str | None]) -> DataFile:
        patch.setattr(DirectAppends, "write", write)
        happens()
        return write(appends, rows, values)

    patch.setattr(DirectAppends, "write", beside)


def test_rows_that_were_noted_while_others_were_filed_stay_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = begun(tmp_path)
    note(appends, 1)
    before_next_write(monkeypatch, lambda: note(appends, 2))
    assert file_noted_rows(opened(tmp_path)) == 1
    assert in_files(tmp_path) == Counter([0, 1])
    assert rows_in(reopened(appends)) == Counter([0, 1, 2])
    assert [one.rows for one in reopened(appends).noted] == [[{"n": 2}]]


def test_of_two_that_file_at_once_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appends, one, two = begun(tmp_path), opened(tmp_path), opened(tmp_path)
    note(appends, 1)
    before_next_write(monkeypatch, lambda: file_noted_rows(two))
    with pytest.raises(MovedError):
        file_noted_rows(one)
    assert in_files(tmp_path) == rows_in(reopened(appends)) == Counter([0, 1])


def test_whoever_dies_between_the_file_and_its_commit_has_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = begun(tmp_path)
    note(appends, 1)

    def dies(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DirectAppends, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            file_noted_rows(opened(tmp_path))
    assert rows_in(reopened(appends)) == Counter([0, 1])
    assert file_noted_rows(opened(tmp_path)) == 1
    assert in_files(tmp_path) == Counter([0, 1])


@pytest.mark.parametrize("by_others", [False, True])
def test_a_checkpoint_after_a_note_does_not_hide_its_rows(tmp_path: Path, by_others: bool) -> None:
    appends = begun(tmp_path)
    note(appends, 1)
    note(appends, 2)
    assert write_natively(reopened(appends)) if by_others else write_own_checkpoint(appends.log.files)
    assert reopened(appends).is_checkpointed
    assert rows_in(reopened(appends)) == Counter([0, 1, 2])
    note(appends, 3)
    assert rows_in(reopened(appends)) == Counter([0, 1, 2, 3])


def test_commits_stay_until_their_rows_are_in_files(tmp_path: Path) -> None:
    appends = opened(tmp_path)
    for number in range(5):
        add(appends, number)
    first = note(appends, 5)
    note(appends, 6)
    write_own_checkpoint(appends.log.files)
    before_ms = made_old(tmp_path)
    note(appends, 7)
    assert remove_old_versions(reopened(appends), before_ms) == first
    assert rows_in(reopened(appends)) == Counter(range(8))
    file_noted_rows(opened(tmp_path))
    write_own_checkpoint(appends.log.files)
    assert remove_old_versions(reopened(appends), int(time.time() * 1_000) + 60_000) == 3
    assert rows_in(reopened(appends)) == in_files(tmp_path) == Counter(range(8))


def test_rows_noted_after_a_clean_up_are_looked_for_only_from_there_on(tmp_path: Path) -> None:
    appends = begun(tmp_path)
    note(appends, 1)
    file_noted_rows(opened(tmp_path))
    appends.log.refresh()
    for number in range(2, 4):
        add(appends, number)
    write_own_checkpoint(appends.log.files)
    remove_old_versions(reopened(appends), made_old(tmp_path))
    note(appends, 4)
    write_own_checkpoint(appends.log.files)
    assert rows_in(reopened(appends)) == Counter(range(5))


def test_rows_whose_commits_somebody_has_removed_are_gone_all_together(tmp_path: Path) -> None:
    """A reader of the state log then misses the last micro-batch, and says so."""
    appends = opened(tmp_path)
    add(appends, 0)
    removed = note(appends, 1)
    note(appends, 2)
    write_own_checkpoint(appends.log.files)
    appends.log.files.remove(removed)
    assert rows_in(reopened(appends)) == Counter([0])


def test_a_partition_that_is_dropped_loses_the_rows_of_its_notes_too(tmp_path: Path) -> None:
    appends = opened(tmp_path)
    add(appends, 1, place="a")
    add(appends, 2, place="b")
    note(appends, 3, place="a")
    note(appends, 4, place="b")
    drop(appends, "a")
    assert rows_in(appends.log) == rows_in(reopened(appends)) == Counter([2, 4])
    file_noted_rows(opened(tmp_path))
    assert in_files(tmp_path) == Counter([2, 4])


def test_joined_files_leave_the_notes_of_their_partition(tmp_path: Path) -> None:
    appends = opened(tmp_path)
    add(appends, 1)
    add(appends, 2)
    note(appends, 3)
    DeltaTable(str(tmp_path)).optimize.compact()
    assert rows_in(reopened(appends)) == Counter([1, 2, 3])


def test_a_restored_table_does_not_have_the_rows_of_later_notes(tmp_path: Path) -> None:
    appends = opened(tmp_path)
    version = add(appends, 1)
    note(appends, 2)
    DeltaTable(str(tmp_path)).restore(version)
    assert rows_in(reopened(appends)) == Counter([1])
    write_own_checkpoint(appends.log.files)
    assert rows_in(reopened(appends)) == Counter([1])


def test_a_note_that_another_writer_has_overwritten_is_made_again(tmp_path: Path) -> None:
    appends, other = begun(tmp_path), opened(tmp_path)
    version = note(appends, 1)
    log = tmp_path / "_delta_log"
    file = other.write(pa.table({"n": pa.array([9], pa.int64()), "word": ["x"]}), {"place": "b", "part": "1"})
    lines = [{"commitInfo": {"operation": "WRITE", "isBlindAppend": True}}, file.to_action(1)]
    (log / "aside").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (log / "aside").rename(log / f"{version:020d}.json")
    note(appends, 2)
    assert rows_in(reopened(appends)) == Counter([9, 0, 1, 2])


@pytest.mark.parametrize(
    "text", ["{}", "rows", '{"rows":[1', '{"rows":{"n":1}}', '{"other":"\\"rows\\":["}', '{"n":1,"rows":[]}']
)
def test_notes_of_others_are_no_rows(tmp_path: Path, text: str) -> None:
    appends = opened(tmp_path)
    appends.commit([], note=text)
    assert not rows_in(reopened(appends))


class Notes(RuleBasedStateMachine):
    """Writers that have looked at different times, who files, cleans up and drops; the model has the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.place = Path(self.directory.name)
        self.writers = [opened(self.place) for _ in range(3)]
        self.parts = {"a": 0, "b": 0}
        self.rows: dict[tuple[str, int], list[int]] = {}
        self.at_version: dict[int, Counter[int]] = {}
        self.next = 0

    def teardown(self) -> None:
        self.directory.cleanup()

    def _numbers(self, count: int, place: str) -> list[int]:
        numbers = list(range(self.next, self.next + count))
        self.next += count
        self.rows.setdefault((place, self.parts[place]), []).extend(numbers)
        return numbers

    @rule(writer=st.integers(0, 2), count=st.integers(1, 3), place=st.sampled_from("ab"))
    def notes(self, writer: int, count: int, place: str) -> None:
        if (place, self.parts[place]) not in self.rows:
            self.adds(writer, place)
        note(self.writers[writer], *self._numbers(count, place), place=place, part=self.parts[place])

    @rule(writer=st.integers(0, 2), place=st.sampled_from("ab"))
    def adds(self, writer: int, place: str) -> None:
        add(self.writers[writer], *self._numbers(1, place), place=place, part=self.parts[place])

    @rule(place=st.sampled_from("ab"))
    def begins_a_partition(self, place: str) -> None:
        self.parts[place] += 1

    @rule(writer=st.integers(0, 2))
    def files(self, writer: int) -> None:
        file_noted_rows(self.writers[writer])

    @rule(place=st.sampled_from("ab"))
    @precondition(lambda self: self.rows)
    def drops(self, place: str) -> None:
        """All partitions of a place; the next one has another number."""
        drop(opened(self.place), place)
        self.rows = {key: numbers for key, numbers in self.rows.items() if key[0] != place}
        self.parts[place] += 1

    @rule(own=st.booleans())
    def checkpoints(self, own: bool) -> None:
        log = opened(self.place).log
        assert write_own_checkpoint(log.files) if own else write_natively(log)

    @rule()
    def cleans_up(self) -> None:
        remove_old_versions(opened(self.place).log, made_old(self.place))
        self.at_version = {}

    @rule(writer=st.integers(0, 2))
    def begins_anew(self, writer: int) -> None:
        self.writers[writer] = opened(self.place)

    @invariant()
    def all_readers_find_the_rows(self) -> None:
        wanted = Counter(number for numbers in self.rows.values() for number in numbers)
        log = opened(self.place).log
        noted = Counter(row["n"] for one in log.counting_notes() for row in one.rows)
        assert rows_in(log) == in_files(self.place) + noted == wanted
        self.at_version[log.version] = wanted
        for writer in self.writers:
            writer.log.refresh()
            assert rows_in(writer.log) == wanted

    @rule()
    def looks_back(self) -> None:
        for version, wanted in self.at_version.items():
            assert rows_in(reopened(self.writers[0], version)) == wanted


Notes.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestNotes = Notes.TestCase
