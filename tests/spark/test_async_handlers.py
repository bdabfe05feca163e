"""Queries whose handlers wait: many calls at a time, which outlast the micro-batches that acquired their records."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import Ack, EmbeddedTopicLog, Record, ShareGroup, read_state
from share_spark.model.errors import FencedError
from share_spark.topics.topic_producer import Message
from tests.support.job_process import JobProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP, WAIT_S = "asking", 120


def wait_until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


class Place:
    """A topic of numbered records, the state of a group, and a file where handlers note their calls."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.log = EmbeddedTopicLog(spark, str(directory / "topics"))
        self.log.create_topic("orders", 2)
        self.sent = 0

    def send(self, records: int) -> None:
        numbers = range(self.sent, self.sent + records)
        self.log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in numbers])
        self.sent += records

    def group(self, handler: Callable[[Record], object], output: str | None = None, **options: Any) -> ShareGroup:
        group = ShareGroup(GROUP, spark=self.spark, state=str(self.directory / "state"))
        group = group.table(str(self.directory / "topics")).subscribe("orders")
        group = group.option("share.auto.offset.reset", "earliest")
        for name, value in options.items():
            group = group.option(name.replace("__", "."), value)
        if output is None:
            return group.process(handler)
        return group.process(handler, output=output).to_delta(str(self.directory / "sink"))

    def run(self, group: ShareGroup) -> None:
        group.trigger(availableNow=True).start().awaitTermination()

    def noting(self, answer: Callable[[Record], Any]) -> Callable[[Record], Any]:
        calls = str(self.directory / "calls")

        async def noted(record: Record) -> Any:
            import asyncio

            with Path(calls).open("a") as file:
                file.write(f"{int(record.value or b'')} {record.delivery_count}\n")
            found = answer(record)
            return await found if asyncio.iscoroutine(found) else found

        return noted

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(number of the record, delivery count) of each call."""
        file = self.directory / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(number), int(count)) for number, count in (line.split() for line in lines)]

    def states(self) -> list[tuple[int, int]]:
        """(how many offsets are finished, how many are with a member) of each share-partition."""
        rows = read_state(self.spark, str(self.directory / "state"), GROUP).orderBy("partition").collect()
        return [(row.start_offset + row.acknowledged + row.archived, row.acquired) for row in rows]


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_a_slow_call_holds_up_no_other(place: Place) -> None:
    """Neither those of its own micro-batch, nor records that come later; all of them are committed while it runs."""
    place.send(200)
    go = str(place.directory / "go")

    async def wait_for_go(record: Record) -> Any:
        import asyncio

        while int(record.value or b"") == 0 and not os.path.exists(go):  # noqa: PTH110
            await asyncio.sleep(0.01)
        return Ack.ACCEPT, {"number": int(record.value or b"")}

    handler = place.noting(wait_for_go)
    query = place.group(handler, "number bigint", share__record__lock__duration__ms=1_000).start()
    try:
        sink = place.directory / "sink"

        def rows() -> list[int]:
            return sorted(row.number for row in place.spark.read.format("delta").load(str(sink)).collect())

        wait_until(lambda: rows() == list(range(1, 200)))
        place.send(50)
        wait_until(lambda: rows() == list(range(1, 250)))
        time.sleep(1.5)  # longer than the lock, which its engine holds
        assert query.isActive
        Path(go).touch()
        query.processAllAvailable()
        assert rows() == list(range(250))
    finally:
        query.stop()
    assert Counter(place.calls) == Counter((number, 1) for number in range(250))
    assert place.states() == [(125, 0), (125, 0)]


def test_failures_are_counted_and_archived_as_for_other_handlers(place: Place) -> None:
    place.send(60)

    def answer(record: Record) -> Ack:
        number = int(record.value or b"")
        if number % 10 == 3:
            raise ValueError("no city")
        return Ack.RELEASE if number % 10 == 7 and record.delivery_count == 1 else Ack.ACCEPT

    letters = str(place.directory / "letters")
    place.run(place.group(place.noting(answer), share__delivery__count__limit=3).dead_letter(letters))
    counts = {3: 3, 7: 2}
    assert Counter(number for number, _ in place.calls) == {n: counts.get(n % 10, 1) for n in range(60)}
    found = place.spark.read.format("delta").load(letters).collect()
    assert sorted((int(row.value), row.error) for row in found) == [
        (n, "ValueError: no city") for n in range(60) if n % 10 == 3
    ]
    assert place.states() == [(30, 0), (30, 0)]


def test_a_companion_that_dies_costs_the_record_that_has_killed_it(place: Place) -> None:
    """Its neighbours only wait; their rows are there once."""
    place.send(80)

    async def dies(record: Record) -> Any:
        import asyncio

        await asyncio.sleep(0.05)
        if int(record.value or b"") == 11 and record.delivery_count <= 2:
            os._exit(3)
        return Ack.ACCEPT, {"number": int(record.value or b"")}

    place.run(place.group(place.noting(dies), "number bigint"))
    rows = place.spark.read.format("delta").load(str(place.directory / "sink")).collect()
    assert sorted(row.number for row in rows) == list(range(80))
    assert [count for number, count in place.calls if number == 11] == [1, 2, 3]
    assert place.states() == [(40, 0), (40, 0)]


def test_who_stops_waits_for_running_calls_and_charges_nothing_else(place: Place) -> None:
    place.send(100)

    async def slow(_record: Record) -> Ack:
        import asyncio

        await asyncio.sleep(0.5)
        return Ack.ACCEPT

    query = place.group(place.noting(slow), delivery__max__in__flight=10).start()
    wait_until(lambda: len(place.calls) >= 15)
    query.stop()
    called = len(place.calls)
    assert sum(finished for finished, _ in place.states()) == called
    assert [held for _, held in place.states()] == [0, 0]
    place.run(place.group(place.noting(slow), delivery__max__in__flight=100))
    assert Counter(place.calls) == Counter((number, 1) for number in range(100))


def test_an_engine_that_was_replaced_calls_nothing_more(place: Place) -> None:
    """What its process had waiting ahead belongs to the next engine."""
    place.send(200)
    calls = place.directory / "processes"

    async def slow(record: Record) -> Ack:
        import asyncio

        number = int(record.value or b"")
        with calls.open("a") as file:
            file.write(f"{os.getpid()}\n")
        await asyncio.sleep(3 + 0.3 * (number % 20))
        return Ack.ACCEPT

    def processes() -> list[str]:
        return calls.read_text().split() if calls.exists() else []

    replaced = place.group(slow, delivery__max__in__flight=16).start()
    wait_until(lambda: len(processes()) == 16)  # and as many wait
    next_one = place.group(slow, delivery__max__in__flight=16).start()
    try:
        with pytest.raises(FencedError):
            replaced.awaitTermination()
        wait_until(lambda: len(set(processes())) > 1)
        assert processes().count(processes()[0]) < 2 * 16 - 8
    finally:
        next_one.stop()


HANDLER = """
import asyncio, os
from share_spark import Ack

