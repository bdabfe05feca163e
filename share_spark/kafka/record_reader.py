"""Records, read in a Python worker by one consumer.

Planning a job of Spark's Kafka source takes longer than reading a thousand records. It also has a consumer for each
topic-partition, of which an executor keeps 64: beyond that each read makes a new one, which took 12 s for a record in
each of a thousand partitions. librdkafka asks each broker for all partitions at once. Spans are read in layers, as a
consumer has one position in each partition:

    orders-0   [10..19]   [40..49]   [90..99]
    orders-1   [ 5..99]
    orders-2   [ 0.. 3]   [ 7.. 9]
                  |          |          |
              layer 1    layer 2    layer 3

Nothing joins a group or commits.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from share_spark.engine.acquired_positions import AcquiredPositions
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import OffsetSpan
from share_spark.engine.ranges import FIRST, AcquiredRanges, laid
from share_spark.engine.record_reader import in_schema, never_stops
from share_spark.engine.spans import covering_spans
from share_spark.kafka.options import KafkaOptions, without_secrets
from share_spark.model.errors import TopicError, TopicUnreachableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_CLIENT_LOG = logging.getLogger(f"{__name__}.librdkafka")
_CLIENT_LOG.setLevel(logging.CRITICAL)
"""librdkafka logs every failed attempt to connect; our error has it once. Lower the level to see all of them."""

_SETTINGS: dict[str, Any] = {
    "enable.auto.commit": False,
    # Shows that nothing comes any more: the last offsets may hold no record.
    "enable.partition.eof": True,
    # If records have expired since they were acquired, read the remaining ones.
    "auto.offset.reset": "earliest",
}

_FETCHES = {"fetch.wait.max.ms": "10", "fetch.queue.backoff.ms": "10", "queued.min.messages": "1000"}
"""A fetch that waits for more records delays the next one, and so do queues that are looked at once a second. Records
fetched ahead are thrown away with the spans: a queue of 100,000, the client's default, takes twice the time."""

FEW_PARTITIONS, _LITTLE = 64, {"fetch.message.max.bytes": "65536"}
"""A limit for reads of more partitions: only a few records of each are wanted, and others are thrown away; but a broker
gives at least one batch of its producer, of any size."""

_MOST_ROWS, _MOST_BYTES = 10_000, 16 << 20
"""The most rows and bytes of a batch."""

