"""Record batches of a Kafka cluster, as its brokers have them: neither unpacked nor changed.

Leaders are asked with connections of our own, since librdkafka gives no batches; where they are, librdkafka knows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from confluent_kafka import Node
from kio.schema.errors import ErrorCode

from share_spark.engine.batch_reader import BATCH_RECORDS, RecordBatch
from share_spark.kafka.broker_admin import BrokerAdmin, topic_id_text
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.fetch import AbortedTransaction, Fetched, FetchPlace, fetch
from share_spark.kafka.open_connections import OpenConnections
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.record_batches import batch_headers
from share_spark.kafka.topic_ids import NO_TOPIC_ID, uuid_of
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import TopicPartition

_LONGEST_MS = 3_000
"""The longest wait for a broker. A client that waits for records asks again anyway."""

_PAUSES_S = (0.0, 0.1, 0.4)
"""The pauses before the tries of a read: a connection may be an old one, and a leader may move."""


class _Leader(NamedTuple):
    """The leader of a partition, and the id of the topic."""

    broker: Address
    topic_id: UUID


@dataclass(slots=True)
class KafkaBatchReader:
    """A BatchReader of a Kafka cluster. Raises ConfigError: some of ``options`` cannot be used for our own
    connections."""

    options: KafkaOptions
    request_timeout_ms: int
    _admin: BrokerAdmin = field(init=False, repr=False)
    _connections: OpenConnections = field(init=False, repr=False)
    _leaders: dict[TopicPartition, _Leader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        timeout_ms = min(self.request_timeout_ms, _LONGEST_MS)
        self._connections = OpenConnections(BrokerLogin.of(self.options), timeout_ms / 1_000)
        self._admin = BrokerAdmin(self.options, timeout_ms)

    def read(
        self,
        at: TopicPartition,
        offset: int,
        most_bytes: int,
        batch_records: int = BATCH_RECORDS,  # noqa: ARG002 - a log of rows needs it
    ) -> Sequence[RecordBatch]:
        """See ``BatchReader``. There is nothing below the start of the log: the engine goes to that offset itself."""
        reason = ""
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            leader = self._leader(at)
            try:
                fetched = self._fetched(leader, FetchPlace(at, leader.topic_id, offset), most_bytes)
            except (OSError, ValueError) as fault:
                reason = self.options.without_secrets(str(fault))
            else:
                if not fetched.error:
                    return _batches(at, fetched)
                if fetched.error is ErrorCode.offset_out_of_range:
                    return ()
                reason = fetched.error.name.upper()
                if not fetched.error.retriable:
                    raise TopicError(f"{at} cannot be read: Kafka at {leader.broker} answers {reason}")
            self._leaders.pop(at, None)
        raise TopicUnreachableError(f"Kafka at {leader.broker} gave no records of {at} ({reason})")

    def _fetched(self, leader: _Leader, place: FetchPlace, most_bytes: int) -> Fetched:
        with self._connections.to(leader.broker) as connection:
            return fetch(connection, place, most_bytes, committed=self.options.read_committed)

    def _leader(self, at: TopicPartition) -> _Leader:
        """Return the leader, as known, else as the cluster says now. Raises TopicError, TopicUnreachableError."""
        if (known := self._leaders.get(at)) is not None:
            return known
        described = self._admin.describe(at.topic)
        topic_id = uuid_of(topic_id_text(described.topic_id) or NO_TOPIC_ID)
        for one in described.partitions:
            leader: Node | None = one.leader  # None while one is elected, against its annotation
            if leader is not None:
                address = Address(leader.host, leader.port)
                self._leaders[TopicPartition(at.topic, one.id)] = _Leader(address, topic_id)
        if at not in self._leaders:
            raise TopicUnreachableError(f"{at} has no leader (Kafka at {self.options.bootstrap_servers})")
        return self._leaders[at]


def _batches(at: TopicPartition, fetched: Fetched) -> Sequence[RecordBatch]:
    try:
        return tuple(record_batches(fetched.content, fetched.aborted))
    except ValueError as fault:
        raise TopicError(f"{at} has records in a format of Kafka before 0.11: {fault}") from None


def record_batches(content: bytes, aborted: Iterable[AbortedTransaction]) -> Iterator[RecordBatch]:
    """Yield the batches of an answer that are whole. Those of ``aborted`` transactions are marked, from the first
    offset of each to the control batch of its producer that ends it; so are control batches, which no client gets.
    Raises ValueError."""
    to_begin, open_producers = deque(sorted(aborted)), set[int]()
    for header in batch_headers(content):
        while to_begin and to_begin[0].first_offset <= header.last_offset:
            open_producers.add(to_begin.popleft().producer_id)
        is_aborted = header.is_control or (header.is_transactional and header.producer_id in open_producers)
        if header.is_control:
            open_producers.discard(header.producer_id)
        batch = content[header.begin : header.end]
        yield RecordBatch(header.base_offset, header.last_offset, batch, is_aborted)
