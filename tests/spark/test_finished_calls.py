"""Engines that are killed again and again: what their handlers have finished is not called again."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import EmbeddedTopicLog
from share_spark.state.state_view import read_state
from share_spark.topics.topic_producer import Message
from tests.support.job_process import JobProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

RECORDS, KILLS = 800, 2
CORES = os.cpu_count() or 1
STEP = 200
"""Calls from one kill to the next."""

HANDLER = """
import os, time
from share_spark import Ack

calls = os.open("calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def bill(record):
    time.sleep(0.005)
    number = int(record.value)
    os.write(calls, b"%d %d\\n" % (number, record.delivery_count))
    if number % 100 == 99:
        return Ack.reject("no city")
    return Ack.RELEASE if number % 100 == 50 and record.delivery_count == 1 else Ack.ACCEPT

def priced(record):
    ack = bill(record)
    return (ack, [{"number": int(record.value)}]) if ack == Ack.ACCEPT else ack
"""

UNWRITTEN = 15
"""The most calls of a worker whose output rows are not in its ledger yet: it writes them every 50 ms."""


@pytest.mark.parametrize("has_output", [pytest.param(False, marks=pytest.mark.long), True])
def test_engines_that_are_killed_repeat_only_the_calls_that_they_were_in(
    spark: SparkSession, tmp_path: Path, has_output: bool
) -> None:
    log = EmbeddedTopicLog(spark, str(tmp_path / "topics"))
    log.create_topic("orders", 2)
    log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in range(RECORDS)])
    (tmp_path / "billing.py").write_text(HANDLER)
    for kill in range(KILLS):
        killed = run(tmp_path, *OUTPUT[has_output])
        try:
            wait_for_calls(tmp_path, (kill + 1) * STEP, killed)
        finally:
            killed.kill()
    last = run(tmp_path, "--available-now", *OUTPUT[has_output])
    try:
        assert last.end() == 0, last.output
    finally:
        last.kill()
    assert_calls(calls(tmp_path), KILLS * CORES * (UNWRITTEN if has_output else 1))
    rejected = spark.read.format("delta").load(str(tmp_path / "letters")).collect()
    assert sorted((int(row.value), row.error) for row in rejected) == [(n, "no city") for n in range(99, RECORDS, 100)]
    if has_output:
        bills = spark.read.format("delta").load(str(tmp_path / "bills")).collect()
        assert sorted(row.number for row in bills) == [n for n in range(RECORDS) if n % 100 != 99]
    states = read_state(spark, str(tmp_path / "state"), "billing").collect()
    assert [row.end_offset - row.start_offset for row in states] == [0, 0]


def test_workers_that_outlive_their_engine_begin_nothing_once_the_next_one_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's daemon ends its workers with the driver. If it is killed as well, they work off their tasks."""
    log = EmbeddedTopicLog(spark, str(tmp_path / "topics"))
    log.create_topic("orders", 2)
    log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in range(RECORDS)])
    (tmp_path / "billing.py").write_text(HANDLER.replace("0.005", "0.05"))
    killed = run(tmp_path, "--option", "delivery.budget.ms=600000", *OUTPUT[False])
    try:
        wait_for_calls(tmp_path, 20, killed)
        os.kill(killed.below("share_spark.spark.worker_daemon")[0], signal.SIGKILL)
    finally:
        killed.kill()
    before = len(calls(tmp_path))
    last = run(tmp_path, "--available-now", *OUTPUT[False])
    try:
        time.sleep(1)
        assert len(calls(tmp_path)) > before, "they have gone on"
        assert last.end() == 0, last.output
    finally:
        last.kill()
    assert_calls(calls(tmp_path), 0)


OUTPUT = {
    False: ["--handler", "billing:bill"],
    True: ["--handler", "billing:priced", "--to-delta", "{directory}/bills", "--output-schema", "number bigint"],
}


def run(directory: Path, *more: str) -> JobProcess:
    places = {"topic-table": "topics", "state": "state", "dead-letter": "letters"}
    where = [part for name, at in places.items() for part in (f"--{name}", str(directory / at))]
    what = ["--group", "billing", "--topic", "orders", "--starting", "earliest"]
    options = ["--option", "share.record.lock.duration.ms=1000"]
    more = tuple(part.format(directory=directory) for part in more)
    command = [sys.executable, "-m", "share_spark.cli", "run", *where, *what, *options, *more]
    return JobProcess.start(command, directory)


def calls(directory: Path) -> list[tuple[int, int]]:
    """(number of the record, delivery count) of each call that has come to its end."""
    file = directory / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(number), int(count)) for number, count in (line.split() for line in lines)]


def wait_for_calls(directory: Path, wanted: int, job: JobProcess) -> None:
    deadline = time.monotonic() + 240
    while len(calls(directory)) < wanted:
        assert job.launcher.poll() is None, job.output
        assert time.monotonic() < deadline, job.output
        time.sleep(0.01)


def assert_calls(found: list[tuple[int, int]], most_repeated: int) -> None:
    """All records were called; twice only what its handler has released, and what the kills have cost. A first call
    that was killed before it said anything is not among them, and the second one releases nothing."""
    assert {number for number, _ in found} == set(range(RECORDS))
    wanted = RECORDS + len({number for number, count in found if number % 100 == 50 and count == 1})
    assert len(range(50, RECORDS, 100)) - most_repeated <= wanted - RECORDS
    assert wanted <= len(found) <= wanted + most_repeated
