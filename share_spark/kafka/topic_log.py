"""The topic log on Kafka. Log ends come from librdkafka. Workers read few records, and those of many partitions,
themselves (``record_reader``). Spark's Kafka source reads all others: it is then faster, and the only way if all
records have to go through Spark (order of keys, handlers of frames).

Two settings make small reads by Spark fast. Measured: 40 records in 4 ranges, warm, from planning to the end of a small
aggregate, take 0.13 s with Spark's defaults, 0.10 s with the newer source, 0.06 s with consumers reused as well.

Newer source: the older one, Spark's default for batch reads, also turns every record into a Java row and back, a fifth
of the time of a large read. So reads are made in a session of our own, cloned from the user's, that uses the newer one.

Reused consumers: Spark makes a new consumer group for every read, and so never finds a cached consumer; a fixed
``group.id`` keeps them. No group is joined and no offset committed (partitions are assigned), so the id is only the
name of a pool of consumers. It contains the topics' ids, so that records prefetched from a topic that has been deleted
are never returned. If the log of a partition ends lower than before, a new pool is used: the prefetched records are not
in the log any more.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import RECORD_COLUMNS, OffsetSpan, TopicDescription
from share_spark.engine.spans import covering_spans, records_in
from share_spark.kafka.broker_admin import (
    EARLIEST,
    LATEST,
    BrokerAdmin,
    at_timestamp,
    topic_id_text,
)
from share_spark.kafka.record_reader import FEW_PARTITIONS, KafkaReader, can_read
from share_spark.kafka.record_times import times_at
from share_spark.kafka.span_reads import SpanRead, plan_reads
from share_spark.model.errors import TopicError
from share_spark.model.ids import LogEnds
from share_spark.spark.frames import cloned_session

if TYPE_CHECKING:
    from confluent_kafka.admin._listoffsets import OffsetSpec
    from confluent_kafka.admin._topic import TopicDescription as KafkaTopicDescription
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.kafka.options import KafkaOptions

LARGE_POLLS = {"kafka.max.poll.records": "20000", "kafka.fetch.max.wait.ms": "10"}
"""Settings for large polls. After each poll Spark looks up the log's ends by seeking there and back: prefetched records
are thrown away, and a fetch beyond the last record waits at the broker for ``fetch.max.wait.ms``. With Kafka's defaults
(500 records, 0.5 s) that is four fifths of the time of a large read; with these polls are large (a fetch still ends at
1 MB, Kafka's default), and waits short. Settings of the user win."""

_MOST_BY_WORKERS = 10_000
"""The number of records up to which planning a job of Spark's source takes more time than reading in the JVM saves."""

_MOST_INSTEAD_OF_SHUFFLE = 400_000
"""The same if Spark would shuffle and sort what it has read."""

_OLDER_SOURCES = "spark.sql.sources.useV1SourceList"
_REQUEST_TIMEOUT_MS = 30_000
"""The default of Kafka's consumer."""

_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def _new_run() -> str:
    return uuid.uuid4().hex[:12]


class KafkaTopicLog:
    """TopicLog on a Kafka cluster. For the driver only; it cannot be sent to executors.

    ``request_timeout_ms`` bounds every request to the broker. ``poll_timeout_ms`` bounds how long an executor waits for
    records below the log end. Both in milliseconds.
    """

    def __init__(
        self,
        options: KafkaOptions,
        *,
        request_timeout_ms: int = 10_000,
        poll_timeout_ms: int = 60_000,
    ) -> None:
        self._options = options
        self._admin = BrokerAdmin(options, request_timeout_ms)
        self._request_timeout_ms = request_timeout_ms
        self._poll_timeout_ms = poll_timeout_ms
        self._run = _new_run()
        self._topic_ids: dict[str, str] = {}
        self._log_ends: dict[str, dict[int, int]] = {}
        self._workers_read: bool | None = None
        self._cloned: tuple[SparkSession, SparkSession] | None = None

    def __repr__(self) -> str:
        return f"KafkaTopicLog({self._options.bootstrap_servers})"

    def describe_all(self) -> list[TopicDescription]:
        """Return all topics, without the cluster's own. Raises TopicError, TopicUnreachableError."""
        return [self._description(found) for found in self._admin.describe_all()]

    def describe(self, topic: str) -> TopicDescription:
        """Return the topic. Its id is its name on brokers that have no topic ids (before Kafka 2.8): there a topic that
        was deleted and created again cannot be distinguished from the old one."""
        return self._description(self._admin.describe(topic))

    def _description(self, found: KafkaTopicDescription) -> TopicDescription:
        topic = str(found.name)
        partitions = tuple(sorted(partition.id for partition in found.partitions))
        if not partitions:
            raise TopicError(f"topic {topic!r} has no partitions")
        topic_id = topic_id_text(found.topic_id) or topic
        self._topic_ids[topic] = topic_id
        return TopicDescription(topic=topic, topic_id=topic_id, partitions=partitions)

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """Return the log start, and the high watermark or (``read_committed``) the last stable offset. The latter is
        not the end of the log, so the high watermark is reported as well."""
        partitions = self.describe(topic).partitions
        starts, ends = self._offsets(topic, partitions, EARLIEST, LATEST)
        marks = self._high_watermarks(topic, partitions)
        found = {p: LogEnds(starts[p], ends[p], marks.get(p)) for p in partitions}
        self._note_log_ends(topic, {p: end.log_end for p, end in found.items()})
        return found

    def _high_watermarks(self, topic: str, partitions: Iterable[int]) -> Mapping[int, int]:
        """Return the high watermarks; empty if the ends are high watermarks themselves."""
        if not self._options.read_committed:
            return {}
        return self._admin.offsets(topic, partitions, (LATEST,), committed=False)[0]

    def _note_log_ends(self, topic: str, ends: dict[int, int]) -> None:
        """Change the pool if a log end goes back: records that its consumers have prefetched must not be returned."""
        before = self._log_ends.get(topic, {})
        if any(end < before.get(partition, 0) for partition, end in ends.items()):
            self._run = _new_run()
        self._log_ends[topic] = ends

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """Return the first offset with a timestamp at or after ``timestamp_ms``, else the end offset."""
        partitions = self.describe(topic).partitions
        found, ends = self._offsets(topic, partitions, at_timestamp(timestamp_ms), LATEST)
        return {p: found[p] if found[p] >= 0 else ends[p] for p in partitions}

    def times_at(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Return, by partition, the timestamp of the first record at or after its offset; see ``record_times``."""
        return times_at(self._options, topic, offsets, self._request_timeout_ms)

    def stop_waiting(self) -> None:
        """See TopicLog."""
        self._admin.stop_waiting()

    def read(self, spark: SparkSession, spans: Sequence[OffsetSpan], tasks: int) -> DataFrame:
        """Return the records inside ``spans``; see TopicLog. Spans must end below the log end: beyond it an executor
        waits for ``poll_timeout_ms`` and then fails."""
        reads = plan_reads(spans, tasks)
        if not reads:
            return spark.createDataFrame([], RECORD_COLUMNS)
        session = self._reading_session(spark)
        group_id = self._pool_name({span.topic for span in spans})
        frames = [self._frame(session, read, group_id) for read in reads]
        frame = functools.reduce(lambda left, right: left.unionAll(right), frames)
        # Without locality, coalesce packs neighbours: each partition's offsets stay ascending.
        return frame.coalesce(tasks) if sum(read.pieces for read in reads) > tasks else frame

    def for_workers(
        self, spark: SparkSession | None, acquired: Sequence[AcquiredSpan], *, ordered: bool
    ) -> KafkaReader | None:
        """Return a reader. None where Spark is faster, and where workers lack the client or do not reach Kafka."""
        topics = {one.partition.topic for one in acquired}
        if spark is None:
            return KafkaReader.of(self._options, self._pool_name(topics), self._poll_timeout_ms, len(acquired))
        most = _MOST_INSTEAD_OF_SHUFFLE if ordered else _MOST_BY_WORKERS
        if len(acquired) <= FEW_PARTITIONS and records_in(covering_spans(acquired)) > most:
            return None
        reader = KafkaReader.of(self._options, self._pool_name(topics), self._poll_timeout_ms, len(acquired))
        if self._workers_read is None:
            self._workers_read = can_read(spark, reader, topics)
        return reader if self._workers_read else None

    def _offsets(self, topic: str, partitions: Iterable[int], *specs: OffsetSpec) -> list[dict[int, int]]:
        committed = self._options.read_committed
        return self._admin.offsets(topic, partitions, specs, committed=committed)

    def _reading_session(self, spark: SparkSession) -> SparkSession:
        """Return a clone of ``spark`` that has the newer source."""
        if self._cloned is None or self._cloned[0] is not spark:
            older = (spark.conf.get(_OLDER_SOURCES) or "").split(",")
            chosen = ",".join(name for name in older if name.strip() != "kafka")
            self._cloned = spark, cloned_session(spark, {_OLDER_SOURCES: chosen})
        return self._cloned[1]

    def _frame(self, spark: SparkSession, read: SpanRead, group_id: str) -> DataFrame:
        starting, ending = read.offsets_json()
        options = {
            "assign": read.assign_json(),
            "startingOffsets": starting,
            "endingOffsets": ending,
            "minPartitions": str(read.pieces),
            # Records may expire between planning and reading. The engine compares what came with what it acquired.
            "failOnDataLoss": "false",
            "includeHeaders": "true",
            "kafkaConsumer.pollTimeoutMs": str(self._poll_timeout_ms),
            # For the position, before the first poll. Kafka wants the second not to be above the first.
            "kafka.default.api.timeout.ms": str(self._poll_timeout_ms),
            "kafka.request.timeout.ms": str(min(self._poll_timeout_ms, _REQUEST_TIMEOUT_MS)),
            "kafka.group.id": group_id,
            **LARGE_POLLS,
            **self._source_options,
        }
        return spark.read.format("kafka").options(**options).load().select(*_COLUMNS)

    @functools.cached_property
    def _source_options(self) -> dict[str, str]:
        return self._options.spark_source()

    def _pool_name(self, topics: set[str]) -> str:
        """Return the name of the executors' consumers; it changes with the topics' ids as last seen."""
        ids = " ".join(sorted(self._topic_ids.get(topic, topic) for topic in topics))
        return f"share-spark-{self._run}-{hashlib.sha256(ids.encode()).hexdigest()[:12]}"
