"""Output rows of a real companion process: they come with their answers, and outlive the process and the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.delivery.ledger import read_entries
from share_spark.delta.table_layout import FilePlace, TableLayout
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.requests import AcknowledgeType, AnsweredRange
from tests.support.companions import AT, DEADLINE_S, CompanionPlace, Said

ACCEPT = AcknowledgeType.ACCEPT


async def rows_of(record: Record) -> Any:
    return Ack.RELEASE if record.offset == 3 else (Ack.ACCEPT, [{"id": record.offset}] * (record.offset % 3))


def test_output_rows_of_the_answers_returned_last_are_in_files(tmp_path: Path) -> None:
    place = CompanionPlace(tmp_path, rows_of, settings={"output": pa.schema([pa.field("id", pa.int64())])})
    place.delivery.output_place = FilePlace(str(tmp_path), TableLayout(columns=("id",)))
    place.deliver((0, 5, 1))
    read: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(place.said) < 6:
        assert time.monotonic() < deadline
        place.delivery.wait(1)
        place.deliver()
        for file in place.delivery.outputs or ():
            read += pq.read_table(tmp_path / file.path).column("id").to_pylist()
        place.delivery.free_outputs()
        assert place.delivery.outputs is None
    place.delivery.close()
    assert sorted(read) == [1, 2, 2, 4, 5, 5]


OUTPUT = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])


@dataclass
class Puts:
    """Accepts with a row for odd offsets and two for even ones. Calls for multiples of five wait until the file is
    there."""

    file: str
    size: int = 1

    async def __call__(self, record: Record) -> Any:
        while record.offset % 5 == 0 and not Path(self.file).exists():
            await asyncio.sleep(0.01)
        return Ack.ACCEPT, [{"id": record.offset, "text": "x" * self.size}] * (2 - record.offset % 2)


def putting(directory: Path, epoch: int = 1, size: int = 1) -> CompanionPlace:
    """A delivery to ``Puts``."""
    found = CompanionPlace(directory, Puts(f"{directory}/go", size), settings={"output": OUTPUT}, epoch=epoch)
    found.delivery.output_place = FilePlace(str(directory), TableLayout(columns=("id", "text")))
    return found


def ids_in(place: CompanionPlace) -> list[int]:
    """The rows of the answers that were returned last."""
    files = [pq.read_table(place.directory / file.path) for file in place.delivery.outputs or ()]
    place.delivery.free_outputs()
    return sorted(at for file in files for at in file.column("id").to_pylist())


def wait_for_rows(place: CompanionPlace, offsets: set[int]) -> None:
    """Wait until the ledgers have the rows of these."""
    deadline = time.monotonic() + DEADLINE_S
    found: set[int] = set()
    while found != offsets:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
        entries = [read_entries(file) for file in place.directory.rglob("ledgers/*/*/*/*") if file.name.isdigit()]
        found = {offset for one in entries for offset in one.offset[one.have_rows].tolist()}


def test_rows_that_a_dead_engine_had_not_committed_are_held_by_the_next_one(tmp_path: Path) -> None:
    """Those that it had committed are not held again: the next one says of which records it wants them."""
    place = putting(tmp_path)
    place.deliver((0, 7, 1))
    place.until(lambda delivered: delivered.in_flight == 2)
    wait_for_rows(place, {1, 2, 3, 4, 6, 7})
    os.kill(place.pid, signal.SIGKILL)
    place.delivery.wait(DEADLINE_S)
    successor = putting(tmp_path, epoch=2)
    (calls,) = successor.delivery.finished_calls()
    assert [run[:2] for run in calls.put_out[AT]] == [(1, 4), (6, 7)]
    ranges = tuple(AnsweredRange(offset, offset, ACCEPT) for offset in (2, 3, 7))
    assert successor.delivery.hold_rows([AcknowledgedSpan(AT, ranges, ())])
    assert ids_in(successor) == [2, 2, 3, 7]
    for one in (successor, place):
        one.delivery.close()


def test_rows_of_another_schema_are_not_held(tmp_path: Path) -> None:
    place = putting(tmp_path)
    place.deliver((1, 2, 1))
    place.until(lambda delivered: delivered.in_flight == 0)
    place.delivery.close()
    successor = CompanionPlace(tmp_path, Puts(""), settings={"output": pa.schema([("id", pa.int64())])}, epoch=2)
    (calls,) = successor.delivery.finished_calls()
    accepted = AcknowledgedSpan(AT, tuple(AnsweredRange(*run[:2], ACCEPT) for run in calls.put_out[AT]), ())
    assert not successor.delivery.hold_rows([accepted])


def test_rows_that_a_killed_process_had_not_sent_are_taken_from_its_ledger(tmp_path: Path) -> None:
    """They are larger than what a connection holds, and the driver is busy. The others come once."""
    place = putting(tmp_path, size=1_000_000)
    place.deliver((0, 7, 1))
    with place.delivery._companions.heard:
        wait_for_rows(place, {1, 2, 3, 4, 6, 7})
        os.kill(place.pid, signal.SIGKILL)
    ids = []
    while len(place.said) < 8:
        place.delivery.wait(DEADLINE_S)
        place.deliver()
        ids += ids_in(place)
    place.delivery.close()
    assert {offset for offset, said in place.said.items() if said == Said(ACCEPT)} == {1, 2, 3, 4, 6, 7}
    assert sorted(ids) == [1, 2, 2, 3, 4, 4, 6, 6, 7]


def test_rows_of_what_was_forgotten_are_not_put_out(tmp_path: Path) -> None:
    """Also if they come with others in one message."""
    place = putting(tmp_path)
    place.limits = place.limits._replace(most_calls=1)  # the others wait for it, and leave together
    place.deliver((5, 9, 1))
    place.until(lambda _: place.delivery.calls.running > 0)
    place.delivery.forget_last({AT: 8})
    place.limits = place.limits._replace(most_calls=20)
    place.deliver()
    Path(f"{tmp_path}/go").touch()
    ids = []
    while len(place.said) < 3:
        place.delivery.wait(DEADLINE_S)
        place.deliver()
        ids += ids_in(place)
    place.delivery.close()
    assert sorted(ids) == [5, 6, 6, 7]