_POLL_S, _GRACE_S = 0.5, 1.0
"""The time of one wait for records, and of all waits if the engine has to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReader:
    """A RecordReader. ``config``: of librdkafka, with secrets. ``timeout_ms``: the longest time without a record."""

    servers: str
    config: tuple[tuple[str, str], ...] = field(repr=False)
    timeout_ms: int

    @classmethod
    def of(cls, options: KafkaOptions, group_id: str, timeout_ms: int, partitions: int) -> KafkaReader:
        """Return a reader for so many topic-partitions. The client requires ``group_id``. Settings of the user win."""
        level = "read_committed" if options.read_committed else "read_uncommitted"
        ours = _FETCHES if partitions <= FEW_PARTITIONS else _FETCHES | _LITTLE
        config = {"group.id": group_id, **ours, **options.librdkafka_consumer(), "isolation.level": level}
        return cls(servers=options.bootstrap_servers, config=tuple(sorted(config.items())), timeout_ms=timeout_ms)

    def check(self, topics: Iterable[str]) -> None:
        """Check that Kafka answers a consumer made here. Raises ImportError, KafkaException."""
        consumer = _consumer(self)
        for topic in topics:
            consumer.list_topics(topic, self.timeout_ms / 1_000)

    def read(
        self, spans: Sequence[OffsetSpan], columns: Collection[str], is_stopping: Callable[[], bool] = never_stops
    ) -> Iterator[ReadRecords]:
        """Yield the records inside ``spans``, which do not overlap; those of a partition ascend. Raises TopicError;
        TopicUnreachableError (no record for ``timeout_ms``, or for a second if it has to stop)."""
        consumer = _consumer(self)
        try:
            for layer in layers(spans):
                for some in _together(_messages(consumer, self, layer, is_stopping)):
                    yield _read_records(some, columns)
            consumer.unassign()
        except BaseException:
            # The next task does not want records that its partitions still fetch.
            _consumer.cache_clear()
            consumer.close()
            raise

    def part(self, acquired: Sequence[AcquiredSpan]) -> KafkaPart:
        """See ``RecordReader``."""
        return KafkaPart(self, acquired)


class KafkaPart(NamedTuple):
    """A RecordPart."""

    reader: KafkaReader
    acquired: Sequence[AcquiredSpan]

    def batches(self, schema: pa.Schema, most_rows: int, is_stopping: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """See ``RecordPart``. Raises as ``KafkaReader.read``."""
        for batch in self._records(schema, is_stopping) if self.acquired else ():
            for begin in range(0, batch.num_rows, most_rows):
                yield batch.slice(begin, most_rows)

    def _records(self, schema: pa.Schema, is_stopping: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        spans_of = [covering_spans([one]) for one in self.acquired]
        spans = [span for some in spans_of for span in some]
        positions = _positions(spans_of, self.acquired)
        topics = pa.array([span.topic for span in spans], pa.string())
        partitions = pa.array([span.partition for span in spans], pa.int32())
        for read in self.reader.read(spans, schema.names, is_stopping):
            counts = positions.delivery_counts(read.records.column("offset").to_numpy(), read.span)
            is_acquired = pa.array(counts != 0)
            columns = {
                **dict(zip(read.records.schema.names, read.records.columns, strict=True)),
                "topic": topics.take(read.span),
                "partition": partitions.take(read.span),
                "delivery_count": pa.array(counts),
            }
            found = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns]).filter(is_acquired)
            yield in_schema(found, None, schema)


def _positions(spans_of: Sequence[Sequence[OffsetSpan]], acquired: Sequence[AcquiredSpan]) -> AcquiredPositions:
    """Return the positions of the acquired ranges. A section is one of the spans, which cover each of ``acquired`` and
    ascend."""
    first = np.array([span.first_offset for spans in spans_of for span in spans], np.int64)
    last = np.array([span.last_offset for spans in spans_of for span in spans], np.int64)
    ends = np.cumsum([len(spans) for spans in spans_of]).tolist()
    section = [
        np.searchsorted(first[end - len(spans) : end], one.ranges[:, FIRST], side="right") + (end - len(spans) - 1)
        for one, spans, end in zip(acquired, spans_of, ends, strict=True)
    ]
    ranges = AcquiredRanges(laid(one.ranges for one in acquired))
    return AcquiredPositions.of(first, last, ranges, np.concatenate(section))


class ReadRecords(NamedTuple):
    """``records``: offset, and the requested columns of timestamp, key, value, headers. ``span``: the number of the
    span of each of them, from 0."""

    records: pa.RecordBatch
    span: NDArray[np.int32]


@functools.lru_cache(maxsize=2)
def _consumer(reader: KafkaReader) -> Consumer:
    """Return a consumer. It is kept from task to task, with its connections."""
    from confluent_kafka import Consumer

    return Consumer({**dict(reader.config), **_SETTINGS}, logger=_CLIENT_LOG)


def layers(spans: Sequence[OffsetSpan]) -> list[dict[int, OffsetSpan]]:
    """Return layers: the n-th has the n-th span, by its number, of each topic-partition that has as many."""
    by_place: dict[tuple[str, int], list[tuple[int, OffsetSpan]]] = defaultdict(list)
    for number, span in sorted(enumerate(spans), key=lambda numbered: numbered[1]):
        by_place[span.topic, span.partition].append((number, span))
    return [dict(span for span in layer if span is not None) for layer in zip_longest(*by_place.values())]


_Found = tuple[int, "Message"]
"""The number of the record's span, and the record."""


def _messages(
    consumer: Consumer, reader: KafkaReader, layer: dict[int, OffsetSpan], is_stopping: Callable[[], bool]
) -> Iterator[_Found]:
    """Yield the records of one layer in the order of their arrival."""
    from confluent_kafka import KafkaError, TopicPartition

    waiting = {(span.topic, span.partition): (number, span) for number, span in layer.items()}
    consumer.assign([TopicPartition(span.topic, span.partition, span.first_offset) for span in layer.values()])
    last, trouble = time.monotonic(), ""
    while waiting:
        finished: list[tuple[str, int]] = []
        for message in _available(consumer):
            place = message.topic(), message.partition()
            if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                trouble = _checked_error(reader, message)
            elif place in waiting:
                number, span = waiting[place]
                offset = _checked_offset(message, span)
                if error is None and offset <= span.last_offset:
                    yield number, message
                # At the end of the log, ``offset`` is that of its next record. It may be too low while a new leader
                # does not know yet what is committed.
                if offset > span.last_offset or (error is None and offset == span.last_offset):
                    del waiting[place]
                    finished.append(place)
                last = time.monotonic()
        if finished and waiting:
            consumer.incremental_unassign([TopicPartition(*place) for place in finished])
        most_s = _GRACE_S if is_stopping() else reader.timeout_ms / 1_000
        if waiting and time.monotonic() - last > most_s:
            raise TopicUnreachableError(_silence(reader, waiting, most_s, trouble))


