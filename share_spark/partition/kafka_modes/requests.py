"""Requests of Kafka's clients, beside those of the core (``share_spark.model.requests``). Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from share_spark.model.requests import AcknowledgeType, PartitionRequest

RENEW = AcknowledgeType.REJECT + 1
"""The acknowledge type that restarts a lock (KIP-1222); the others are ``AcknowledgeType``."""


class AcquireMode(StrEnum):
    """The measure of an acquisition.

    ``BATCH_OPTIMIZED``: whole log batches, the record limit is soft (R39). ``RECORD_LIMIT``: a strict limit
    (KIP-1206): whole log batches are remembered, but only so many records of them acquired.
    """

    BATCH_OPTIMIZED = "batch_optimized"
    RECORD_LIMIT = "record_limit"


class LogBatch(NamedTuple):
    """A record batch as the log returned it; offsets between two batches hold no record.

    ``aborted`` marks batches (control records, aborted transactions) that are archived when acquired.
    """

    base_offset: int
    last_offset: int
    aborted: bool = False
    size_bytes: int = 0


class ReadAhead(NamedTuple):
    """A read of the log from ``first_offset`` on, made before it was known what is acquired. ``batches``: all that the
    log holds up to the last of them, at least one."""

    first_offset: int
    batches: tuple[LogBatch, ...]

    def holds(self, offset: int) -> bool:
        """Return whether the read shows what is at this offset."""
        return self.first_offset <= offset <= self.batches[-1].last_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireBatches:
    """A request to give a client what a read of the log has returned (R36-R41).

    ``fetch_offset`` is where the log was read; None: at the next fetch offset. ``batch_size`` (records) cuts large
    acquisitions at log batch starts.
    """

    member_id: str
    max_records: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    log_batches: tuple[LogBatch, ...]
    fetch_offset: int | None = None
    batch_size: int = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireReadAhead:
    """A request to give a client what was read ahead at the next fetch offset, as ``AcquireBatches`` does. Where that
    was not read, it gets nothing.

    ``max_bytes``: of the log batches; the first one is given even if it is larger (R36, KIP-74).
    """

    member_id: str
    max_records: int
    max_bytes: int
    reads: tuple[ReadAhead, ...]
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    batch_size: int = 2**31 - 1

    def with_at_most(self, records: int) -> AcquireReadAhead:
        """Return the same request with this strict limit, if it wants more."""
        if self.max_records <= records:
            return self
        return replace(self, max_records=records, mode=AcquireMode.RECORD_LIMIT)

    def below(self, end_offset: int) -> AcquireReadAhead:
        """Return the same request without the batches that end at or past this offset."""
        if all(read.batches[-1].last_offset < end_offset for read in self.reads):
            return self
        cut = (tuple(batch for batch in read.batches if batch.last_offset < end_offset) for read in self.reads)
        reads = (
            ReadAhead(read.first_offset, batches) for read, batches in zip(self.reads, cut, strict=True) if batches
        )
        return replace(self, reads=tuple(reads))


class TypedBatch(NamedTuple):
    """An acknowledgement of ``first_offset..last_offset``: one type for all, or exactly one per offset (R47)."""

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeOrRenew:
    """Acknowledgements of one client, all or nothing (R50).

    ``is_renew_ack``: the request may renew; without it ``RENEW`` is refused (ShareAcknowledge version 2, KIP-1222).
    """

    member_id: str
    batches: tuple[TypedBatch, ...]
    is_renew_ack: bool = True


KafkaRequest = PartitionRequest | AcquireBatches | AcquireReadAhead | AcknowledgeOrRenew
