"""The ledger of a companion: blocks of several hand-overs at a time, in files that follow one another."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_spark.companion.ledger import CallBlock, CompanionLedger, cell_value_of_list
from share_spark.delivery.arrow_stream import stream_of
from share_spark.delivery.ledger import CallStatus, cell_of, read_entries
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.traces import codes_of, left_calls, member_traces
from share_spark.delivery.truncations import note_truncations, truncations_in
from share_spark.model.errors import StateError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss
from tests.support.small_disk import fill, small_disk
from tests.unit.delivery.test_calling import batch_of

AT = TopicPartition("orders", 0)
SMALL = 8_192
"""Two blocks."""

Said = dict[tuple[int, int], tuple[int, str | None, int | None]]
"""By hand-over and offset: status, error and delay."""


def files_in(directory: Path) -> list[Path]:
    return sorted((file for file in directory.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


def said_in(directory: Path, number_of: dict[int, int]) -> Said:
    """What the files say; ``number_of``: the hand-over of each partition."""
    found: Said = {}
    for entries in map(read_entries, files_in(directory)):
        for row, place in enumerate(zip(entries.partition.tolist(), entries.offset.tolist(), strict=True)):
            key = (number_of[place[0]], place[1])
            found[key] = (int(entries.status[row]), entries.errors.get(row), entries.delays.get(row))
    return found


class Written:
    """A ledger, and what it was told. Each block has a partition of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = CompanionLedger(directory / "0", SMALL)
        self.blocks: list[tuple[int, CallBlock, int]] = []
        self.said: Said = {}
        self.number_of: dict[int, int] = {}

    def begin(self, number: int, rows: int) -> None:
        partition = len(self.number_of)
        self.number_of[partition] = number * 1_000 + partition
        block = self.ledger.begin(number, batch_of(rows, partition=pa.array([partition] * rows, pa.int32())))
        self.blocks.append((number, block, partition))
        self.said |= {(self.number_of[partition], offset): (0, None, None) for offset in range(rows)}

    def answer(self, at: int, status: int, error: str | None, delay_ms: int | None) -> None:
        if not self.said:
            return
        place, offset = sorted(self.said)[at % len(self.said)]
        _, block, _ = next(one for one in self.blocks if self.number_of[one[2]] == place)
        if self.said[place, offset][0]:
            return
        block.note(offset, error, delay_ms)
        block.status[offset] = status
        self.said[place, offset] = (status, error, delay_ms)

    def forget(self, number: int) -> None:
        self.ledger.forget(number)
        self.blocks = [one for one in self.blocks if one[0] != number]
        self.said = {key: said for key, said in self.said.items() if key[0] // 1_000 != number}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 6), st.integers(1, 5)),
        st.tuples(
            st.just("answer"),
            st.integers(0, 50),
            st.sampled_from([CallStatus.ACCEPTED, CallStatus.RELEASED, CallStatus.REJECTED]),
            st.none() | st.text(max_size=9),
            st.none() | st.integers(0, 10**6),
        ),
        st.tuples(st.just("forget"), st.integers(1, 6)),
    ),
    max_size=60,
)


