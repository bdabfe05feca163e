"""Requests to a share-partition leader and its answers. Values only; what they mean is in ``share_spark.partition``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from share_spark.model.errors import ErrorCode
from share_spark.model.records import Doubt, InFlightBatch


class AcknowledgeType(IntEnum):
    """How a member is done with a record; ids as on the wire. Renew is KIP-1222."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Loss(IntEnum):
    """How an attempt ended without an acknowledgement. Negative, as columns hold these beside the acknowledge types.

    * ``UNKNOWN``: its engine or machine is gone, and with it every trace of what was entered.
    * ``IN_HANDLER``: it was in the handler when its worker or engine died, and was the only one.
    * ``AMONG_OTHERS``: others were in a handler as well, in its batch or in other tasks.
    * ``FINISHED``: the handler was done with it; the result was lost with a worker that died in another record.
    * ``AFTER_HANDLER``: the handler was done with it, then the engine died, and no record was in a handler.
    * ``NOT_ENTERED``: the handler never had it, so this was no attempt.
    """

    UNKNOWN = -1
    IN_HANDLER = -2
    AMONG_OTHERS = -3
    FINISHED = -4
    AFTER_HANDLER = -5
    NOT_ENTERED = -6


class AcquireMode(StrEnum):
    """How an acquisition is measured.

    ``BATCH_OPTIMIZED``: whole log batches, the record limit is soft (R39). ``RECORD_LIMIT``: Kafka's strict limit
    (KIP-1206): whole log batches are remembered, but only so many records of them acquired. Both do as Kafka 4.2 does.
    ``EXACT`` is for callers that do not look at log batches (the Spark-native engine): redeliveries and new records
    in offset order, exactly up to the limit, without throttling, and without remembering what was fetched together.
    """

    BATCH_OPTIMIZED = "batch_optimized"
    RECORD_LIMIT = "record_limit"
    EXACT = "exact"


class AcknowledgementBatch(NamedTuple):
    """Acknowledgement of ``first_offset..last_offset``: one type for all, or exactly one per offset (R47)."""

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


class LogBatch(NamedTuple):
    """A record batch as the log returned it; offsets between two batches hold no record.

    ``aborted`` marks batches (control records, aborted transactions) that are archived when acquired.
    """

    base_offset: int
    last_offset: int
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """Choose the first SPSO of a share-partition that has none (R26)."""

    start_offset: int


class RetryDelay(NamedTuple):
    """Offsets that, if they are released, are not acquired again for so long; 0: at once."""

    first_offset: int
    last_offset: int
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Acknowledgements of one member, all or nothing (R50).

    ``is_renew_ack``: the request may renew; without it type 4 is refused (ShareAcknowledge version 2, KIP-1222).
    ``delays``: what the member asks for, ascending and disjoint; other released offsets wait as the limits say.
    """

    member_id: str
    batches: Sequence[AcknowledgementBatch]
    is_renew_ack: bool = True
    delays: Sequence[RetryDelay] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseMember:
    """A member's session has ended: give back what it still holds (R57).

    ``charged``: the attempts count. False gives back what no handler had.
    """

    member_id: str
    charged: bool = True


class LostRange(NamedTuple):
    """Offsets whose attempts ended without an acknowledgement, and how."""

    first_offset: int
    last_offset: int
    loss: Loss


class TracedRange(NamedTuple):
    """Offsets whose handler was entered with this delivery count, and how that ended."""

    first_offset: int
    last_offset: int
    delivery_count: int
    loss: Loss


class Trace(NamedTuple):
    """What a member that has ended left about its last attempts in one share-partition. ``entered``: ascending and
    disjoint. What the member held and is not in it was never entered."""

    member_id: str
    entered: tuple[TracedRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireLocks:
    """End the locks whose deadline has come (R55).

    ``lost``: their owners have ended, so the attempts were lost in a crash (``partition.lost``). ``traces``: what is
    known of the last attempts of some owners. Of owners without a trace nothing is known.
    """

    lost: bool = False
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseAttempts:
    """Attempts of the running engine that ended without an acknowledgement. ``ranges``: ascending and disjoint;
    what the member does not hold of them is left as it is. ``delays``: of offsets that were not entered since an
    earlier record of their key is not finished, for how long that is sure; ascending and disjoint."""

    member_id: str
    ranges: Sequence[LostRange]
    delays: Sequence[RetryDelay] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLogStart:
    """The log now begins at ``log_start_offset`` (R25).

    ``pass_finished``: R15 at once; Kafka leaves finished records at the new SPSO until the next acknowledgement.
    """

    log_start_offset: int
    pass_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """The log now ends at ``end_offset`` (exclusive), below the SPEO: what was at and above it does not exist any more.

    All that is known of those offsets is forgotten, final or not, and the SPSO goes back if it was past them: what is
    written there later are other records. An update cannot state that (R61, R74), so the record is a snapshot.
    """

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """Give records to a member: redeliveries and new ones alike, in offset order (R36-R41).

    ``log_batches`` is what a read of the log at the next fetch offset returned. A caller that does not know the
    batches (records are read after they are acquired) passes one batch up to the log end and ``EXACT``.
    ``fetch_offset`` is where the log was read; None: at the next fetch offset. ``batch_size`` (records) cuts large
    acquisitions at log batch starts. ``searched`` (``EXACT`` only): records of this doubt are searched for the one
    that brings engines down, and are not acquired here; ``suspects``: acquire those, and no others. ``alone``: no
    other record is acquired in this micro-batch.
    """

    member_id: str
    max_records: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    log_batches: tuple[LogBatch, ...]
    fetch_offset: int | None = None
    batch_size: int = 2**31 - 1
    searched: Doubt = Doubt.NONE
    suspects: bool = False
    alone: bool = False


PartitionRequest = (
    Initialize | Acknowledge | LoseAttempts | ReleaseMember | ExpireLocks | MoveLogStart | TruncateLog | Acquire
)


class AcquiredRange(NamedTuple):
    """A run of offsets that a member now holds, with the count of this delivery (R9, R41)."""

    first_offset: int
    last_offset: int
    delivery_count: int


class ArchivedRange(NamedTuple):
    """A run of offsets that this decision archived, and why; the source of dead letters (KIP-1191)."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: ArchiveReason


class ArchiveReason(StrEnum):
    """Why a record was archived. Only the first two make dead letters (KIP-1191)."""

    REJECTED = "rejected"
    DELIVERY_LIMIT = "delivery limit reached"
    GAP = "no record at this offset"
    LOG_START = "below the log start offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """Answer to one request. ``error`` concerns acknowledgements only; ``acquired`` only an ``Acquire``.

    ``accepted`` and ``released`` count records (offsets), for progress. ``ended``: the runs as they became when an
    attempt ended, for the audit; ``not_entered``: those of them whose attempt is taken back, as they were before. Of a
    ``TruncateLog``, ``ended`` are the Acquired runs that it has forgotten, as they were. Each sequence is a tuple, or
    ``partition.columns.Columns`` if there are many.
    """

    error: ErrorCode = ErrorCode.NONE
    acquired: Sequence[AcquiredRange] = ()
    archived: Sequence[ArchivedRange] = ()
    accepted: int = 0
    released: int = 0
    ended: Sequence[InFlightBatch] = ()
    not_entered: Sequence[AcquiredRange] = ()
