"""SIGINT and SIGTERM by real processes: by Python and by spark-submit, to either process of the job, once and twice.

spark-submit is the parent of Python, and Python the parent of the JVM where there is no spark-submit: so `launcher` is
the one and `child` the other.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark import EmbeddedTopicLog, read_state
from share_spark.topics.topic_producer import Message
from tests.support.job_process import BIN, ROOT, JobProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "python": [sys.executable, "-m", "share_spark.cli", "run"],
    "spark-submit": [str(BIN / "spark-submit"), str(ROOT / "jobs" / "run_share_group.py")],
}
INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture(scope="module")
def topics(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("topics") / "table")
    log = EmbeddedTopicLog(spark, place)
    log.create_topic("endless", 2)
    log.append("endless", [Message(b"x")] * 20_000)
    return place


@pytest.fixture
def started(topics: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[JobProcess]:
    """A job in the middle of its work: some micro-batches are through, and there are many to come."""
    options = ["--group", "g", "--topic", "endless", "--topic-table", topics, "--handler", "slow:slow"]
    more = ["--state", str(tmp_path / "state"), "--starting", "earliest", "--option", "max.records.per.trigger=10"]
    job = JobProcess.start([*LAUNCHERS[request.param], *options, *more], tmp_path)
    try:
        job.wait_for("records/s  acquired")
        yield job
    finally:
        job.kill()


@pytest.mark.parametrize(
    ("started", "number", "to"),
    [
        pytest.param("python", INT, "launcher", marks=pytest.mark.long),
        ("python", TERM, "group"),
        pytest.param("python", TERM, "child", marks=pytest.mark.long),
        pytest.param("spark-submit", INT, "group", marks=pytest.mark.long),
        ("spark-submit", TERM, "launcher"),
    ],
    indirect=["started"],
)
def test_a_signal_stops_after_the_micro_batch(
    spark: SparkSession, started: JobProcess, tmp_path: Path, number: signal.Signals, to: str
) -> None:
    started.send(number, to)
    assert started.end() == 0, started.output
    assert f"stopped by {number.name}" in started.output
    rows = read_state(spark, str(tmp_path / "state"), "g").collect()
    assert sum(row.start_offset for row in rows) > 0
    assert sum(row.acquired for row in rows) == 0


@pytest.mark.parametrize(
    ("started", "to"),
    [
        pytest.param("python", "launcher", marks=pytest.mark.long),
        pytest.param("spark-submit", "launcher", marks=pytest.mark.long),
    ],
    indirect=["started"],
)
def test_a_second_signal_stops_at_once(started: JobProcess, to: str) -> None:
    started.send(TERM, to)
    started.wait_for("SIGTERM: stopping after the current micro-batch")
    started.send(TERM, to)
    assert started.end() == 130, started.output
    assert "stopped by" not in started.output
