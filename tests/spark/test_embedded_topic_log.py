"""The topic log on a Delta table: the common cases, and what is its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from share_spark.delivery.kept_rows import RECORD_SCHEMA
from share_spark.delivery.reader_input import ReaderInput
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.location import Location, sql_literal
from share_spark.delta.table_log import UnknownTableError
from share_spark.delta.table_maintenance import KeptTable
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import OffsetSpan
from share_spark.engine.ranges import AcquiredRanges
from share_spark.model.errors import TopicError
from share_spark.model.ids import LogEnds, TopicPartition
from share_spark.spark.delta_log import clean_log_privately
from share_spark.spark.frames import murmur3
from share_spark.spark.threads import TASK_COLUMN
from share_spark.topics import topic_registry
from share_spark.topics.topic_appends import DirectTopicAppends
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_registry import TopicEntry
from share_spark.topics.topic_table import EmbeddedTopicLog
from tests.support.topic_log_cases import (
    Sent,
    TopicLogCases,
    fresh_name,
    hundreds,
    numbered,
    offsets,
    spanned,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class EmbeddedLab:
    """TopicLab on a Delta table."""

    def __init__(self, log: EmbeddedTopicLog) -> None:
        self.log = log

    def create(self, topic: str, partitions: int) -> None:
        self.log.create_topic(topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        self.log.add_partitions(topic, partitions)

    def put(self, topic: str, records: Mapping[int, Sequence[Sent]]) -> None:
        self.log.append(
            topic,
            [
                Message(sent.value, sent.key, partition, _time(sent), sent.headers or None)
                for partition, many in records.items()
                for sent in many
            ],
        )

    def trim(self, topic: str, before: Mapping[int, int]) -> None:
        self.log.delete_records(topic, before)

    def delete(self, topic: str) -> None:
        self.log.delete_topic(topic)


def _time(sent: Sent) -> datetime | None:
    millis = sent.timestamp_ms
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("topics") / "table")


@pytest.fixture(scope="module")
def lab(spark: SparkSession, table: str) -> EmbeddedLab:
    return EmbeddedLab(EmbeddedTopicLog(spark, table))


@pytest.fixture(scope="module")
def orders(lab: EmbeddedLab) -> str:
    return hundreds(lab)


class TestEmbeddedTopicLog(TopicLogCases):
    """The common cases."""


def test_gaps_are_missing_and_the_end_stays(spark: SparkSession, lab: EmbeddedLab) -> None:
    topic = fresh_name()
    lab.create(topic, 1)
    lab.put(topic, {0: numbered(10)})
    lab.log.remove_offsets(topic, {0: [3, 4, 9]})
    assert lab.log.log_ends(topic) == {0: LogEnds(0, 10)}
    found = offsets(lab.log.read(spark, [OffsetSpan(topic, 0, 2, 9)], 2))
    assert [offset for _, _, offset in found] == [2, 5, 6, 7, 8]
    lab.put(topic, {0: numbered(1)})
    assert lab.log.log_ends(topic) == {0: LogEnds(0, 11)}


SCHEMA = pa.schema([*RECORD_SCHEMA, pa.field("delivery_count", pa.int32()), pa.field(TASK_COLUMN, pa.string())])


def by_workers(log: EmbeddedTopicLog, topic: str, ends: Mapping[int, int], tasks: int = 3) -> list[list[Any]] | None:
    """All records as the tasks take them from files, a list for each; None: Spark has to read them."""
    acquired = [
        AcquiredSpan(TopicPartition(topic, at), AcquiredRanges(np.array([[0, end - 1, 1]]))) for at, end in ends.items()
    ]
    reader = log.for_workers(log._table.spark, acquired, ordered=False)
    if reader is None:
        return None
    found = ReaderInput.of(reader, acquired, tasks=tasks, most_rows=7)
    batches = [list(found.batches(task, SCHEMA)) for task in range(tasks)]
    assert all(batch.num_rows <= 7 for some in batches for batch in some)
    return [pa.Table.from_batches(some, SCHEMA).drop_columns([TASK_COLUMN]).to_pylist() for some in batches]


def test_workers_take_from_files_what_spark_reads(spark: SparkSession, lab: EmbeddedLab, table: str) -> None:
    """Whatever has been done to the table: many appends, by Spark too, gaps, a moved log start, an OPTIMIZE that mixed
    the rows of files."""
    topic, log = fresh_name(), lab.log
    lab.create(topic, 2)

    def check() -> list[list[Any]]:
        ends = {at: max(end.end_offset, 1) for at, end in log.log_ends(topic).items()}
        found = by_workers(log, topic, ends)
        assert found is not None
        assert [task == sorted(task, key=place_of) for task in found] == [True] * 3
        read = log.read(spark, [OffsetSpan(topic, at, 0, end) for at, end in ends.items()], 1).toArrow().to_pylist()
        expected = [{**row, "headers": row["headers"] or [], "delivery_count": 1} for row in read]
        assert sorted((row for task in found for row in task), key=place_of) == sorted(expected, key=place_of)
        return found

    def place_of(row: Any) -> tuple[int, int]:
        return row["partition"], row["offset"]

    assert check() == [[], [], []]
    lab.put(
        topic, {0: [*numbered(20), Sent(None, b"key", 1_700_000_000_123, [("a", b"1"), ("b", b"")])], 1: [Sent(b"")]}
    )
    assert [len(task) for task in check()] == [7, 7, 8]
    for _ in range(3):
        log.append(
            topic,
            spark.range(10).selectExpr("encode(string(id), 'utf-8') AS value", "cast(id % 2 AS int) AS partition"),
        )
    check()
    log.remove_offsets(topic, {0: [3, 4, 9]})
    log.delete_records(topic, {0: 2, 1: 1})
    check()
    everything = AcquiredSpan(TopicPartition(topic, 0), AcquiredRanges(np.array([[0, 100, 1]])))
    before = log.for_workers(spark, [everything], ordered=False)
    spark.sql(f"OPTIMIZE delta.`{table}` WHERE topic = {sql_literal(topic)}").collect()
    check()
    optimized = log.for_workers(spark, [everything], ordered=False)
    assert before is not None
    assert optimized is not None
    assert len(optimized.files[everything.partition]) == 1 < len(before.files[everything.partition])


def test_what_only_spark_can_read(spark: SparkSession, tmp_path: Path) -> None:
    log = EmbeddedTopicLog(spark, str(tmp_path))
    log.create_topic("orders", 1)
    log.append("orders", [Message(b"%d" % number) for number in range(5)])
    assert [len(task) for task in by_workers(log, "orders", {0: 5}) or ()] == [1, 2, 2]
    spark.sql(f"ALTER TABLE delta.`{tmp_path}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    assert by_workers(log, "orders", {0: 5}) is not None
    spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE offset = 2")
    assert by_workers(log, "orders", {0: 5}) is None


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_a_producer_that_was_quiet_while_others_appended_and_cleaned_up(
    spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    """No offset is given twice, and no record is lost below a checkpoint, in whatever form that is."""
    quiet, busy = (EmbeddedTopicLog(spark, str(tmp_path)) for _ in range(2))
    quiet.create_topic("orders", 1)
    spark.sql(f"ALTER TABLE delta.`{tmp_path}` SET TBLPROPERTIES ('delta.checkpointPolicy' = '{policy}')")
    quiet.append("orders", [Message(b"0")])
    for number in (1, 2, 3):
        busy.append("orders", [Message(b"%d" % number)])
    for path in (tmp_path / "_delta_log").iterdir():
        os.utime(path, (1_000, 1_000))
    clean_log_privately(spark, str(tmp_path), has_checkpoint=False, retention_ms=1)
    assert sorted(path.name for path in (tmp_path / "_delta_log").glob("*.json"))[0] > "00000000000000000003"
    assert EmbeddedTopicLog(spark, str(tmp_path)).log_ends("orders") == {0: LogEnds(0, 4)}
    assert quiet.append("orders", [Message(b"4")]) == {0: 5}
    found = spark.read.format("delta").load(str(tmp_path)).select("offset", "value").collect()
    assert sorted((row.offset, int(row.value)) for row in found) == [(number, number) for number in range(5)]


def test_another_process_sees_the_same(spark: SparkSession, lab: EmbeddedLab, table: str) -> None:
    topic = fresh_name()
    lab.create(topic, 2)
    lab.put(topic, {0: numbered(5), 1: numbered(7)})
    lab.trim(topic, {0: -1})
    fresh = EmbeddedTopicLog(spark, table)
    assert fresh.describe(topic) == lab.log.describe(topic)
    assert fresh.log_ends(topic) == {0: LogEnds(5, 5), 1: LogEnds(0, 7)}


@pytest.mark.parametrize(
    "by_spark",
    [
        pytest.param(set(), id="directly"),
        pytest.param({b"b"}, id="mixed"),
        pytest.param({b"a", b"b"}, id="by Spark", marks=pytest.mark.long),
    ],
)
def test_two_producers_never_assign_the_same_offsets(
    spark: SparkSession, lab: EmbeddedLab, table: str, by_spark: set[bytes]
) -> None:
    topic = fresh_name()
    lab.create(topic, 1)
    start = threading.Barrier(2)

    def produce(name: bytes) -> None:
        log = EmbeddedTopicLog(spark, table)
        start.wait()
        for _ in range(3):
            if name in by_spark:
                log.append(topic, spark.createDataFrame([(name,)] * 10, "value binary"))
            else:
                log.append(topic, [Message(name)] * 10)

    threads = [threading.Thread(target=produce, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lab.log.log_ends(topic) == {0: LogEnds(0, 60)}
    span = OffsetSpan(topic, 0, 0, 59)
    frame = lab.log.read(spark, [span], 1)
    assert offsets(frame) == spanned(span)
    assert frame.where(F.col("value") == b"a").count() == 30


def test_messages_need_no_spark_job_and_spark_where_the_table_asks_for_it(
    spark: SparkSession, lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh_name()
    lab.create(topic, 1)
    lab.put(topic, {0: numbered(1)})

    def jobs() -> int:
        """The last job; not their number, as Spark forgets old ones."""
        return max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)

    before = jobs()
    lab.log.append(topic, [Message(b"1", b"key", headers=[("a", None), ("b", b"x")]), Message(None)])
    assert jobs() == before

    def refuse(*_: object, **__: object) -> None:
        raise UnknownTableError("a test")

    monkeypatch.setattr(DirectTopicAppends, "to", refuse)
    other = EmbeddedTopicLog(spark, lab.log._table.location)
    assert other.append(topic, [Message(b"1", b"key", headers=[("a", None), ("b", b"x")]), Message(None)]) == {0: 5}
    assert jobs() > before
    rows = lab.log.read(spark, [OffsetSpan(topic, 0, 1, 4)], 1).drop("offset", "timestamp").collect()
    assert rows[:2] == rows[2:]


def test_an_append_whose_outcome_is_unknown_is_not_repeated(lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage fails when the commit is there already, and when it is not."""
    topic = fresh_name()
    lab.create(topic, 1)
    commit, is_written = CommitFiles.commit, [True, False]

    def failing(files: CommitFiles, version: int, *given: Any) -> bool:
        if is_written.pop(0):
            commit(files, version, *given)
        raise OSError("the storage is gone")

    monkeypatch.setattr(CommitFiles, "commit", failing)
    assert lab.log.append(topic, [Message(b"1")]) == {0: 1}
    with pytest.raises(TopicError, match="the storage is gone"):
        lab.log.append(topic, [Message(b"2")])
    monkeypatch.undo()
    assert lab.log.append(topic, [Message(b"3")]) == {0: 2}
    assert lab.log.log_ends(topic) == {0: LogEnds(0, 2)}