def _available(consumer: Consumer) -> list[Message]:
    """Wait for a message, and return all that are here. ``consume`` alone would wait until it has its maximum."""
    first = consumer.poll(_POLL_S)
    return [] if first is None else [first, *consumer.consume(_MOST_ROWS, 0)]


def _checked_error(reader: KafkaReader, message: Message) -> str:
    """Return the text of an error that the client may recover from, or that does not concern a consumer without a
    group. Raises TopicError for other errors."""
    from confluent_kafka import KafkaError

    error: Any = message.error()
    text = without_secrets(dict(reader.config), error.str())
    if error.fatal() or error.code() == KafkaError._AUTHENTICATION or message.topic() is not None:
        raise TopicError(f"Kafka at {reader.servers}: {text}")
    return f" ({text})"


def _checked_offset(message: Message, span: OffsetSpan) -> int:
    """Return the offset of a record, or of the end of the log."""
    offset: int = message.offset() or 0
    # The client went back to the start of the log: the log ends below the requested offset.
    if message.error() is None and offset < span.first_offset:
        raise TopicError(f"the log of {span.topic}:{span.partition} was truncated below offset {span.first_offset}")
    return offset


def _silence(reader: KafkaReader, waiting: Collection[tuple[str, int]], most_s: float, trouble: str) -> str:
    topic, partition = min(waiting)
    rest = f" and {len(waiting) - 1} other partitions" if len(waiting) > 1 else ""
    where = f"{topic}:{partition}{rest}"
    return f"Kafka at {reader.servers} gave no record of {where} within {most_s:g} s{trouble}"


def _together(found: Iterable[_Found]) -> Iterator[list[_Found]]:
    """Yield lists with the messages of one batch."""
    some: list[_Found] = []
    size = 0
    for one in found:
        some.append(one)
        size += len(one[1])
        if len(some) == _MOST_ROWS or size >= _MOST_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


_HEADER: list[Any] = [("key", pa.string()), ("value", pa.binary())]
_MOST_MS = (2**63 - 1) // 1_000
"""The highest time: a producer may set any, and its microseconds, for handlers and tables, must fit into 64 bits."""


def _read_records(found: Sequence[_Found], columns: Collection[str]) -> ReadRecords:
    messages = [message for _, message in found]
    arrays: dict[str, Any] = {"offset": pa.array([message.offset() for message in messages], pa.int64())}
    if "timestamp" in columns:
        times = np.array([message.timestamp()[1] for message in messages], np.int64)
        arrays["timestamp"] = pa.array(np.clip(times, -_MOST_MS, _MOST_MS)).cast(pa.timestamp("ms", "UTC"))
    if "key" in columns:
        arrays["key"] = pa.array([message.key() for message in messages], pa.binary())
    if "value" in columns:
        arrays["value"] = pa.array([message.value() for message in messages], pa.binary())
    if "headers" in columns:
        headers = [message.headers() or [] for message in messages]
        arrays["headers"] = pa.array(headers, pa.list_(pa.struct(_HEADER)))
    spans = np.array([number for number, _ in found], np.int32)
    return ReadRecords(pa.RecordBatch.from_arrays([*arrays.values()], names=[*arrays]), spans)


# ------------------------------------------------------------------------------------------------------ on the driver


def can_read(spark: SparkSession, reader: KafkaReader, topics: Collection[str]) -> bool:
    """Return whether workers have the client, and Kafka answers them. On this machine they do what the driver does."""
    if str(spark.sparkContext.master).startswith("local"):
        return True
    faults = faults_of_workers(spark, reader, topics)
    if faults:
        _log.warning("workers cannot read Kafka (%s): Spark reads it, with a consumer for each partition", faults[0])
    return not faults


def faults_of_workers(spark: SparkSession, reader: KafkaReader, topics: Collection[str]) -> list[str]:
    """Return why workers cannot read; runs a job with a task for each core."""
    wanted, tasks = sorted(topics), spark.sparkContext.defaultParallelism

    def tried(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"fault": pa.array([_fault(reader, wanted)], pa.string())})

    found = spark.range(0, tasks, 1, tasks).mapInArrow(tried, "fault string").collect()
    return [row.fault for row in found if row.fault is not None]


def _fault(reader: KafkaReader, topics: Iterable[str]) -> str | None:
    try:
        reader.check(topics)
    except Exception as fault:  # noqa: BLE001 - no client, another network, no file with certificates
        return without_secrets(dict(reader.config), str(fault))
    return None
