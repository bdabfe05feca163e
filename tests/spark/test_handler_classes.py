"""Handlers that are classes, take lists, or run in threads, behind a running group."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, list_handler, record_handler
from share_spark.model.errors import HandlerError
from tests.spark.test_share_group import GroupPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 40
DEADLINE_S = 20.0
DONE = [(RECORDS // 2, RECORDS // 2, 0, 0)] * 2


class Notes:
    """One that notes in which process it is opened, called and closed."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def note(self, what: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def open(self) -> None:
        self.note("open")

    def close(self) -> None:
        self.note("close")


class OfRecord(Notes):
    def __call__(self, record: Record) -> None:  # noqa: ARG002
        self.note("call")


class OfBatch(Notes):
    def __call__(self, batch: pa.RecordBatch) -> list[int]:
        for _ in range(batch.num_rows):
            self.note("call")
        return [1] * batch.num_rows


class Async(Notes):
    async def __call__(self, record: Record) -> None:  # noqa: ARG002
        self.note("call")


def noted(file: Path) -> Counter[tuple[str, str]]:
    """(what, process) -> how often."""
    lines = map(str.split, file.read_text().splitlines() if file.exists() else ())
    return Counter((what, process) for what, process in lines)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("kind", [OfRecord, OfBatch, Async])
@pytest.mark.parametrize("is_class", [True, False])
def test_an_object_is_opened_once_in_each_process_and_closed_at_its_end(
    spark: SparkSession, tmp_path: Path, kind: type[Notes], is_class: bool
) -> None:
    file = tmp_path / "noted"

    class Asks(kind):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__(file)

    place = GroupPlace(spark, tmp_path)
    for first in range(0, RECORDS, RECORDS // 2):
        place.put(range(first, first + RECORDS // 2))
        place.work_off(Asks if is_class else Asks())
    found = noted(file)
    assert sum(times for (what, _), times in found.items() if what == "call") == RECORDS
    processes = {process for what, process in found if what == "open"}
    assert processes == {process for what, process in found if what == "call"}
    if kind is Async:
        assert len(processes) == 2
    for process in processes:
        assert found["open", process] == 1, "it was opened for a second micro-batch"
        if kind is not Async:
            assert found["close", process] == 0
            os.kill(int(process), signal.SIGHUP)  # as the daemon of the workers does at the end of a session
    until(lambda: all(noted(file)["close", process] == 1 for process in processes))
    assert place.ends() == DONE


@pytest.mark.parametrize("kind", [OfRecord, Async])
def test_an_open_that_fails_ends_the_query_and_charges_nothing(
    spark: SparkSession, tmp_path: Path, kind: type[Notes]
) -> None:
    class Fails(kind):  # type: ignore[valid-type, misc]
        def open(self) -> None:
            raise ConnectionError("no model")

    place = GroupPlace(spark, tmp_path)
    place.put(range(RECORDS))
    with pytest.raises(HandlerError, match=r"Fails: open\(\) failed: ConnectionError: no model$"):
        place.work_off(Fails(tmp_path / "noted"))
    place.work_off(kind(tmp_path / "noted"))
    assert {one.redelivered for one in place.progress} == {0}
    assert place.ends() == DONE


def test_a_record_has_its_topic_whatever_columns_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    def topics(record: Record) -> Ack:
        return Ack.reject(f"{record.topic} {record.partition} {record.offset} {record.key!r}")

    place = GroupPlace(spark, tmp_path)
    place.put(range(1))
    place.work_off(record_handler(columns=["value"])(topics))
    assert [error for *_, error in place.dead()] == ["orders 0 0 None"]


# ------------------------------------------------------------------------------- lists, and threads


def sized(directory: Path) -> Any:
    """A handler of lists that notes their sizes."""

    async def embed(records: list[Record]) -> list[Any]:
        await asyncio.sleep(0.05)
        (directory / f"call-{uuid.uuid4()}").write_text(str(len(records)))
        return [
            Ack.release("odd") if int(one.value or b"") % 2 and one.delivery_count == 1 else None for one in records
        ]

    return embed


def test_a_list_has_records_of_several_partitions(spark: SparkSession, tmp_path: Path) -> None:
    place = GroupPlace(spark, tmp_path)
    place.put(range(RECORDS))
    group = place.group(sized(tmp_path)).process(sized(tmp_path), batch=RECORDS, linger=2.0)
    assert group.trigger(availableNow=True).start().awaitTermination(120)
    sizes = [int(file.read_text()) for file in tmp_path.glob("call-*")]
    assert sum(sizes) == RECORDS + RECORDS // 2
    assert max(sizes) > RECORDS // 2
    assert sum(one.released for one in place.progress) == RECORDS // 2
    assert place.ends() == DONE


TOGETHER = 10
"""Not more than an engine begins with, and a part of RECORDS."""


def test_calls_in_threads_wait_together(spark: SparkSession, tmp_path: Path) -> None:
    class Waits:
        def open(self) -> None:
            self.together = threading.Barrier(TOGETHER)

        def __call__(self, record: Record) -> None:  # noqa: ARG002
            self.together.wait(DEADLINE_S)

    place = GroupPlace(spark, tmp_path)
    place.put(range(RECORDS))
    group = place.group(Waits).process(Waits, threads=TOGETHER)
    assert group.trigger(availableNow=True).start().awaitTermination(120)
    assert {one.released for one in place.progress} == {0}
    assert place.ends() == DONE


@list_handler(batch=8, linger=0.05)
async def ends_process_in_list(records: list[Record]) -> Ack:
    await asyncio.sleep(0.01)
    if any(record.value == b"7" for record in records):
        os._exit(3)
    return Ack.ACCEPT


@record_handler(threads=8)
def ends_process_in_thread(record: Record) -> None:
    time.sleep(0.05)
    if record.value == b"7":
        os._exit(3)


@pytest.mark.parametrize("handler", [ends_process_in_list, ends_process_in_thread])
def test_a_record_that_ends_the_process_is_found_among_the_others(
    spark: SparkSession, tmp_path: Path, handler: Any
) -> None:
    place = GroupPlace(spark, tmp_path)
    place.put(range(RECORDS))
    place.work_off(handler)
    assert {(value, error) for value, _, _, error in place.dead()} == {("7", "worker lost")}
    assert sum(one.accepted for one in place.progress) == RECORDS - 1
    assert place.ends() == DONE
