"""Requests to a share-partition leader and its answers. Values only; what they mean is in ``share_spark.partition``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from share_spark.model.errors import ErrorCode
from share_spark.model.ids import OffsetRange
from share_spark.model.records import Doubt, InFlightBatch


class AcknowledgeType(IntEnum):
    """The way a member is done with a record; ids as on the wire. ``Loss`` has other numbers, so that one number says
    how an attempt ended (``AnsweredRange``)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


class Loss(IntEnum):
    """The way an attempt ended without an acknowledgement.

    * ``UNKNOWN``: its engine or machine is gone, and with it every trace of what was entered.
    * ``IN_HANDLER``: it was in the handler when its worker or engine died, and was the only one.
    * ``AMONG_OTHERS``: others were in a handler as well, in its batch or in other tasks.
    * ``FINISHED``: the handler was done with it; the result was lost with a worker that died in another record.
    * ``AFTER_HANDLER``: the handler was done with it, then the engine died, and no record was in a handler.
    * ``NOT_ENTERED``: the handler never had it, so this was no attempt.
    * ``THROTTLED``: a service that the handler calls has asked it to wait, so this was no attempt either.
    """

    UNKNOWN = 101
    IN_HANDLER = 102
    AMONG_OTHERS = 103
    FINISHED = 104
    AFTER_HANDLER = 105
    NOT_ENTERED = 106
    THROTTLED = 107


ANSWERS: Mapping[int, AcknowledgeType | Loss] = {int(answer): answer for answer in (*AcknowledgeType, *Loss)}
"""The answers by their numbers."""


class AnsweredRange(NamedTuple):
    """The answer for all offsets ``first_offset..last_offset``: an ``AcknowledgeType`` (R47) or a ``Loss``. A client
    may send any other number."""

    first_offset: int
    last_offset: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """A request to choose the first SPSO of a share-partition that has none (R26)."""

    start_offset: int


class RetryDelay(NamedTuple):
    """Offsets that, if they are released, are not acquired again for so long; 0: at once."""

    first_offset: int
    last_offset: int
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Acknowledgements of one member, all or nothing (R50).

    ``delays``: what the member asks for, ascending and disjoint; other released offsets wait as the limits say.
    """

    member_id: str
    batches: Sequence[AnsweredRange]
    delays: Sequence[RetryDelay] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseMember:
    """The end of a member's session: what it still holds is given back (R57).

    ``charged``: the attempts count. False gives back what no handler had.
    """

    member_id: str
    charged: bool = True


class TracedRange(NamedTuple):
    """Offsets whose handler was entered with this delivery count, and how that ended."""

    first_offset: int
    last_offset: int
    delivery_count: int
    loss: Loss


class Trace(NamedTuple):
    """The trace that a member left of its last attempts in one share-partition. ``entered``: ascending and disjoint.
    What the member held and is not in it was never entered."""

    member_id: str
    entered: tuple[TracedRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireLocks:
    """A request to end the locks whose deadline has come (R55).

    ``lost``: those of engines that have ended, so that the attempts were lost in a crash (``partition.lost``); without
    it an attempt ends as Kafka's do, and counts. Clients of Kafka's protocol have no such end. ``traces``: what is
    known of the last attempts of some owners. Of owners without a trace nothing is known. ``kept_by``: the locks of
    this member do not end, as it is there; but for those below the SPSO, which no acknowledgement ends any more.
    """

    lost: bool = False
    kept_by: str | None = None
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseAttempts:
    """Attempts of the running engine that ended with a ``Loss``. ``ranges``: ascending and disjoint; what the member
    does not hold of them is left as it is. ``delays``: of throttled offsets, and of those that were not entered since
    an earlier record of their key is not finished, for how long that is sure; ascending and disjoint."""

    member_id: str
    ranges: Sequence[AnsweredRange]
    delays: Sequence[RetryDelay] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLogStart:
    """A log that begins at ``log_start_offset`` now (R25).

    ``pass_finished``: R15 at once; Kafka leaves finished records at the new SPSO until the next acknowledgement.
    """

    log_start_offset: int
    pass_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """A log that ends at ``end_offset`` (exclusive) now, below the SPEO: what was at and above it is gone.

    All that is known of those offsets is forgotten, final or not, and the SPSO goes back if it was past them: what is
    written there later are other records. An update cannot state that (R61, R74), so the record is a snapshot.
    """

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """A request to give a member redeliveries and new records alike, in offset order (R36-R38).

    ``readable``: offsets that the log holds, or may hold; empty if there are none. ``searched``: records of this doubt
    are searched for the one that brings engines down, and are not acquired here; ``suspects``: acquire those, and no
    others. ``alone``: no other record is acquired in this micro-batch.
    """

    member_id: str
    max_records: int
    readable: OffsetRange
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
    """The reason why a record was archived. Only the first two make dead letters (KIP-1191)."""

    REJECTED = "rejected"
    DELIVERY_LIMIT = "delivery limit reached"
    GAP = "no record at this offset"
    LOG_START = "below the log start offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The answer to one request. ``error`` concerns acknowledgements only; ``acquired`` only an ``Acquire``.

    ``accepted`` and ``released`` count records (offsets), for progress. ``ended``: the runs as they became when an
    attempt ended, for the audit; ``not_entered`` and ``throttled``: those of them whose attempt is taken back, as they
    were before. Of a ``TruncateLog``, ``ended`` are the Acquired runs that it has forgotten, as they were. Each
    sequence is a tuple, or ``partition.columns.Columns`` if there are many. ``next_fetch_offset``: for a client that
    reads ahead, where the log is to be read next.
    """

    error: ErrorCode = ErrorCode.NONE
    acquired: Sequence[AcquiredRange] = ()
    archived: Sequence[ArchivedRange] = ()
    accepted: int = 0
    released: int = 0
    ended: Sequence[InFlightBatch] = ()
    not_entered: Sequence[AcquiredRange] = ()
    throttled: Sequence[AcquiredRange] = ()
    next_fetch_offset: int | None = None