def test_keys_decide_and_records_without_go_in_turn(spark: SparkSession, lab: EmbeddedLab) -> None:
    topic = fresh_name()
    lab.create(topic, 4)
    keyed = spark.range(200).select(
        F.col("id").cast("string").cast("binary").alias("value"),
        F.when(F.col("id") < 100, F.encode((F.col("id") % 10).cast("string"), "utf-8")).alias("key"),
    )
    ends = lab.log.append(topic, keyed)
    assert sum(ends.values()) == 200
    spans = [OffsetSpan(topic, partition, 0, end - 1) for partition, end in ends.items()]
    rows = lab.log.read(spark, spans, 2)
    assert offsets(rows) == spanned(*spans)
    places = rows.where("key is not null").groupBy("key").agg(F.countDistinct("partition").alias("n"))
    assert {row.n for row in places.collect()} == {1}
    in_turn = {row["count"] for row in rows.where("key is null").groupBy("partition").count().collect()}
    assert in_turn == {25}


def test_spark_sees_the_topics_that_were_made_without_it(spark: SparkSession, tmp_path: Path) -> None:
    place = Location(path=str(tmp_path / "topics"))
    log = EmbeddedTopicLog(spark, place)
    log.create_topic("kept", 2)
    log.create_topic("dropped", 1)
    KeptTable(spark, place).checkpoint()
    log.add_partitions("kept", 3)
    log.append("kept", [Message(b"x", partition=2)])
    log.delete_topic("dropped")
    rows = spark.sql(f"SHOW TBLPROPERTIES {place.sql_name()}").collect()
    found = topic_registry.entries({row.key: row.value for row in rows})
    assert found == {"kept": TopicEntry(topic_id=log.describe("kept").topic_id, partitions=3)}
    history = spark.sql(f"DESCRIBE HISTORY {place.sql_name()}").collect()
    assert [row.operation for row in history].count("SET TBLPROPERTIES") == 5, "one more puts the log start"


