"""Durable records of a share-partition and the in-flight ranges they carry (R74-R79).

A ``ShareSnapshot`` is the complete state of one share-partition, a ``ShareUpdate`` holds only what changed; the state
is the last snapshot plus all later updates with its snapshot epoch. Both also carry what Kafka keeps in memory only,
the Acquired ranges with their member and lock deadline, so that delivery counts stay exact across a crash, and the
time before which a delayed record is not acquired again.
``kip_batches`` gives back the form of the KIP, in which Acquired is never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from share_spark.model.ids import SharePartitionKey

UNCHANGED = -1
"""Start offset of a ShareUpdate that does not move it (R61)."""

UNINITIALIZED_START_OFFSET = -1
"""Start offset of an initialised share-partition whose reset policy has not been applied yet (R26)."""


class DeliveryState(IntEnum):
    """The state of a record in the window; ids as on the wire (R2). Id 3 is unused."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """True of Acknowledged and Archived, which are never left (R3)."""
        return self >= DeliveryState.ACKNOWLEDGED


class Doubt(IntEnum):
    """The doubt that lost engines and workers leave about a record: that it may be what brought them down.

    * ``LOST_ONCE``: it was in flight when an engine died, and no trace shows what ran. It comes back with all others.
    * ``LOST_TWICE``: the next engine died too. It comes back in pieces.
    * ``LOST_IN_PIECE``: the engine died with such a piece. It comes back in smaller pieces.
    * ``ACCUSED``: it was in the handler when its worker or engine died, or in a lost small piece. It comes back alone.
    * ``ALONE``: accused and Acquired, and no other record is in its micro-batch.

    See ``partition.lost``.
    """

    NONE = 0
    LOST_ONCE = 1
    LOST_TWICE = 2
    LOST_IN_PIECE = 3
    ACCUSED = 4
    ALONE = 5


class StateBatch(NamedTuple):
    """A run of offsets in the durable form of the KIP. Tuple order is the combiner's sort order (R82)."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class InFlightBatch(NamedTuple):
    """A run of offsets with one state, counts, member and deadline.

    A tuple and not a dataclass: a micro-batch in which one record in twenty is released makes a hundred thousand of
    these, and a frozen dataclass costs six times as much to build.

    ``lock_deadline_ms`` (milliseconds since the epoch): before it nobody acquires these offsets. While Acquired it is
    the lock of ``member_id``, which is set only then; while Available it is the delay of a retry, a lock that no member
    holds, or None. A lock ends *at* the deadline. ``doubt``: what crashes have left; an acknowledgement clears it.
    ``excused``: how many of the ``delivery_count`` deliveries do not count towards the delivery limit, since they ended
    with an engine or a worker and the record is not known to be the cause. Final records have none.
    """

    first_offset: int
    last_offset: int
    delivery_state: DeliveryState
    delivery_count: int
    member_id: str | None = None
    lock_deadline_ms: int | None = None
    doubt: Doubt = Doubt.NONE
    excused: int = 0

    @property
    def counted(self) -> int:
        """The deliveries that count towards the limit; the present one, if there is one, among them."""
        return self.delivery_count - self.excused


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshot:
    """The complete state of a share-partition (R74). ``start_offset``: the SPSO, -1 if none yet (R26).

    ``batches``: a tuple, or ``partition.columns.Columns`` if there are many; equal content is equal in both forms.
    """

    key: SharePartitionKey
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: Sequence[InFlightBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdate:
    """The changes of one micro-batch to a share-partition (R74, R76). ``start_offset`` -1: SPSO kept (R61).

    When the SPSO moves, all that lies below it is forgotten, then ``batches`` replace the state of exactly the offsets
    they cover; so what outlives the move below it (R25) is stated again.
    """

    key: SharePartitionKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    batches: Sequence[InFlightBatch]


ShareRecord = ShareSnapshot | ShareUpdate
