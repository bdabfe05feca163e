"""The clients of one group: what they fetch and acknowledge, from the request as a value to the answer as one.

A fetch asks a micro-batch for what was read ahead, and is told where to read for more. While there is nothing for it,
it waits for a change of its share-partitions or of their logs:

    ask, with acknowledgements and what was read ahead
        ->  records were acquired: answer
        ->  nothing: read at the fetch offset  ->  there is something: ask again
                                               ->  there is nothing: wait for a change, then ask again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.engine.batch_reader import BatchReader
from share_spark.gateway.client_queue import Answered, ClientQueue, GroupUnavailableError
from share_spark.gateway.read_ahead import PartitionReads, Read, content_of
from share_spark.model.errors import ErrorCode, TopicError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AcquiredRange, PartitionResponse, ReleaseMember
from share_spark.partition.kafka_modes import (
    AcknowledgeOrRenew,
    AcquireMode,
    AcquireReadAhead,
    KafkaRequest,
    TypedBatch,
)

_log = logging.getLogger(__name__)

_PATIENCE_S = 15.0
"""The time for which acknowledgements wait for an engine: clients drop those that get an error (they wait for 30 s)."""

_RETRY_S = 0.1

Acknowledgements = Mapping[SharePartitionKey, Sequence[TypedBatch]]


class Fetch(NamedTuple):
    """A fetch of a client, its acknowledgements, or both. ``owner``: as in ``ids.client_owner``. ``keys``: in the order
    in which they are served. ``held``: share-partitions of which the owner gives back what it still holds."""

    owner: str
    keys: Sequence[SharePartitionKey] = ()
    acknowledged: Acknowledgements = {}  # noqa: RUF012 - a tuple's default is never changed
    is_renew_ack: bool = False
    held: Collection[SharePartitionKey] = ()
    max_wait_s: float = 0.0
    max_bytes: int = 0
    max_records: int = 0
    batch_size: int = 2**31 - 1
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class FetchedRecords(NamedTuple):
    """The answer for one share-partition. ``acknowledge_error``: of its acknowledgements; None if there were none."""

    acquired: Sequence[AcquiredRange] = ()
    content: Sequence[bytes] = ()
    error: ErrorCode = ErrorCode.NONE
    acknowledge_error: ErrorCode | None = None


@dataclass(slots=True, kw_only=True)
class GroupClients:
    """The clients of one group, for the thread of the event loop. ``names``: of topics, by their ids."""

    queue: ClientQueue
    reader: BatchReader
    names: dict[str, str] = field(default_factory=dict)
    _reads: dict[SharePartitionKey, PartitionReads] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue.on_forget = self._forget

    @property
    def lock_duration_ms(self) -> int:
        """The duration of a lock that begins now."""
        return self.queue.config.lock_duration_ms

    async def fetch(self, wanted: Fetch) -> dict[SharePartitionKey, FetchedRecords]:
        """Return the answer, as soon as there are records, and after ``max_wait_s`` at the latest."""
        until = asyncio.get_running_loop().time() + wanted.max_wait_s
        found, asked = dict[SharePartitionKey, FetchedRecords](), set[SharePartitionKey]()
        while True:
            shares = self._shares(wanted, asked)
            reads = {key: self._reads_of(key).reads for key in shares}
            answered = await self._asked(wanted, shares, reads, until)
            if answered is None:
                return {**{key: FetchedRecords() for key in wanted.keys}, **found, **_unavailable(wanted)}
            found |= self._results(wanted, answered, reads, found)
            if not wanted.keys or any(one.acquired or one.error for one in found.values()):
                return found
            missing = self._begin_reads(wanted.keys)
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0:
                return found
            wanted = wanted._replace(acknowledged={}, held=())
            asked |= shares.keys()
            if len(asked) < len(wanted.keys):
                continue
            asked.clear()
            if not await _filled(missing, left_s):
                await self.queue.changed(wanted.keys, answered.moment, left_s)

    def _forget(self, keys: Iterable[SharePartitionKey] | None) -> None:
        """Forget what was read of these, or of all. Reads that are made now come too late to be used."""
        for key in tuple(self._reads) if keys is None else keys:
            self._reads.pop(key, None)

    def _reads_of(self, key: SharePartitionKey) -> PartitionReads:
        reads = self._reads.get(key)
        if reads is None:
            at = TopicPartition(self.names[key.topic_id], key.partition)
            reads = self._reads[key] = PartitionReads(self.reader, at)
        return reads

    def _shares(self, wanted: Fetch, asked: Collection[SharePartitionKey]) -> dict[SharePartitionKey, int]:
        """Return how many records are asked of which share-partitions, of those that were not ``asked`` yet. Those
        behind the ones that seem to have enough are left out: to ask one costs as much as to get something of it."""
        shares, left = dict[SharePartitionKey, int](), wanted.max_records
        for key in wanted.keys:
            if key in asked:
                continue
            if left <= 0 < wanted.max_records:
                break
            reads = self._reads_of(key)
            reads.batch_records = max(1, wanted.max_records)
            shares[key] = min(left, reads.records_ahead)
            left -= shares[key]
        return shares

    async def _asked(
        self,
        wanted: Fetch,
        shares: Mapping[SharePartitionKey, int],
        reads: Mapping[SharePartitionKey, Sequence[Read]],
        until: float,
    ) -> Answered | None:
        """Ask; None if no engine has answered in time. What acknowledges waits longer than what only fetches. What a
        session held at its end is given back now or not at all: later its member may hold other records, by a session
        that it has opened meanwhile, perhaps elsewhere."""
        loop = asyncio.get_running_loop()
        last = max(until, loop.time() + _PATIENCE_S) if wanted.acknowledged else until
        while True:
            try:
                return await self.queue.ask(_requests(wanted, shares, reads))
            except GroupUnavailableError:
                if loop.time() >= last:
                    return None
                wanted = wanted._replace(held=())
                await asyncio.sleep(min(_RETRY_S, max(0.0, last - loop.time())))

    def _results(
        self,
        wanted: Fetch,
        answered: Answered,
        reads: Mapping[SharePartitionKey, Sequence[Read]],
        before: Mapping[SharePartitionKey, FetchedRecords],
    ) -> dict[SharePartitionKey, FetchedRecords]:
        """Return the answers by share-partition. ``before``: those to an earlier ask of this fetch, which has had the
        acknowledgements."""
        found = dict[SharePartitionKey, FetchedRecords]()
        for key in {**dict.fromkeys(wanted.acknowledged), **dict.fromkeys(reads)}:
            responses = answered.responses.get(key)
            if responses is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                found[key] = FetchedRecords((), (), error, error if key in wanted.acknowledged else None)
                continue
            earlier = before.get(key, FetchedRecords())
            acknowledge_error = responses[0].error if key in wanted.acknowledged else earlier.acknowledge_error
            acquired = self._acquired(key, responses[-1]) if key in reads else ()
            content = content_of(reads[key], acquired) if acquired else ()
            found[key] = FetchedRecords(acquired, content, ErrorCode.NONE, acknowledge_error)
        return found

    def _acquired(self, key: SharePartitionKey, response: PartitionResponse) -> tuple[AcquiredRange, ...]:
        reads = self._reads_of(key)
        if response.next_fetch_offset is not None:
            reads.next_fetch_offset = response.next_fetch_offset
        if response.acquired:
            reads.read_on()
        return tuple(response.acquired)

    def _begin_reads(self, keys: Sequence[SharePartitionKey]) -> list[PartitionReads]:
        """Begin to read where something is to be fetched and was not read. Also if this fetch has no time for it: where
        micro-batches take longer than fetches wait, the next one would find no more than this one."""
        missing = [reads for key in keys if not (reads := self._reads_of(key)).holds(reads.next_fetch_offset)]
        for reads in missing:
            reads.begin()
        return missing


async def _filled(missing: Sequence[PartitionReads], seconds: float) -> bool:
    """Wait for these reads; return whether there is something to ask for now. A read that takes longer than ``seconds``
    goes on, for the next fetch."""
    results: Sequence[BaseException | None] = ()
    with suppress(TimeoutError):
        fills = asyncio.gather(*(reads.fill() for reads in missing), return_exceptions=True)
        results = await asyncio.wait_for(fills, seconds)
    for fault in results:
        _note_fault(fault)
    return any(reads.holds(reads.next_fetch_offset) for reads in missing)


def _requests(
    wanted: Fetch, shares: Mapping[SharePartitionKey, int], reads: Mapping[SharePartitionKey, Sequence[Read]]
) -> dict[SharePartitionKey, list[KafkaRequest]]:
    """Return the requests by share-partition: acknowledgements first, then the end of the session, or a fetch."""
    requests = dict[SharePartitionKey, list[KafkaRequest]]()
    for key, batches in wanted.acknowledged.items():
        acknowledge = AcknowledgeOrRenew(
            member_id=wanted.owner, batches=tuple(batches), is_renew_ack=wanted.is_renew_ack
        )
        requests[key] = [acknowledge]
    for key in wanted.held:
        requests.setdefault(key, []).append(ReleaseMember(member_id=wanted.owner))
    for key, share in shares.items():
        requests.setdefault(key, []).append(
            AcquireReadAhead(
                member_id=wanted.owner,
                max_records=share,
                max_bytes=wanted.max_bytes,
                reads=tuple(read.header for read in reads[key]),
                mode=wanted.mode,
                batch_size=wanted.batch_size,
            )
        )
    return requests


def _note_fault(fault: BaseException | None) -> None:
    """Log the fault of a read, which is tried again. Of an outage the engine tells itself, once."""
    if isinstance(fault, TopicError):
        _log.log(logging.DEBUG if fault.retriable else logging.WARNING, "%s; it is tried again", fault)
    elif fault is not None:
        raise fault


def _unavailable(wanted: Fetch) -> dict[SharePartitionKey, FetchedRecords]:
    """Return answers to acknowledgements that no engine has taken."""
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return {key: FetchedRecords(acknowledge_error=error) for key in wanted.acknowledged}