@given(STEPS)
def test_what_was_said_of_hand_overs_that_are_not_forgotten_is_read(steps: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        written = Written(Path(directory))
        for kind, *arguments in steps:
            getattr(written, kind)(*arguments)
        found = said_in(Path(directory), written.number_of)
        assert {key: found.get(key) for key in written.said} == written.said
        assert written.said or not found
        written.ledger.close()
        assert said_in(Path(directory), written.number_of) == found
        of_file = Counter(file.name.partition(".")[0] for file in Path(directory).iterdir())
        assert set(of_file) == {file.name for file in files_in(Path(directory))}, "nothing is left of a file"


class Truncated:
    """A ledger of hand-overs of one partition, whose log is truncated now and then. ``entered``: the status by
    hand-over and offset, of records that were not cut off."""

    def __init__(self, directory: Path) -> None:
        self.place = LedgerPlace(group="group", member_id="before", shared=str(directory / "ledgers"))
        self.place.start()
        self.directory = self.place.directory("companion")
        self.ledger = CompanionLedger(self.directory / "0", SMALL)
        self.blocks: dict[int, tuple[int, CallBlock]] = {}
        self.number = 0
        self.entered: dict[tuple[int, int], int] = {}

    def hand_over(self, first: int, rows: int) -> None:
        self.number += 1
        offsets = pa.array(range(first, first + rows), pa.int64())
        self.blocks[self.number] = first, self.ledger.begin(self.number, batch_of(rows, offset=offsets))
        self.entered |= {(self.number, offset): 0 for offset in range(first, first + rows)}

    def answer(self, number: int, at: int, status: int) -> None:
        """Also of a record that is not there any more: calls go on."""
        if number not in self.blocks:
            return
        first, block = self.blocks[number]
        place = at % len(block.status)
        block.status[place] = status
        if (number, first + place) in self.entered:
            self.entered[number, first + place] = status

    def truncate(self, end: int) -> None:
        note_truncations(self.directory, {AT: end}, self.number)
        self.entered = {key: status for key, status in self.entered.items() if key[1] < end}

    def answered(self) -> dict[int, int]:
        """By offset, the answer in the last hand-over of it."""
        last = {offset: status for (_, offset), status in sorted(self.entered.items())}
        answers = {CallStatus.ACCEPTED: 1, CallStatus.RELEASED: 2, CallStatus.REJECTED: 3}
        return {offset: answers[CallStatus(status)] for offset, status in last.items() if status}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hand_over"), st.integers(0, 9), st.integers(1, 5)),
            st.tuples(
                st.just("answer"),
                st.integers(1, 9),
                st.integers(0, 4),
                st.sampled_from([CallStatus.ACCEPTED, CallStatus.RELEASED, CallStatus.REJECTED]),
            ),
            st.tuples(st.just("truncate"), st.integers(0, 14)),
        ),
        max_size=40,
    )
)
def test_what_was_handed_over_before_a_truncation_answers_no_later_record(steps: list[tuple]) -> None:
    """All counts are 1, as those of records that are new."""
    with tempfile.TemporaryDirectory() as directory:
        written = Truncated(Path(directory))
        for kind, *arguments in steps:
            getattr(written, kind)(*arguments)
        written.ledger.close()
        after = LedgerPlace(group="group", member_id="after", shared=written.place.shared)
        found = [run for left in left_calls(after) for run in left.calls.answered.get(AT, ())]
        answers = {offset: run.answer for run in found for offset in range(run.first_offset, run.last_offset + 1)}
        assert answers == written.answered()


def test_a_file_with_many_output_rows_is_full(tmp_path: Path) -> None:
    """Else it would grow for as long as one of its calls runs."""
    ledger = CompanionLedger(tmp_path / "0", SMALL)
    block = ledger.begin(1, batch_of(3))
    block.file.write_rows(b"x" * SMALL, [2])
    ledger.begin(2, batch_of(3))
    assert [len(read_entries(file)) for file in files_in(tmp_path)] == [3, 3]
    ledger.close()


