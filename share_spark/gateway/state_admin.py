"""The five requests about the state of share-partitions, as brokers make them among each other.

They are for users with the right to act as a broker. The share coordinator (``coordinator``) answers them, on the state
log. What changes something takes a group without members, whose engine ends before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as WireError
from kio.static.protocol import ResponsePayload

from share_spark.coordinator.messages import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadStateSummary,
    ShareGroupStateRequest,
    StateRequest,
    StateResult,
    WriteState,
)
from share_spark.gateway import apis
from share_spark.gateway.access import ClusterRefusedError
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.known_groups import KnownGroups
from share_spark.gateway.message_maker import make_message
from share_spark.kafka.topic_ids import topic_id_of, uuid_of
from share_spark.model.errors import ShareError
from share_spark.model.records import StateBatch

_NOT_KNOWN = 0
"""An epoch or an offset in an answer that has an error, as in Kafka's."""


def _initialize(topic_id: str, said: Any) -> StateRequest:
    return InitializeState(
        topic_id=topic_id, partition=said.partition, state_epoch=said.state_epoch, start_offset=said.start_offset
    )


def _read(topic_id: str, said: Any) -> StateRequest:
    return ReadState(topic_id=topic_id, partition=said.partition, leader_epoch=said.leader_epoch)


def _write(topic_id: str, said: Any) -> StateRequest:
    return WriteState(
        topic_id=topic_id,
        partition=said.partition,
        state_epoch=said.state_epoch,
        leader_epoch=said.leader_epoch,
        start_offset=said.start_offset,
        state_batches=tuple(_batch_of(one) for one in said.state_batches),
    )


def _delete(topic_id: str, said: Any) -> StateRequest:
    return DeleteState(topic_id=topic_id, partition=said.partition)


def _summary(topic_id: str, said: Any) -> StateRequest:
    return ReadStateSummary(topic_id=topic_id, partition=said.partition, leader_epoch=said.leader_epoch)


_ENTRIES: Mapping[int, Callable[[str, Any], StateRequest]] = {
    apis.INITIALIZE_SHARE_GROUP_STATE.key: _initialize,
    apis.READ_SHARE_GROUP_STATE.key: _read,
    apis.WRITE_SHARE_GROUP_STATE.key: _write,
    apis.DELETE_SHARE_GROUP_STATE.key: _delete,
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: _summary,
}
"""The entry of the share coordinator for each of a request."""

_CHANGES = (InitializeState, WriteState, DeleteState)


@dataclass(frozen=True, slots=True)
class StateAdmin:
    """The answers to these requests."""

    known: KnownGroups

    async def answer(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer one of the five."""
        entry_of = _ENTRIES[context.api_key]
        entries = [entry_of(topic_id_of(topic.topic_id), one) for topic in request.topics for one in topic.partitions]
        asked = ShareGroupStateRequest(group_id=request.group_id, entries=tuple(entries))
        try:
            if not await context.grant.cluster():
                raise ClusterRefusedError
            results = await self._results(asked)
        except ShareError as fault:
            results = [_refusal(entry, fault) for entry in entries]
        values = {"throttle_time": timedelta(), "results": _by_topic(results)}
        return make_message(load_response_schema(context.api_key, context.api_version), values)

    async def _results(self, asked: ShareGroupStateRequest) -> Sequence[StateResult]:
        """Return the results, none without a group or entries (R97)."""
        if not asked.group_id or not asked.entries:
            return ()
        ids = {entry.topic_id for entry in asked.entries}
        names = await asyncio.to_thread(self.known.catalog.by_id, ids)
        if isinstance(asked.entries[0], _CHANGES):
            return await self.known.change(asked.group_id, self.known.stored.state, asked, names)
        await self.known.find(asked.group_id)  # the gateway has to own it (R72)
        return await asyncio.to_thread(self.known.stored.state, asked, names)


def _refusal(entry: StateRequest, fault: ShareError) -> StateResult:
    return StateResult(topic_id=entry.topic_id, partition=entry.partition, error=fault.code, message=str(fault))


def _by_topic(results: Sequence[StateResult]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for one in results:
        topics.setdefault(one.topic_id, []).append(_result(one))
    return [{"topic_id": uuid_of(topic_id), "partitions": some} for topic_id, some in topics.items()]


def _result(found: StateResult) -> dict[str, Any]:
    """Return what any of the answers has of a share-partition; each takes what it has a field for."""
    return {
        "partition": found.partition,
        "error_code": WireError(found.error),
        "error_message": found.message,
        "state_epoch": _or_not_known(found.state_epoch),
        "leader_epoch": _or_not_known(found.leader_epoch),
        "start_offset": _or_not_known(found.start_offset),
        "state_batches": [_told(one) for one in found.state_batches or ()],
    }


def _or_not_known(number: int | None) -> int:
    return _NOT_KNOWN if number is None else number


def _batch_of(said: Any) -> StateBatch:
    return StateBatch(said.first_offset, said.last_offset, said.delivery_state, said.delivery_count)


def _told(batch: StateBatch) -> dict[str, Any]:
    first, last, state, count = batch
    return {"first_offset": first, "last_offset": last, "delivery_state": int(state), "delivery_count": count}
