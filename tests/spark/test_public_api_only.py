"""A job without any private API of Spark, Delta and the JVM: slower, and every result as exact.

``SHARE_SPARK_PUBLIC_API_ONLY`` is set for this process and for the ones it starts. The topic is written and the tables
are read without the project's own fallbacks having a say.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import EmbeddedTopicLog, cli
from share_spark.delta.app_transactions import AppTransactions
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.public_claim import PublicClaim, progress_id
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.errors import FencedError
from share_spark.model.ids import BatchStamp
from share_spark.spark import capabilities
from share_spark.state.state_view import read_state
from share_spark.topics.topic_producer import Message
from tests.support.engine_on_delta import only_on_spark
from tests.support.job_process import JobProcess
from tests.support.sink_place import SinkPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

OUTPUT = "number bigint, attempt int"
GROUP = "billing"

SLOW_BILL = """
import time

def bill(record):
    time.sleep(0.02)
    number, attempt = int(record.value), record.delivery_count
    return 1, [{"number": number, "attempt": attempt}]
"""


def bill(record: Record) -> Any:
    """A row per record; every fifth number is rejected, every seventh tried twice."""
    number, attempt = int(record.value or b""), record.delivery_count
    rows = [{"number": number, "attempt": attempt}]
    if number % 5 == 0:
        return Ack.REJECT, []
    if number % 7 == 0 and attempt == 1:
        return Ack.RELEASE, []
    return Ack.ACCEPT, rows


@pytest.fixture(autouse=True)
def public_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(capabilities.PUBLIC_API_ONLY, "1")
    monkeypatch.setattr(capabilities, "_warned", set())


class PublicPlace:
    """A lake with the topic ``orders``, and a job on it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.log = EmbeddedTopicLog(spark, str(directory / "topics"))
        self.log.create_topic("orders", 2)

    def put(self, numbers: range) -> None:
        self.log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in numbers])

    def order(self, handler: str, *more: str) -> list[str]:
        places = {"topic-table": "topics", "state": "state", "to-delta": "bills", "dead-letter": "letters"}
        where = [part for name, at in places.items() for part in (f"--{name}", str(self.directory / at))]
        what = ["--group", GROUP, "--topic", "orders", "--handler", handler, "--output-schema", OUTPUT]
        options = ["--option", "share.record.lock.duration.ms=1000", "--starting", "earliest"]
        return ["run", *where, *what, *options, *more]

    def work_off(self) -> None:
        assert cli.main(self.order(f"{__name__}:bill", "--available-now")) == 0

    def rows(self, table: str) -> list[Any]:
        return self.spark.read.format("delta").load(str(self.directory / table)).collect()

    def bills(self) -> list[tuple[int, int]]:
        return sorted((row.number, row.attempt) for row in self.rows("bills"))

    def open_records(self) -> int:
        found = read_state(self.spark, str(self.directory / "state"), GROUP).collect()
        return sum(row.end_offset - row.start_offset for row in found)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> PublicPlace:
    return PublicPlace(spark, tmp_path)


def billed(numbers: range) -> list[tuple[int, int]]:
    return sorted((number, 2 if number % 7 == 0 else 1) for number in numbers if number % 5)


