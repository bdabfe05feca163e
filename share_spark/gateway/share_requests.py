"""ShareFetch and ShareAcknowledge between the wire and values: what is asked, and how it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.gateway.apis import SHARE_ACKNOWLEDGE
from share_spark.gateway.group_clients import FetchedRecords
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.share_fetch_answer import AcquiredRange, FetchedPartition, FetchedTopic, ShareFetchAnswer
from share_spark.kafka.topic_ids import topic_id_of, uuid_of
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey
from share_spark.partition.kafka_modes import TypedBatch

_NOT_TOLD = 0
"""The present leader in an answer: it is told, as by a broker, only with an error that says that it is another one."""

Results = Mapping[SharePartitionKey, FetchedRecords]


def acknowledged_in(group_id: str, topics: Iterable[Any]) -> dict[SharePartitionKey, tuple[TypedBatch, ...]]:
    """Return the acknowledgements in a ShareFetch or a ShareAcknowledge, of the partitions that have some."""
    return {
        SharePartitionKey(group_id, topic_id_of(topic.topic_id), partition.partition_index): tuple(
            TypedBatch(batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types))
            for batch in partition.acknowledgement_batches
        )
        for topic in topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    }


def partitions_in(group_id: str, topics: Iterable[Any]) -> tuple[SharePartitionKey, ...]:
    """Return the partitions that a ShareFetch names."""
    return tuple(
        SharePartitionKey(group_id, topic_id_of(topic.topic_id), partition.partition_index)
        for topic in topics
        for partition in topic.partitions
    )


def forgotten_in(group_id: str, topics: Iterable[Any]) -> tuple[SharePartitionKey, ...]:
    """Return the partitions that a ShareFetch takes out of its session."""
    return tuple(
        SharePartitionKey(group_id, topic_id_of(topic.topic_id), partition)
        for topic in topics
        for partition in topic.partitions
    )


def fetch_answer(results: Results, lock_duration_ms: int) -> ShareFetchAnswer:
    """Return the answer to a ShareFetch. ``results``: of the partitions that it has to name."""
    topics = [
        FetchedTopic(uuid_of(topic_id), [_fetched(key.partition, one) for key, one in some])
        for topic_id, some in _by_topic(results).items()
    ]
    return ShareFetchAnswer(topics=topics, acquisition_lock_timeout_ms=lock_duration_ms)


def _fetched(partition: int, found: FetchedRecords) -> FetchedPartition:
    return FetchedPartition(
        partition=partition,
        records=found.content,
        acquired=[AcquiredRange(*one) for one in found.acquired],
        error_code=found.error,
        acknowledge_error_code=found.acknowledge_error or ErrorCode.NONE,
        leader_id=_NOT_TOLD,
    )


def acknowledge_answer(version: int, results: Results, lock_duration_ms: int) -> ResponsePayload:
    """Return the answer to a ShareAcknowledge."""
    responses = [
        {"topic_id": uuid_of(topic_id), "partitions": [_acknowledged(key.partition, one) for key, one in some]}
        for topic_id, some in _by_topic(results).items()
    ]
    return _acknowledge_response(version, ErrorCode.NONE, None, responses, lock_duration_ms)


def acknowledge_refusal(version: int, error: ErrorCode, message: str | None) -> ResponsePayload:
    """Return the answer to a ShareAcknowledge that was refused as a whole."""
    return _acknowledge_response(version, error, message, (), 0)


def _acknowledge_response(
    version: int, error: ErrorCode, message: str | None, responses: Sequence[Mapping[str, Any]], lock_duration_ms: int
) -> ResponsePayload:
    values = {
        "throttle_time": timedelta(),
        "error_code": WireError(error),
        "error_message": message,
        "acquisition_lock_timeout": timedelta(milliseconds=lock_duration_ms),
        "responses": responses,
        "node_endpoints": (),
    }
    return make_message(load_response_schema(SHARE_ACKNOWLEDGE.key, version), values)


def _acknowledged(partition: int, found: FetchedRecords) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "error_code": WireError(found.acknowledge_error or ErrorCode.NONE),
        "error_message": None,
        "current_leader": {"leader_id": _NOT_TOLD, "leader_epoch": 0},
    }


def _by_topic(results: Results) -> dict[str, list[tuple[SharePartitionKey, FetchedRecords]]]:
    found: dict[str, list[tuple[SharePartitionKey, FetchedRecords]]] = {}
    for key, one in results.items():
        found.setdefault(key.topic_id, []).append((key, one))
    return found
