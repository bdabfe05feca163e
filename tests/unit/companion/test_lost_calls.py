"""What the ledgers of a dead companion say."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from share_spark.companion.hand_overs import Unanswered
from share_spark.companion.lost_calls import MOST_FILES, LostCalls, lost_error_of, remove_ledgers
from share_spark.delivery.arrow_stream import stream_of
from share_spark.delivery.ledger import EVERY_RECORD, CallStatus, cell_of
from share_spark.delivery.ledger_file import LedgerFile
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss

AT = TopicPartition("orders", 0)


def written(path: Path, statuses: dict[int, CallStatus], runs: int | None = None, records: int = 1) -> None:
    """A ledger with these offsets, of hand-over 7. ``runs``: whose code ran; ``records``: of that call."""
    ledger = LedgerFile(path)
    offsets = list(statuses)
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["orders"] * len(offsets)),
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "delivery_count": pa.array([1] * len(offsets), pa.int32()),
        }
    )
    block = ledger.add(batch, number=7)
    ledger.note_errors({position: f"error of {at}" for position, at in enumerate(offsets) if statuses[at] == 3})
    ledger.note_delays({position: 10 * at for position, at in enumerate(offsets) if statuses[at] == 3})
    block.status[:] = bytes(statuses.values())
    cell = cell_of(offsets.index(runs), records) if runs is not None else 0
    ledger.beside("cell").write_bytes(cell.to_bytes(8, sys.byteorder))
    block.release()
    ledger.close()


def answers(first: Path, *offsets: int, number: int = 7) -> dict[int, tuple[int, str | None]]:
    wanted = [Unanswered(number, AT, offset) for offset in offsets]
    found = list(LostCalls.read(first).answers(wanted, "worker lost"))
    assert [(one.number, one.at, one.first_offset) for one in found] == [(number, AT, offset) for offset in offsets]
    return {one.first_offset: (one.answer, one.error) for one in found}


IN_HANDLER = CallStatus.IN_HANDLER


def test_answers_in_the_ledger_count_but_not_without_their_rows(tmp_path: Path) -> None:
    statuses = {
        1: CallStatus.ACCEPTED,
        2: CallStatus.RELEASED,
        3: CallStatus.REJECTED,
        4: CallStatus.ACCEPTED_WITH_ROWS,
        5: CallStatus.NOT_ENTERED,
    }
    written(tmp_path / "0", statuses)
    assert answers(tmp_path / "0", 1, 2, 3, 4, 5, 6) == {
        1: (AcknowledgeType.ACCEPT, None),
        2: (AcknowledgeType.RELEASE, "error of 2"),
        3: (AcknowledgeType.REJECT, None),
        4: (Loss.FINISHED, None),
        5: (Loss.NOT_ENTERED, None),
        6: (Loss.NOT_ENTERED, None),
    }


def test_rows_that_were_written_come_with_their_answers(tmp_path: Path) -> None:
    """In any order, and only those of records that had no answer yet: the driver has the others."""
    statuses = {4: CallStatus.ACCEPTED_WITH_ROWS, 5: IN_HANDLER, **dict.fromkeys((6, 7), CallStatus.ACCEPTED_WITH_ROWS)}
    written(tmp_path / "0", statuses)
    ledger = LedgerFile(tmp_path / "0")
    for owners in ((3, 1), (0, 0, 2)):
        ids = pa.array([10 * owner + at for at, owner in enumerate(owners)])
        ledger.write_rows(stream_of(pa.table({"id": ids})), owners)
    ledger.close()
    assert answers(tmp_path / "0", 4, 5, 6) == {
        4: (AcknowledgeType.ACCEPT, None),
        5: (Loss.IN_HANDLER, "worker lost"),
        6: (AcknowledgeType.ACCEPT, None),
    }
    calls = LostCalls.read(tmp_path / "0")
    found = calls.answers([Unanswered(7, AT, offset) for offset in (4, 5, 6)], "worker lost")
    assert pa.concat_tables(calls.rows_of(found)).to_pydict() == {"id": [0, 1, 22]}


def test_the_record_that_ran_is_accused_and_those_that_waited_are_not(tmp_path: Path) -> None:
    written(tmp_path / "0", dict.fromkeys(range(4), IN_HANDLER), runs=2)
    written(tmp_path / "1", {10: IN_HANDLER})
    found = LostCalls.read(tmp_path / "0")
    assert not found.killed_many
    assert answers(tmp_path / "0", 1, 2, 10) == {
        1: (Loss.FINISHED, None),
        2: (Loss.IN_HANDLER, "worker lost"),
        10: (Loss.FINISHED, None),
    }


def test_where_none_ran_nobody_is_accused_but_the_only_one(tmp_path: Path) -> None:
    written(tmp_path / "0", {1: IN_HANDLER, 2: IN_HANDLER})
    assert LostCalls.read(tmp_path / "0").killed_many
    assert set(answers(tmp_path / "0", 1, 2).values()) == {(Loss.FINISHED, None)}
    alone = MOST_FILES
    written(tmp_path / str(alone), {1: IN_HANDLER, 2: CallStatus.ACCEPTED})
    assert not LostCalls.read(tmp_path / str(alone)).killed_many
    assert answers(tmp_path / str(alone), 1) == {1: (Loss.IN_HANDLER, "worker lost")}


def test_a_list_that_ran_is_accused_as_one_of_many(tmp_path: Path) -> None:
    written(tmp_path / "0", dict.fromkeys(range(6), IN_HANDLER), runs=2, records=3)
    assert not LostCalls.read(tmp_path / "0").killed_many
    among = (Loss.AMONG_OTHERS, "worker lost")
    finished = (Loss.FINISHED, None)
    assert answers(tmp_path / "0", *range(6)) == dict.fromkeys(range(6), finished) | dict.fromkeys((2, 3, 4), among)


def test_of_calls_in_threads_all_are_accused_and_a_single_one_alone(tmp_path: Path) -> None:
    statuses = {0: IN_HANDLER, 1: CallStatus.ACCEPTED, 2: IN_HANDLER, 3: CallStatus.NOT_ENTERED}
    written(tmp_path / "0", statuses, runs=0, records=EVERY_RECORD)
    among = (Loss.AMONG_OTHERS, "worker lost")
    rest = {1: (AcknowledgeType.ACCEPT, None), 3: (Loss.NOT_ENTERED, None)}
    assert answers(tmp_path / "0", *range(4)) == {0: among, 2: among, **rest}
    written(tmp_path / str(MOST_FILES), statuses | {0: CallStatus.REJECTED}, runs=0, records=EVERY_RECORD)
    assert answers(tmp_path / str(MOST_FILES), 2) == {2: (Loss.IN_HANDLER, "worker lost")}


def test_an_entry_of_another_hand_over_is_no_answer(tmp_path: Path) -> None:
    """Its record may be another one: the log may have been truncated in between."""
    written(tmp_path / "0", {1: CallStatus.RELEASED})
    assert answers(tmp_path / "0", 1, number=8) == {1: (Loss.NOT_ENTERED, None)}


def test_only_the_ledgers_of_the_process_are_removed(tmp_path: Path) -> None:
    for number in (0, 1, MOST_FILES):
        written(tmp_path / str(number), {1: CallStatus.ACCEPTED})
    remove_ledgers(tmp_path / "0")
    assert {file.name.partition(".")[0] for file in tmp_path.iterdir()} == {str(MOST_FILES)}


def test_where_the_watchdog_ended_it_is_told(tmp_path: Path) -> None:
    written(tmp_path / "0", {1: IN_HANDLER}, runs=1)
    text = 'Thread 0x1 (most recent call first):\n  File "job.py", line 3 in bill\n  File "loop.py", line 9 in run\n'
    (tmp_path / "0.stuck").write_text(text)
    stuck = LostCalls.read(tmp_path / "0").stuck
    assert lost_error_of(stuck, "too long") == 'too long and did not react: File "job.py", line 3 in bill'
    assert lost_error_of(None, "too long") == "worker lost"
