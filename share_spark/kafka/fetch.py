"""Fetch: record batches as a broker has them. By the topic's id from version 13 on (Kafka 3.1), else by its name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as by_name
from kio.schema.fetch.v12.response import FetchResponse as FetchResponseByName
from kio.schema.fetch.v13 import request as by_id
from kio.schema.fetch.v13.response import FetchResponse as FetchResponseById

from share_spark.kafka.open_connections import OpenConnection
from share_spark.model.ids import TopicPartition

_KEY = by_id.FetchRequest.__api_key__
_BY_NAME, _BY_ID = by_name.FetchRequest.__version__, by_id.FetchRequest.__version__

_WAIT = timedelta(milliseconds=500)
"""The time that a broker has to read from remote storage. It waits for nothing else, as ``min_bytes`` is 0."""


class FetchPlace(NamedTuple):
    """The place to read at."""

    partition: TopicPartition
    topic_id: UUID
    offset: int


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted, and the offset of its first record."""

    first_offset: int
    producer_id: int


class Fetched(NamedTuple):
    """The answer to a Fetch. ``content``: record batches, from the one that holds the offset; the last one may be cut.
    ``aborted``: the transactions that have records in them, none if the broker was to read uncommitted ones."""

    error: ErrorCode
    content: bytes = b""
    aborted: tuple[AbortedTransaction, ...] = ()


def fetch(connection: OpenConnection, place: FetchPlace, most_bytes: int, *, committed: bool) -> Fetched:
    """Fetch up to the high watermark, or (``committed``) up to the last stable offset. The first batch is whole, even
    if it is larger than ``most_bytes``. Raises OSError, and ValueError: no Kafka broker, or one before 2.8."""
    known = connection.versions.get(_KEY, range(0))
    if _BY_ID in known:
        request = _request(by_id, {"topic_id": place.topic_id}, place, most_bytes, committed)
        return _fetched(connection.broker.ask(request, FetchResponseById))
    if _BY_NAME in known:
        request = _request(by_name, {"topic": place.partition.topic}, place, most_bytes, committed)
        return _fetched(connection.broker.ask(request, FetchResponseByName))
    raise ValueError("its version of Fetch is not supported (Kafka 2.8 and later)")


def _request(messages: Any, topic: dict[str, Any], place: FetchPlace, most_bytes: int, committed: bool) -> Any:
    """Return the request, of the version whose module is ``messages``."""
    partition = messages.FetchPartition(
        partition=place.partition.partition, fetch_offset=place.offset, partition_max_bytes=most_bytes
    )
    return messages.FetchRequest(
        max_wait=_WAIT,
        min_bytes=0,
        max_bytes=most_bytes,
        isolation_level=int(committed),
        topics=(messages.FetchTopic(**topic, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def _fetched(answer: FetchResponseById | FetchResponseByName) -> Fetched:
    if answer.error_code:
        return Fetched(answer.error_code)
    try:
        found = answer.responses[0].partitions[0]
    except IndexError:
        raise ValueError("the answer is without the partition") from None
    aborted = tuple(AbortedTransaction(one.first_offset, one.producer_id) for one in found.aborted_transactions or ())
    return Fetched(found.error_code, found.records or b"", aborted)
