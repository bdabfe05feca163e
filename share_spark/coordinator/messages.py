"""Requests to the share coordinator, its answers, and the records it keeps, all in the KIP's own form (R74-R79,
R91-R104): no members, no locks, never Acquired.

A request may name many share-partitions of one group; each is one entry here, is handled on its own and has its own
result (R98). The wire nests entries by topic, which changes nothing but the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import UNINITIALIZED_START_OFFSET, StateBatch

NOT_GIVEN = -1
"""A start offset of a request, or a start offset or leader epoch of an update, that keeps the known value (R79)."""

DELETED_SNAPSHOT_EPOCHS = frozenset({-1, 65_535})
"""Epochs of snapshots that are read as tombstones: the KIP's prose says -1, its schema is a uint16 (O5)."""

LAST_SNAPSHOT_EPOCH = 65_534
"""The epoch after which 0 comes again; epochs are compared for equality only (O7)."""


def next_snapshot_epoch(snapshot_epoch: int) -> int:
    """Return the epoch of the snapshot after this one (R75, O7); -1, no snapshot yet, gives 0."""
    return 0 if snapshot_epoch >= LAST_SNAPSHOT_EPOCH else snapshot_epoch + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeState:
    """A request to create or reset a share-partition (R101). ``start_offset`` -1: the leader will choose it (R26)."""

    topic_id: str
    partition: int
    state_epoch: int
    start_offset: int = UNINITIALIZED_START_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState:
    """A request for the whole state (R102). ``leader_epoch`` -1: the reader is not a leader, and is not fenced."""

    topic_id: str
    partition: int
    leader_epoch: int = NOT_GIVEN


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """The changes of a leader (R61): only the batches that changed, and the SPSO if it moved. It names both its epochs:
    -1 is fenced as any other that is lower than the known one (R94, R95)."""

    topic_id: str
    partition: int
    state_epoch: int
    leader_epoch: int
    start_offset: int = NOT_GIVEN
    state_batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteState:
    """A request to forget a share-partition (R91)."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStateSummary:
    """A request for state epoch and start offset only (R103)."""

    topic_id: str
    partition: int
    leader_epoch: int = NOT_GIVEN


StateRequest = InitializeState | ReadState | WriteState | DeleteState | ReadStateSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupStateRequest:
    """One RPC: entries of one group, in the order they are to be handled."""

    group_id: str
    entries: tuple[StateRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateResult:
    """The answer to one entry. The last four are set only in answers that carry them: Read has all but the leader
    epoch, ReadSummary all but the batches."""

    topic_id: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state_epoch: int | None = None
    leader_epoch: int | None = None
    start_offset: int | None = None
    state_batches: tuple[StateBatch, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """The complete durable state of a share-partition (R74)."""

    key: SharePartitionKey
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUpdate:
    """The changes since the snapshot of this epoch (R74, R76). The state epoch is the snapshot's (O8)."""

    key: SharePartitionKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: tuple[StateBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTombstone:
    """The end of a key: from here on it is unknown (R91, R93)."""

    key: SharePartitionKey


StateRecord = StateSnapshot | StateUpdate | StateTombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """The state that the coordinator holds of one share-partition: the fold of its records.

    ``state_batches`` are sorted, disjoint and joined. ``updates``: since the snapshot; it is only there to know when
    the next one is due, so two states that differ in it are equal (R87).
    """

    key: SharePartitionKey
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: tuple[StateBatch, ...]
    updates: int = field(default=0, compare=False)