@pytest.mark.long
def test_a_job_its_successor_and_a_compaction(place: PublicPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.put(range(40))
    place.work_off()
    assert place.bills() == billed(range(40))
    place.put(range(40, 60))
    place.work_off()
    assert cli.main(["compact", "--state", str(place.directory / "state"), "--idle", "1m"]) == 0
    assert "share_state_log" in capsys.readouterr().out
    place.put(range(60, 70))
    place.work_off()
    assert place.bills() == billed(range(70))
    assert sorted(int(row.value) for row in place.rows("letters")) == list(range(0, 70, 5))
    assert place.open_records() == 0


def test_a_job_that_is_killed_and_its_successor(place: PublicPlace, tmp_path: Path) -> None:
    (tmp_path / "slow_bill.py").write_text(SLOW_BILL)
    place.put(range(400))
    command = [sys.executable, "-m", "share_spark.cli", *place.order("slow_bill:bill")]
    job = JobProcess.start([*command, "--option", "max.records.per.trigger=20"], tmp_path)
    try:
        job.wait_for("records/s  acquired")
        assert job.launcher.poll() is None
    finally:
        job.send(signal.SIGKILL, "group")
        job.kill()
    successor = JobProcess.start([*command, "--available-now"], tmp_path)
    try:
        assert successor.end() == 0, successor.output
    finally:
        successor.kill()
    assert [number for number, _ in place.bills()] == list(range(400))
    assert place.open_records() == 0


# ------------------------------------------------------------------------------------------- the claim of a sink


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkPlace:
    """A table that only Spark can append to."""
    only_on_spark(monkeypatch)
    return SinkPlace(spark=spark, state=tmp_path / "state", table=Location(path=str(tmp_path / "sink")))


ONE_COMMIT = DirectAppends.of


class Death(BaseException):
    """The engine ends here."""


@pytest.mark.parametrize(
    ("successor", "steps"),
    [
        *(("by several appends", steps) for steps in (1, 2, 3)),
        *(pytest.param("by one commit", steps, marks=() if steps == 2 else pytest.mark.long) for steps in (1, 2, 3)),
    ],
)
def test_a_claim_that_ends_after_any_of_its_appends(
    sink: SinkPlace, monkeypatch: pytest.MonkeyPatch, successor: str, steps: int
) -> None:
    predecessor, old, _ = sink.claimed()
    predecessor.commit(BatchStamp(old, 0), sink.rows(1), b"not absorbed")
    app_id, directory = predecessor.writer.app_id, sink.table.directory(sink.spark)
    with monkeypatch.context() as patch:
        patch.setattr(PublicClaim, "_set", dies_after(steps, PublicClaim._set))
        with pytest.raises(Death):
            AppTransactions(sink.spark, directory).claim(app_id, old + 1)
    if successor == "by one commit":
        monkeypatch.setattr(DirectAppends, "of", ONE_COMMIT)
    transactions = AppTransactions(sink.spark, directory)
    assert transactions.claim(app_id, old + 2) == BatchStamp(old, 0).number
    assert transactions.latest(app_id) == BatchStamp(old + 2, -1).number
    with pytest.raises(FencedError):
        predecessor.commit(BatchStamp(old, 1), sink.rows(2), b"")
    assert sink.written() == [1]


def test_a_delivery_between_the_look_and_the_claim_is_found(sink: SinkPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    predecessor, old, _ = sink.claimed()
    predecessor.commit(BatchStamp(old, 0), sink.rows(1), b"absorbed")
    original = PublicClaim._set

    def meanwhile(claim: PublicClaim, app_id: str, number: int, note: str | None = None) -> None:
        if app_id == claim.app_id:
            monkeypatch.setattr(PublicClaim, "_set", original)
            predecessor.commit(BatchStamp(old, 1), sink.rows(2), b"late")
        original(claim, app_id, number, note)

    monkeypatch.setattr(PublicClaim, "_set", meanwhile)
    transactions = AppTransactions(sink.spark, sink.table.directory(sink.spark))
    assert transactions.claim(predecessor.writer.app_id, old + 1) == BatchStamp(old, 1).number
    assert transactions.latest(progress_id(predecessor.writer.app_id)) == 2 * BatchStamp(old + 1, -1).number + 1
    assert transactions.claim(predecessor.writer.app_id, old + 2) == BatchStamp(old, 1).number


def dies_after(steps: int, original: Any) -> Any:
    made = [0]

    def set_entry(claim: PublicClaim, app_id: str, number: int, note: str | None = None) -> None:
        if made[0] == steps:
            raise Death
        made[0] += 1
        original(claim, app_id, number, note)

    return set_entry
