"""ShareFetch and ShareAcknowledge: the member's session, then its acknowledgements and its fetch, then the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kio.static.protocol import ResponsePayload

from share_spark.coordinator import sessions
from share_spark.coordinator.fault import Fault
from share_spark.coordinator.sessions import FetchLimits, SessionKey, SessionStep, ShareAcknowledge, ShareSession
from share_spark.gateway.access import GROUP_REFUSED, Grant
from share_spark.gateway.group_clients import Acknowledgements, Fetch, FetchedRecords, GroupClients
from share_spark.gateway.handler import RequestContext
from share_spark.gateway.served_groups import NotServedError, ServedGroup, ServedGroups
from share_spark.gateway.share_fetch_answer import ShareFetchAnswer
from share_spark.gateway.share_requests import (
    acknowledge_answer,
    acknowledge_refusal,
    acknowledged_in,
    fetch_answer,
    forgotten_in,
    partitions_in,
)
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey, client_owner
from share_spark.model.requests import AcknowledgeType
from share_spark.partition.kafka_modes import AcquireMode, TypedBatch

_log = logging.getLogger(__name__)

_REFUSED = Fault(ErrorCode.GROUP_AUTHORIZATION_FAILED, GROUP_REFUSED)

_NO_TOPIC = FetchedRecords(error=ErrorCode.UNKNOWN_TOPIC_ID, acknowledge_error=ErrorCode.UNKNOWN_TOPIC_ID)

_NO_RIGHT = FetchedRecords(
    error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, acknowledge_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED
)

_HERE = 0
"""The node of a client that asks here; other nodes pass on what theirs ask."""

_MODES: Mapping[int, AcquireMode] = {0: AcquireMode.BATCH_OPTIMIZED, 1: AcquireMode.RECORD_LIMIT}


@dataclass(slots=True)
class ShareService:
    """The sessions of all members, for the thread of the event loop."""

    groups: ServedGroups
    catalog: TopicCatalog
    _sessions: dict[SessionKey, ShareSession] = field(default_factory=dict)
    _of_connection: dict[int, set[SessionKey]] = field(default_factory=dict)
    _releases: set[asyncio.Task[None]] = field(default_factory=set)

    async def fetch(self, context: RequestContext, request: Any) -> ShareFetchAnswer:
        """Answer a ShareFetch."""
        key, grant = _session_key(context, request), context.grant
        group = await self._group(key.group_id, grant)
        acknowledged = acknowledged_in(key.group_id, request.topics)
        asked = _share_fetch(request, acknowledged)
        if isinstance(group, Fault):
            return await _refused_fetch(group, asked.limits)
        step = sessions.fetch(
            self._sessions.get(key),
            asked,
            connection_id=str(context.connection_id),
            has_room=len(self._sessions) < self.groups.stored.config.max_share_sessions,
        )
        if isinstance(step, Fault):
            await self._take_late(group, grant, step, request, acknowledged)
            return await _refused_fetch(step, asked.limits)
        self._put(key, step.session, context.connection_id)
        results = await self._results(group, grant, step, _fetch_of(request, acknowledged, step))
        return await self._answered(group, key, step, results)

    async def acknowledge(self, context: RequestContext, request: Any) -> ResponsePayload:
        """Answer a ShareAcknowledge."""
        key, grant = _session_key(context, request), context.grant
        group = await self._group(key.group_id, grant)
        if isinstance(group, Fault):
            return acknowledge_refusal(context.api_version, *group)
        acknowledged = acknowledged_in(key.group_id, request.topics)
        asked = ShareAcknowledge(
            member_id=key.member_id, session_epoch=request.share_session_epoch, acknowledged=tuple(acknowledged)
        )
        step = sessions.acknowledge(self._sessions.get(key), asked)
        if isinstance(step, Fault):
            await self._take_late(group, grant, step, request, acknowledged)
            return acknowledge_refusal(context.api_version, *step)
        self._put(key, step.session, context.connection_id)
        results = await self._results(group, grant, step, _fetch_of(request, acknowledged, step))
        lock_duration_ms = group.clients.lock_duration_ms
        return acknowledge_answer(context.api_version, _of(step.acknowledge, results), lock_duration_ms)

    def closed(self, connection_id: int) -> None:
        """End the sessions of a connection that is closed: what their members hold is given back (R57)."""
        for key in self._of_connection.pop(connection_id, ()):
            session = self._sessions.get(key)
            held = None if session is None else sessions.released_with(session, str(connection_id))
            if held is not None:
                del self._sessions[key]
                self._give_back(key, Fetch(client_owner(key.member_id), held=held))

    async def _group(self, group_id: str, grant: Grant) -> ServedGroup | Fault:
        """Return the group, or why this user is not served."""
        if not await grant.group(group_id):
            return _REFUSED
        try:
            return self.groups.get(group_id)
        except NotServedError as fault:
            return Fault(fault.code, str(fault))

    # -------------------------------------------------------------------------------------------- sessions

    def _put(self, key: SessionKey, session: ShareSession | None, connection_id: int) -> None:
        if session is None:
            self._sessions.pop(key, None)
            self._of_connection.get(connection_id, set()).discard(key)
        else:
            self._sessions[key] = session
            self._of_connection.setdefault(connection_id, set()).add(key)

    def _give_back(self, key: SessionKey, wanted: Fetch) -> None:
        """Give back, beside all else, what a member holds."""
        try:
            group = self.groups.get(key.group_id)
        except NotServedError:  # another gateway has it by now, and ends the locks
            return
        task = asyncio.create_task(_given_back(group.clients, wanted))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    # --------------------------------------------------------------------------------------------- answers

    async def _results(
        self, group: ServedGroup, grant: Grant, step: SessionStep, wanted: Fetch
    ) -> dict[SharePartitionKey, FetchedRecords]:
        """Return the results by share-partition. Of a topic that is not there, or not for this user, that is the error
        (R164); what the member holds of it ends with its locks."""
        named = {*step.acknowledge, *step.fetch, *step.release}
        names = await asyncio.to_thread(self.catalog.by_id, {key.topic_id for key in named})
        may = await grant.topics(names.values())
        refused = {topic_id for topic_id, name in names.items() if name not in may}
        known = group.names_of({topic_id: name for topic_id, name in names.items() if topic_id not in refused})
        wanted = wanted._replace(
            keys=tuple(key for key in wanted.keys if key.topic_id in known),
            acknowledged={key: batches for key, batches in wanted.acknowledged.items() if key.topic_id in known},
            held=tuple(key for key in wanted.held if key.topic_id in known),
        )
        missing = {
            key: _NO_RIGHT if key.topic_id in refused else _NO_TOPIC for key in named if key.topic_id not in known
        }
        return missing | await group.clients.fetch(wanted)

    async def _take_late(
        self, group: ServedGroup, grant: Grant, fault: Fault, request: Any, acknowledged: Acknowledgements
    ) -> None:
        """Take acknowledgements of a member whose session is not known here: it may have been opened at a gateway that
        is gone. The log knows what the member holds; the client is told of the session all the same, and drops them."""
        if fault.code is ErrorCode.SHARE_SESSION_NOT_FOUND and acknowledged:
            step = SessionStep(None, tuple(acknowledged))
            await self._results(group, grant, step, _fetch_of(request, acknowledged, step))

    async def _answered(
        self,
        group: ServedGroup,
        key: SessionKey,
        step: SessionStep,
        results: Mapping[SharePartitionKey, FetchedRecords],
    ) -> ShareFetchAnswer:
        delivered = [found for found, one in results.items() if one.acquired]
        failed = [found for found, one in results.items() if one.error]
        answer = sessions.answered(self._sessions.get(key), step, delivered, failed)
        if isinstance(answer, Fault):
            self._give_back(key, _without_takers(client_owner(key.member_id), results))
            return ShareFetchAnswer(error_code=answer.code, error_message=answer.message)
        if answer.session is not None:
            self._sessions[key] = answer.session
        return fetch_answer(_of(answer.listed, results), group.clients.lock_duration_ms)


def _session_key(context: RequestContext, request: Any) -> SessionKey:
    return SessionKey(request.group_id or "", request.member_id or "", _HERE if context.via is None else context.via)


def _share_fetch(request: Any, acknowledged: Acknowledgements) -> sessions.ShareFetch:
    group_id = request.group_id or ""
    return sessions.ShareFetch(
        member_id=request.member_id or "",
        session_epoch=request.share_session_epoch,
        limits=FetchLimits(
            max_wait_ms=round(request.max_wait.total_seconds() * 1_000),
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_records=request.max_records,
        ),
        partitions=partitions_in(group_id, request.topics),
        forgotten=forgotten_in(group_id, request.forgotten_topics_data),
        acknowledged=tuple(acknowledged),
        renews=getattr(request, "is_renew_ack", False),
    )


def _fetch_of(request: Any, acknowledged: Acknowledgements, step: SessionStep) -> Fetch:
    """Return what a request wants of the group. Only a ShareFetch has limits; earlier versions lack some fields."""
    wanted = Fetch(
        owner=client_owner(request.member_id),
        acknowledged={key: acknowledged[key] for key in step.acknowledge},
        is_renew_ack=getattr(request, "is_renew_ack", False),
        held=step.release,
    )
    if not step.fetch:
        return wanted
    return wanted._replace(
        keys=step.fetch,
        max_wait_s=request.max_wait.total_seconds(),
        max_bytes=request.max_bytes,
        max_records=request.max_records,
        batch_size=request.batch_size,
        mode=_MODES.get(getattr(request, "share_acquire_mode", 0), AcquireMode.BATCH_OPTIMIZED),
    )


def _without_takers(owner: str, results: Mapping[SharePartitionKey, FetchedRecords]) -> Fetch:
    """Return what gives back the records of an answer that is not given. What else the member holds, it has from the
    session that has taken the place of this one."""
    acquired = {key: one.acquired for key, one in results.items() if one.acquired}
    return Fetch(
        owner,
        acknowledged={
            key: [TypedBatch(first, last, (AcknowledgeType.RELEASE,)) for first, last, _ in ranges]
            for key, ranges in acquired.items()
        },
    )


def _of(
    keys: Iterable[SharePartitionKey], results: Mapping[SharePartitionKey, FetchedRecords]
) -> dict[SharePartitionKey, FetchedRecords]:
    return {key: results.get(key, FetchedRecords()) for key in keys}


async def _refused_fetch(fault: Fault, limits: FetchLimits) -> ShareFetchAnswer:
    """Return the answer to a fetch that is refused as a whole. Clients repeat it at once."""
    if fault.code in (ErrorCode.SHARE_SESSION_LIMIT_REACHED, ErrorCode.GROUP_AUTHORIZATION_FAILED):
        await asyncio.sleep(limits.max_wait_ms / 1_000)
    return ShareFetchAnswer(error_code=fault.code, error_message=fault.message)


async def _given_back(clients: GroupClients, wanted: Fetch) -> None:
    """Wait until it is given back. What no engine takes ends with its lock."""
    try:
        await clients.fetch(wanted)
    except Exception:  # noqa: BLE001 - nobody waits for it
        _log.exception("what a client held could not be given back; its locks will run out")