def test_rows_that_another_program_appended_count(spark: SparkSession, lab: EmbeddedLab, table: str) -> None:
    topic = fresh_name()
    lab.create(topic, 1)
    lab.put(topic, {0: numbered(3)})
    rows = lab.log.read(spark, [OffsetSpan(topic, 0, 0, 2)], 1)
    rows.withColumn("offset", F.col("offset") + 3).write.format("delta").mode("append").save(table)
    assert lab.log.log_ends(topic) == {0: LogEnds(0, 6)}
    lab.put(topic, {0: numbered(1)})
    assert lab.log.log_ends(topic) == {0: LogEnds(0, 7)}


def test_a_table_of_the_catalog(spark: SparkSession) -> None:
    log = EmbeddedTopicLog(spark, "default.topics_by_name")
    log.create_topic("orders", 1)
    log.append("orders", [Message(b"1"), Message(b"2")])
    log.append("orders", [Message(b"3")])
    assert log.log_ends("orders") == {0: LogEnds(0, 3)}
    assert log.read(spark, [OffsetSpan("orders", 0, 0, 2)], 2).count() == 3


def test_bad_requests_are_refused_by_name(lab: EmbeddedLab) -> None:
    topic = fresh_name()
    lab.create(topic, 1)
    with pytest.raises(TopicError, match="exists already"):
        lab.create(topic, 1)
    with pytest.raises(TopicError, match="not a valid topic name"):
        lab.create("a/b", 1)
    with pytest.raises(TopicError, match="has no partition 7"):
        lab.put(topic, {7: numbered(1)})
    with pytest.raises(TopicError, match="has 1 partitions already"):
        lab.grow(topic, 1)


def test_other_tables_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TopicError, match="there is no topic table at"):
        EmbeddedTopicLog(spark, str(tmp_path / "missing")).describe("orders")
    foreign = str(tmp_path / "foreign")
    spark.range(1).write.format("delta").save(foreign)
    with pytest.raises(TopicError, match="is not a topic table of share_spark"):
        EmbeddedTopicLog(spark, foreign).describe("orders")
    with pytest.raises(TopicError, match="is not a topic table of share_spark"):
        EmbeddedTopicLog(spark, foreign).create_topic("orders", 1)
    newer = Location.parse(str(tmp_path / "newer"))
    properties = {"share_spark.table": "topic_log", "share_spark.format.version": "2"}
    newer.create(spark, "topic string", properties=properties)
    with pytest.raises(TopicError, match="written by a newer share_spark"):
        EmbeddedTopicLog(spark, newer).describe("orders")


def test_our_hash_is_sparks(spark: SparkSession) -> None:
    values = [*range(20), -1, 2**31 - 1, -(2**31)]
    rows = spark.createDataFrame([(value,) for value in values], "v int").select("v", F.hash("v"))
    assert {row[0]: row[1] for row in rows.collect()} == {v: murmur3(v) for v in values}