def test_a_full_file_is_followed_by_another_and_goes_with_its_last_hand_over(tmp_path: Path) -> None:
    ledger = CompanionLedger(tmp_path / "0", SMALL)
    for number in range(5):
        ledger.begin(number, batch_of(3))
    assert [file.name for file in files_in(tmp_path)] == ["0", "1", "2"]
    ledger.forget(3)
    ledger.forget(0)
    assert [len(read_entries(file)) for file in files_in(tmp_path)] == [6, 6, 3]
    ledger.forget(2)
    assert [file.name for file in files_in(tmp_path)] == ["0", "2"]
    ledger.forget(4)
    assert [len(read_entries(file)) for file in files_in(tmp_path)] == [6, 0]
    ledger.forget(1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["2", "2.cell", "2.lock", "2.notes"]
    ledger.begin(5, batch_of(2))
    entries = read_entries(tmp_path / "2")
    assert (len(entries), entries.topics) == (2, ["orders"])
    ledger.close()


def test_the_cell_tells_the_one_that_ran(tmp_path: Path) -> None:
    ledger = CompanionLedger(tmp_path / "0")
    ledger.begin(1, batch_of(2))
    block = ledger.begin(2, batch_of(4))
    block.status[:] = bytes([CallStatus.IN_HANDLER, CallStatus.IN_HANDLER, CallStatus.ACCEPTED, CallStatus.IN_HANDLER])
    assert read_entries(tmp_path / "0").status.tolist() == [0, 0, 8, 8, 2, 8]
    block.cell[0] = block.cell_value(3)
    entries = read_entries(tmp_path / "0")
    assert entries.status.tolist() == [0, 0, 8, 8, 2, 1]
    assert codes_of(entries).tolist()[2] == Loss.FINISHED
    ledger.close()


def test_the_cell_tells_the_list_that_ran(tmp_path: Path) -> None:
    ledger = CompanionLedger(tmp_path / "0")
    first, second = ledger.begin(1, batch_of(3)), ledger.begin(2, batch_of(3))
    for block in (first, second):
        block.status[:] = bytes([CallStatus.IN_HANDLER]) * 3
    lists = [[(first, 0), (second, 2)], [(second, 0), (first, 1)], [(first, 2)]]
    values = [cell_value_of_list(one) for one in lists]
    ran, waited = CallStatus.IN_HANDLER, CallStatus.WAITED
    for value, expected in zip(values, [{0, 5}, {1, 3}, {2}], strict=True):
        first.cell[0] = value
        assert read_entries(tmp_path / "0").status.tolist() == [ran if at in expected else waited for at in range(6)]
    first.cell[0] = 0
    assert read_entries(tmp_path / "0").status.tolist() == [waited] * 6
    first.cell[0] = values[1]
    (tmp_path / "0").write_bytes((tmp_path / "0").read_bytes()[:4_096])  # a machine that has crashed
    assert read_entries(tmp_path / "0").status.tolist() == [waited, ran, waited]
    for number in (1, 2):
        ledger.forget(number)
    assert cell_value_of_list([(ledger.begin(3, batch_of(1)), 0)]) == cell_of(0)
    ledger.close()


def test_a_ledger_that_is_there_is_not_gone_on_with(tmp_path: Path) -> None:
    CompanionLedger(tmp_path / "0").close()
    with pytest.raises(StateError, match="is there already"):
        CompanionLedger(tmp_path / "0")


def test_a_full_disk_is_no_fault_of_a_record(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ledger = CompanionLedger(disk / "0")
        fill(disk)
        with pytest.raises(StateError, match="cannot be written: No space left on device"):
            ledger.begin(1, batch_of(1_000))
        ledger.close()


def test_rows_that_did_not_fit_on_the_disk_do_not_hide_later_ones(tmp_path: Path) -> None:
    rows = stream_of(pa.table({"id": [7]}))
    with small_disk(tmp_path / "disk") as disk:
        ledger = CompanionLedger(disk / "0")
        block = ledger.begin(1, batch_of(3))
        block.status[:] = bytes([CallStatus.ACCEPTED_WITH_ROWS] * 3)
        block.file.write_rows(rows, [0])
        with pytest.raises(StateError, match="cannot be written: No space left on device"):
            block.file.write_rows(b"x" * 2_000_000, [1])
        block.file.write_rows(rows, [2])
        entries = read_entries(disk / "0")
        assert entries.have_rows.tolist() == [True, False, True]
        assert pa.concat_tables(entries.rows_of(entries.have_rows)).to_pydict() == {"id": [7, 7]}
        ledger.close()


def test_a_note_of_a_truncation_that_was_not_finished_is_none(tmp_path: Path) -> None:
    note_truncations(tmp_path, {AT: 5}, 3)
    with (tmp_path / "truncated").open("a") as file:
        file.write('["orders", 0, 1')
    assert truncations_in(tmp_path) == [("orders", 0, 5, 3)]


def test_the_next_engine_takes_over_what_ended_and_doubts_only_what_ran(tmp_path: Path) -> None:
    place = LedgerPlace(group="group", member_id="before", shared=str(tmp_path / "ledgers"))
    place.start()
    ledger = CompanionLedger(tmp_path / "ledgers" / "group" / "before" / "companion" / "0", SMALL)
    blocks = [ledger.begin(number, batch_of(1, offset=pa.array([number]))) for number in range(5)]
    for number, status in enumerate([CallStatus.ACCEPTED, *[CallStatus.IN_HANDLER] * 3]):
        blocks[number].status[0] = status
    blocks[2].cell[0] = blocks[2].cell_value(0)
    ledger.close()
    after = LedgerPlace(group="group", member_id="after", shared=place.shared)
    (trace,) = member_traces(after)
    entered = [tuple(run) for run in trace.entered[TopicPartition("orders", 0)]]
    assert entered == [(0, 1, 1, Loss.FINISHED), (2, 2, 1, Loss.IN_HANDLER), (3, 3, 1, Loss.FINISHED)]
    (left,) = left_calls(after)
    assert left.calls.answered == {TopicPartition("orders", 0): ((0, 0, 1, 1),)}
