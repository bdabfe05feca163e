"""A share group end to end: embedded topic log, handler inside Spark, state and dead letters on Delta."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.api.share_group import ShareGroup
from share_spark.cli import main
from share_spark.engine.progress import MicroBatchProgress
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.maintenance import background
from share_spark.maintenance.heartbeat import EndKind, Heartbeat
from share_spark.model.errors import ConfigError, EnvironmentFault, HandlerError, TopicError
from share_spark.state.state_view import read_state
from share_spark.topics.topic_file_rows import TopicFileReader
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 40


class GroupPlace:
    """A topic of two partitions, numbers as values, and the directories around it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.log = EmbeddedTopicLog(spark, str(directory / "topics"))
        self.log.create_topic("orders", 2)
        self.progress: list[MicroBatchProgress] = []

    def put(self, numbers: range) -> None:
        self.log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in numbers])

    def group(self, handler: Any, group_id: str = "billing", **options: Any) -> ShareGroup:
        group = ShareGroup(group_id, spark=self.spark, state=str(self.directory / "state"))
        given = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 3, **options}
        group = group.table(str(self.directory / "topics")).subscribe("orders").process(handler)
        return group.options(**given).dead_letter(str(self.directory / "dead")).listen(self.progress.append)

    def work_off(self, handler: Any, **options: Any) -> None:
        query = self.group(handler, **options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def calls(self) -> Counter[tuple[str, int]]:
        """(value, delivery count) -> calls, as the handler noted them."""
        lines = (self.directory / "calls").read_text().split("\n")[:-1]
        return Counter((value, int(count)) for value, count in (line.split() for line in lines))

    def dead(self) -> set[tuple[str, int, str, str]]:
        rows = self.spark.read.format("delta").load(str(self.directory / "dead")).collect()
        return {(bytes(row.value).decode(), row.delivery_count, row.reason, row.error) for row in rows}

    def engine_end(self) -> tuple[EndKind, str]:
        """How the last engine of the group has ended, and why."""
        engine = ShareGroupAdmin(str(self.directory / "state")).describe_group("billing").engine
        assert engine is not None
        assert engine.end is not None
        assert abs(engine.end.at_ms - time.time() * 1_000) < 600_000
        return engine.end.kind, engine.end.error

    def ends(self) -> list[tuple[int, int, int, int]]:
        rows = read_state(self.spark, str(self.directory / "state"), "billing").orderBy("partition").collect()
        return [(row.start_offset, row.end_offset, row.available, row.acquired) for row in rows]


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> GroupPlace:
    """Worked off once by ``moody``; the tests below go on from there, in order."""
    place = GroupPlace(spark, tmp_path_factory.mktemp("billing"))
    place.put(range(RECORDS))
    place.work_off(moody(place.directory / "calls"))
    return place


def moody(calls: Path) -> Any:
    """Accepts most; 3 is rejected, 5 flaky, 7 poison, 8 released once."""

    def handle(record: Record) -> Any:
        number, attempt = int(record.value), record.delivery_count
        with calls.open("a") as file:
            file.write(f"{number} {attempt}\n")
        if number == 3:
            return Ack.reject("no such account")
        if number == 7 or (number == 5 and attempt < 3):
            raise ValueError(f"attempt {attempt}")
        return Ack.RELEASE if number == 8 and attempt == 1 else None

    return handle


def test_every_record_comes_to_its_end_and_each_delivery_calls_once(place: GroupPlace) -> None:
    deliveries = dict.fromkeys(range(RECORDS), 1) | {5: 3, 7: 3, 8: 2}
    assert place.calls() == {(str(n), count): 1 for n, most in deliveries.items() for count in range(1, most + 1)}
    assert place.ends() == [(RECORDS // 2, RECORDS // 2, 0, 0)] * 2


def test_what_cannot_succeed_is_kept_with_its_last_error(place: GroupPlace) -> None:
    assert place.dead() == {
        ("3", 1, "rejected", "no such account"),
        ("7", 3, "delivery limit reached", "ValueError: attempt 3"),
    }


def test_a_report_has_dead_letters_where_the_engine_says_and_the_run_over_time(place: GroupPlace) -> None:
    file = place.directory / "report.html"
    assert main(["report", "--location", str(place.directory / "state"), "--html", str(file)]) == 0
    page = file.read_text()
    assert "rejected: no such account" in page
    assert "Time of a micro-batch" in page
    assert "not readable" not in page.lower()


def test_progress_adds_up(place: GroupPlace) -> None:
    batches = place.progress
    assert sum(p.acquired for p in batches) == RECORDS + 2 + 2 + 1
    assert sum(p.accepted for p in batches) == RECORDS - 2
    assert (sum(p.rejected for p in batches), sum(p.limit_reached for p in batches)) == (1, 1)
    assert batches[-1].lag == 0


def test_the_status_table_is_up_to_date_at_the_end_of_a_run(place: GroupPlace) -> None:
    rows = place.spark.newSession().sql(f"SELECT * FROM delta.`{place.directory}/state/share_partition_state`")
    assert {(row.start_offset, row.end_offset, row.acquired) for row in rows.collect()} == {(20, 20, 0)}


def test_a_second_run_goes_on_where_the_first_ended(place: GroupPlace, caplog: pytest.LogCaptureFixture) -> None:
    """With its checkpoint deleted, it says so and goes on from the state."""
    shutil.rmtree(place.directory / "state" / "_checkpoints")
    place.put(range(100, 104))
    before = place.calls()
    assert place.engine_end() == (EndKind.WORKED_OFF, "")
    with caplog.at_level(logging.WARNING):
        place.work_off(moody(place.directory / "calls"))
    assert place.calls() - before == {(str(n), 1): 1 for n in range(100, 104)}
    assert "goes on from its state" in caplog.text


def test_a_checkpoint_of_another_group_is_refused(place: GroupPlace) -> None:
    checkpoint = str(next((place.directory / "state" / "_checkpoints").iterdir()))
    with pytest.raises(ConfigError, match="belongs to group 'billing'"):
        place.group(moody(place.directory / "calls"), "shipping", checkpointLocation=checkpoint).start()


def short(batch: pa.RecordBatch) -> list[int]:
    return [1] * (batch.num_rows - 1)


class Unknown:
    """Pickles, and cannot be loaded: its module is not on the workers."""

    def __call__(self, record: Any) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("no_such_module",)


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(short, marks=pytest.mark.long),
        Unknown(),
        pytest.param(lambda _: (Ack.ACCEPT, {"id": 1}), marks=pytest.mark.long),
    ],
)
def test_a_contract_broken_as_a_whole_ends_the_run_and_charges_no_record_however_often(
    place: GroupPlace, handler: Any
) -> None:
    place.put(range(200, 280))
    for _ in range(3):
        with pytest.raises(HandlerError):
            place.work_off(handler, **{"share.delivery.count.limit": 2})
    assert sum(available for _, _, available, _ in place.ends()) == 80
    before = place.calls()
    place.work_off(moody(place.directory / "calls"))
    assert {count for (_, count), times in (place.calls() - before).items() if times} == {1}


def test_a_record_that_breaks_its_contract_fails_and_the_others_go_on(place: GroupPlace) -> None:
    place.put(range(210, 214))
    place.work_off(lambda record: "perhaps" if record.value == b"211" else None, **{"share.delivery.count.limit": 2})
    assert sum(available + acquired for _, _, available, acquired in place.ends()) == 0


@pytest.mark.parametrize(("by", "error"), [("Spark", "on fire"), ("workers", "No such file")])
def test_records_that_cannot_be_read_are_not_charged(
    place: GroupPlace, monkeypatch: pytest.MonkeyPatch, by: str, error: str
) -> None:
    place.put(range(220, 224))
    with monkeypatch.context() as patch:
        read, for_workers = EmbeddedTopicLog.read, EmbeddedTopicLog.for_workers

        def broken(log: EmbeddedTopicLog, *given: Any) -> Any:
            return read(log, *given).withColumn("offset", F.expr("raise_error('on fire')").cast("bigint"))

        def gone(log: EmbeddedTopicLog, *given: Any, **named: Any) -> Any:
            """After a VACUUM that did not wait."""
            found = for_workers(log, *given, **named)
            assert found is not None
            files = {at: [file._replace(path=f"{file.path}.gone") for file in some] for at, some in found.files.items()}
            return TopicFileReader(files)

        patch.setattr(EmbeddedTopicLog, "read", broken)
        patch.setattr(EmbeddedTopicLog, "for_workers", gone if by == "workers" else lambda *_, **__: None)
        for _ in range(3):
            with pytest.raises(TopicError, match=f"cannot be read: .*{error}"):
                place.work_off(lambda _: None, **{"share.delivery.count.limit": 2})
    before = place.calls()
    place.work_off(moody(place.directory / "calls"))
    assert {count for (_, count), times in (place.calls() - before).items() if times} == {1}


def test_stop_leaves_nothing_acquired(place: GroupPlace) -> None:
    """R57: after the micro-batch that runs; its acknowledgements are committed."""
    place.put(range(300, 308))
    query = place.group(lambda _: Ack.RELEASE, **{"share.delivery.count.limit": 25})
    running = query.trigger(processingTime="100 milliseconds").start()
    before = len(place.progress)
    deadline = time.monotonic() + 60
    while len(place.progress) < before + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.isActive
    running.stop()
    assert not running.isActive
    assert running.exception() is None
    assert place.engine_end() == (EndKind.STOPPED, "")
    assert [acquired for *_, acquired in place.ends()] == [0, 0]
    assert sum(available for _, _, available, _ in place.ends()) == 8


@pytest.mark.parametrize("interval", [None, "0 seconds"])
def test_a_tick_of_sparks_has_many_micro_batches_unless_an_interval_is_asked_for(
    place: GroupPlace, interval: str | None, tmp_path: Path
) -> None:
    """Each tick leaves a file among the commits of Spark's checkpoint."""
    place.put(range(400, 420))
    seen: list[MicroBatchProgress] = []
    options = {"max.records.per.trigger": 2, "checkpointLocation": str(tmp_path)}
    query = place.group(lambda _: None, "ticks", **options).listen(seen.append)
    running = query.trigger(processingTime=interval) if interval else query.trigger()
    started = running.start()
    started.processAllAvailable()
    started.stop()
    ticks = [file for file in (tmp_path / "commits").iterdir() if file.name.isdecimal()]
    numbers = [one.batch_id for one in seen]
    assert numbers == sorted(set(numbers))
    assert (len(ticks) >= len(seen) - 1) == (interval is not None), f"{len(ticks)} ticks, {len(seen)} micro-batches"


@pytest.mark.long
@pytest.mark.parametrize("stopped", [True, False])
def test_a_fault_of_sparks_own_query_is_named_and_harmless_once_the_work_is_to_end(
    place: GroupPlace, stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place.put(range(RECORDS))
    seen: list[MicroBatchProgress] = []

    def meddle(progress: MicroBatchProgress) -> None:
        """Spark fails at the end of the first micro-batch; the engine ends only then, though it is asked to before."""
        seen.append(progress)
        if len(seen) > 1:
            while query.sparkQuery is not None and query.sparkQuery.isActive:
                time.sleep(0.02)
            return
        commits = Path(query.checkpoint.directory.removeprefix("file:")) / "commits"
        shutil.rmtree(commits)
        commits.write_text("in the way")
        if stopped:
            stopper.start()
            while not query._over.is_set():
                time.sleep(0.02)

    group = place.group(lambda _record: None, f"ticks-{stopped}", **{"max.records.per.trigger": 10}).listen(meddle)
    stopper = threading.Thread(target=lambda: query.stop())
    # With an interval a trigger is one micro-batch.
    query = group.trigger(processingTime="10 milliseconds").start()
    if stopped:
        assert query.awaitTermination(60)
        assert "Spark's streaming query has failed: parent is not a dir" in caplog.text
    else:
        with pytest.raises(EnvironmentFault, match="streaming query has failed: parent is not a dir"):
            query.awaitTermination(60)
    assert sum(progress.accepted for progress in seen) == 10  # what was begun is committed either way


def test_it_compacts_by_itself_if_wanted(place: GroupPlace) -> None:
    """Only background maintenance writes a checkpoint of the log so soon."""
    checkpoint = place.directory / "state" / "share_state_log" / "_delta_log" / "_last_checkpoint"
    assert not checkpoint.exists()
    query = place.group(
        moody(place.directory / "calls"), **{"compaction.interval": "1s", "state.refresh": "1s"}
    ).start()
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()
    assert checkpoint.exists()
    assert query.exception() is None


def test_the_query_speaks_as_sparks_own(place: GroupPlace) -> None:
    place.put(range(400, 408))
    query = place.group(lambda _: None).queryName("billing").start()
    query.processAllAvailable()
    assert [(start == end, available) for start, end, available, _ in place.ends()] == [(True, 0)] * 2
    assert query.isActive
    assert query.status["isDataAvailable"] is False
    assert query.sparkQuery is not None
    assert (query.name, query.id, query.runId) == ("billing", query.sparkQuery.id, query.sparkQuery.runId)
    assert query.lastProgress == query.recentProgress[-1]
    assert "billing" in repr(query)
    query.stop()
    query.processAllAvailable()
    assert query.status == {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}


def test_waiting_for_all_raises_what_ended_the_query(place: GroupPlace) -> None:
    place.put(range(500, 502))
    query = place.group(wrong_length).start()
    with pytest.raises(HandlerError):
        query.processAllAvailable()
    assert query.status["message"] == f"Failed: {place.engine_end()[1]}"
    assert place.engine_end()[0] is EndKind.FAILED
    place.work_off(lambda _: None)


def test_the_heartbeat_says_since_when_the_breaker_is_open(place: GroupPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "Heartbeat", partial(Heartbeat, every_ms=50))
    place.put(range(600, 620))
    options = {"delivery.breaker.failure.rate": 0.5, "share.delivery.count.limit": 25}
    query = place.group(lambda _: Ack.RELEASE, **options).start()
    admin, deadline = ShareGroupAdmin(str(place.directory / "state")), time.monotonic() + 60

    def open_since_ms() -> int:
        engine = admin.describe_group("billing").engine
        return 0 if engine is None else engine.beat.breaker_open_ms

    while not (since_ms := open_since_ms()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert since_ms > 0
    time.sleep(0.2)
    assert open_since_ms() == since_ms
    query.stop()
    assert open_since_ms() == 0
    place.work_off(lambda _: None)


def wrong_length(batch: pa.RecordBatch) -> list[int]:
    return [1] * (batch.num_rows + 1)


def test_a_query_goes_on_if_another_one_has_written_to_its_checkpoint(place: GroupPlace) -> None:
    """As an engine of the group does that started at the same moment, and was replaced by this one."""
    query = place.group(moody(place.directory / "calls")).start()
    offsets = place.directory / "state" / "_checkpoints" / "billing" / "offsets"
    try:
        first, deadline = query.runId, time.monotonic() + 60
        while query.runId == first:
            assert time.monotonic() < deadline
            newest = max((int(file.name) for file in offsets.glob("[0-9]*")), default=None)
            if newest is not None:
                shutil.copyfile(offsets / str(newest), offsets / str(newest + 1))
            assert not query.awaitTermination(0.2)
        place.put(range(300, 304))
        query.processAllAvailable()
        assert {("300", 1), ("303", 1)} <= place.calls().keys()
    finally:
        query.stop()
    assert place.engine_end()[0] is EndKind.STOPPED