calls = os.open("calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

async def ask(record):
    os.write(calls, b"%d %d\\n" % (int(record.value), record.delivery_count))
    await asyncio.sleep(1)
    return Ack.reject("no city") if int(record.value) % 10 == 9 else Ack.ACCEPT

async def tell(record):
    ack = await ask(record)
    return (ack, {"number": int(record.value)}) if ack is Ack.ACCEPT else ack
"""

OUTPUT = ["--to-delta", "{directory}/sink", "--output-schema", "number bigint"]


@pytest.mark.parametrize("output", [pytest.param([], marks=pytest.mark.long), OUTPUT])
def test_a_driver_that_is_killed_loses_none_of_its_running_calls(place: Place, output: list[str]) -> None:
    """The companion ends them, and the next engine takes over the answers and their rows: no record is called twice."""
    place.send(120)
    (place.directory / "asking.py").write_text(HANDLER)
    output = ["--handler", "asking:tell" if output else "asking:ask", *output]
    killed = start(place.directory, *output, "--option", "delivery.max.in.flight=30")
    try:
        wait_until(lambda: len(place.calls) >= 45 or killed.launcher.poll() is not None)
        assert killed.launcher.poll() is None, killed.output
    finally:
        killed.kill()
    last = start(place.directory, *output, "--available-now")
    try:
        assert last.end() == 0, last.output
    finally:
        last.kill()
    assert Counter(place.calls) == Counter((number, 1) for number in range(120))
    assert place.states() == [(60, 0), (60, 0)]
    if "--to-delta" in output:
        rows = place.spark.read.format("delta").load(str(place.directory / "sink")).collect()
        assert sorted(row.number for row in rows) == [number for number in range(120) if number % 10 != 9]


def start(directory: Path, *more: str) -> JobProcess:
    where = ["--topic-table", str(directory / "topics"), "--state", str(directory / "state")]
    what = ["--group", GROUP, "--topic", "orders", "--starting", "earliest"]
    more = tuple(part.format(directory=directory) for part in more)
    return JobProcess.start([sys.executable, "-m", "share_spark.cli", "run", *where, *what, *more], directory)
