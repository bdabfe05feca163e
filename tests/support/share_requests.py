"""ShareFetch and ShareAcknowledge as values, as a client would send them in their last version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kio.index import load_request_schema

from share_spark.gateway.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH, Api
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.topic_ids import uuid_of
from share_spark.partition.kafka_modes import TypedBatch
from share_spark.partition.kafka_modes.requests import RENEW

Partition = tuple[str, int]
"""The id of a topic, and the number."""

Named = Mapping[Partition, Sequence[TypedBatch]]
"""The partitions that a request names, with its acknowledgements."""

CLOSE = -1


class Wanted(NamedTuple):
    """The measures of a fetch."""

    max_wait_ms: int = 500
    max_bytes: int = 1 << 20
    max_records: int = 500
    batch_size: int = 500
    acquire_mode: int = 0


def share_fetch(group_id: str, member_id: str, epoch: int, named: Named, wanted: Wanted | None = None) -> Any:
    wanted = wanted or Wanted()
    values = {
        "max_wait": timedelta(milliseconds=wanted.max_wait_ms),
        "min_bytes": 1,
        "max_bytes": wanted.max_bytes,
        "max_records": wanted.max_records,
        "batch_size": wanted.batch_size,
        "share_acquire_mode": wanted.acquire_mode,
        "forgotten_topics_data": (),
    }
    return _request(SHARE_FETCH, group_id, member_id, epoch, named, values)


def share_acknowledge(group_id: str, member_id: str, epoch: int, named: Named) -> Any:
    return _request(SHARE_ACKNOWLEDGE, group_id, member_id, epoch, named, {})


def _request(api: Api, group_id: str, member_id: str, epoch: int, named: Named, values: Mapping[str, Any]) -> Any:
    own = {
        "group_id": group_id,
        "member_id": member_id,
        "share_session_epoch": epoch,
        "is_renew_ack": any(RENEW in batch.types for batches in named.values() for batch in batches),
        "topics": _topics(named),
    }
    return make_message(load_request_schema(api.key, api.versions[-1]), {**own, **values})


def _topics(named: Named) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for (topic_id, number), batches in named.items():
        partition = {"partition_index": number, "acknowledgement_batches": list(_batches(batches))}
        found.setdefault(topic_id, []).append(partition)
    return [{"topic_id": uuid_of(topic_id), "partitions": some} for topic_id, some in found.items()]


def _batches(batches: Iterable[TypedBatch]) -> Iterable[dict[str, Any]]:
    for first, last, types in batches:
        yield {"first_offset": first, "last_offset": last, "acknowledge_types": types}
