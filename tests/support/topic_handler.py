"""A handler of the gateway that hands out one topic, each record once. It has no state, no locks and no sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import cycle
from typing import Any
from uuid import UUID

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from share_spark.engine.batch_reader import RecordBatch
from share_spark.gateway.apis import FIND_COORDINATOR, METADATA, SHARE_ACKNOWLEDGE, SHARE_FETCH, SHARE_GROUP_HEARTBEAT
from share_spark.gateway.frames import Answer
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.server import Server
from share_spark.gateway.share_fetch_answer import AcquiredRange, FetchedPartition, FetchedTopic, ShareFetchAnswer
from share_spark.gateway.thread import GatewayThread
from share_spark.kafka.broker_connection import Address

TOPIC_ID = UUID(int=0x77 << 64 | 0x99)
NODE = 1
PAUSE_S = 0.05


class TopicHandler:
    """``batches``: by partition. ``acknowledged``: partition, first and last offset, and types, as clients send it."""

    def __init__(self, topic: str, batches: Mapping[int, Sequence[RecordBatch]]) -> None:
        self.topic = topic
        self.batches = {partition: list(some) for partition, some in batches.items()}
        self.acknowledged: list[tuple[int, int, int, tuple[int, ...]]] = []
        self.asked: set[tuple[int, int]] = set()
        self.address: Address

    async def answer(self, context: RequestContext, request: Any) -> Answer | None:
        self.asked.add((context.api_key, context.api_version))
        if context.api_key in (SHARE_FETCH.key, SHARE_ACKNOWLEDGE.key):
            self._take_acknowledgements(request)
        if context.api_key == SHARE_FETCH.key:
            return await self._fetched(request)
        values = {"error_code": ErrorCode.none, "throttle_time": timedelta(), "node_endpoints": (), "responses": ()}
        values |= self._values(context.api_key, request)
        return make_message(load_response_schema(context.api_key, context.api_version), values)

    def closed(self, connection_id: int) -> None:
        """Nothing is kept of it."""

    def acknowledged_as(self, wanted: int) -> set[tuple[int, int]]:
        """The partitions and offsets that were acknowledged with this type: one type stands for a whole range."""
        return {
            (partition, offset)
            for partition, first, last, types in self.acknowledged
            for offset, kind in zip(range(first, last + 1), cycle(types) if len(types) == 1 else types, strict=False)
            if kind == wanted
        }

    def _values(self, api_key: int, request: Any) -> dict[str, Any]:
        node = {"node_id": NODE, "host": self.address.host, "port": self.address.port, "rack": None}
        match api_key:
            case METADATA.key:
                return {"brokers": [node], "cluster_id": "c", "controller_id": NODE, "topics": [self._described()]}
            case FIND_COORDINATOR.key:
                keys = getattr(request, "coordinator_keys", ())
                found = [{**node, "key": key, "error_code": ErrorCode.none, "error_message": None} for key in keys]
                return {**node, "error_message": None, "coordinators": found}
            case SHARE_GROUP_HEARTBEAT.key:
                epoch = max(request.member_epoch, 1) if request.member_epoch >= 0 else request.member_epoch
                parts = [{"topic_id": TOPIC_ID, "partitions": tuple(self.batches)}]
                return {
                    "member_id": request.member_id,
                    "member_epoch": epoch,
                    "heartbeat_interval": timedelta(seconds=5),
                    "assignment": {"topic_partitions": parts},
                }
            case _:
                return {"acquisition_lock_timeout": timedelta(seconds=30)}

    def _described(self) -> dict[str, Any]:
        partitions = [
            {
                "error_code": ErrorCode.none,
                "partition_index": partition,
                "leader_id": NODE,
                "leader_epoch": 0,
                "replica_nodes": (NODE,),
                "isr_nodes": (NODE,),
                "offline_replicas": (),
            }
            for partition in self.batches
        ]
        names = {"name": self.topic, "topic_id": TOPIC_ID, "is_internal": False}
        return {"error_code": ErrorCode.none, **names, "partitions": partitions}

    def _take_acknowledgements(self, request: Any) -> None:
        self.acknowledged += [
            (partition.partition_index, batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for topic in request.topics
            for partition in topic.partitions
            for batch in partition.acknowledgement_batches
        ]

    async def _fetched(self, request: Any) -> ShareFetchAnswer:
        partitions = [self._taken(partition) for partition, batches in self.batches.items() if batches]
        answered = {partition.partition for partition in partitions}
        asked = {partition.partition_index for topic in request.topics for partition in topic.partitions}
        partitions += map(FetchedPartition, asked - answered)
        if not partitions or request.share_session_epoch < 0:
            await asyncio.sleep(PAUSE_S)
            return ShareFetchAnswer(acquisition_lock_timeout_ms=30_000)
        return ShareFetchAnswer([FetchedTopic(TOPIC_ID, partitions)], acquisition_lock_timeout_ms=30_000)

    def _taken(self, partition: int) -> FetchedPartition:
        """The next two batches."""
        batches = self.batches[partition][:2]
        del self.batches[partition][:2]
        acquired = [AcquiredRange(batch.base_offset, batch.last_offset, 1) for batch in batches]
        return FetchedPartition(partition, [batch.content for batch in batches], acquired)


@contextmanager
def served(handler: TopicHandler) -> Iterator[str]:
    """The bootstrap servers of a gateway with this handler."""
    thread = GatewayThread(Server("127.0.0.1", 0, handler))
    handler.address = thread.start()
    try:
        yield str(handler.address)
    finally:
        thread.stop()
