"""A group as operators see it, as values: its share-partitions with their lag, its engine, and its operators'
settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from share_spark.admin.state_reader import Engine, GroupState
from share_spark.engine.pauses import NOT_PAUSED, Pauses
from share_spark.model.dynamic_config import Texts
from share_spark.model.ids import LogEnds
from share_spark.model.records import DeliveryState
from share_spark.partition import SharePartition, highest_delivery_count, offsets_by_state
from share_spark.partition.runs import offsets_by_kind


class GroupPhase(Enum):
    """A group's state, named as in the KIP."""

    STABLE = "Stable"
    EMPTY = "Empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group. ``phase``: STABLE while an engine runs it. ``engine``: the one that has run it last; None if there is
    no heartbeat, and for an earlier version."""

    group_id: str
    phase: GroupPhase
    engine: Engine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """One share-partition. ``start_offset``: SPSO; ``lag``: unfinished records, None where the end of the log is not
    known; then the offsets of the window by state, and the highest delivery count in it."""

    group_id: str
    topic: str
    partition: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    lag: int | None
    available: int
    acquired: int
    acknowledged: int
    archived: int
    max_delivery_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """The engine of a group. ``since_ms``: when it began; ``silent_ms``: the time since its last heartbeat;
    ``acquired``: the number of offsets that it holds, by (topic, partition). ``unreachable_since_ms``: since when its
    topics do not answer; None if they do. ``calls``: those of a handler that waits, as a text; empty for others."""

    group_id: str
    member_id: str
    host: str
    pid: int
    writer_epoch: int
    since_ms: int
    silent_ms: int
    acquired: Mapping[tuple[str, int], int]
    unreachable_since_ms: int | None = None
    calls: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The settings that operators have made for a group beside its state: its pauses, and dynamic configs by key.
    ``fault``: why they are not known, empty if they are."""

    pauses: Pauses = NOT_PAUSED
    dynamic_configs: Texts = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """All details of one group. ``offsets``: by topic and partition. ``ends_fault``: why the ends of its logs, and so
    the lag, are not known; empty if they are. ``engine`` as in ``GroupListing``."""

    state: GroupState
    phase: GroupPhase
    members: Sequence[GroupMember]
    offsets: Sequence[PartitionOffsets]
    ends_fault: str
    operator_settings: OperatorSettings = OperatorSettings()
    engine: Engine | None = None


def phase_of(engine: Engine | None) -> GroupPhase:
    """Return the state of a group that ``engine`` has run last."""
    return GroupPhase.STABLE if engine is not None and engine.is_running else GroupPhase.EMPTY


class KnownOffsets(NamedTuple):
    """The known offsets. ``rows``: by topic and partition. ``ends_fault`` as in ``GroupDetails``."""

    rows: Sequence[PartitionOffsets]
    ends_fault: str


def offsets_of(group: GroupState, ends: Mapping[str, Mapping[int, LogEnds]]) -> list[PartitionOffsets]:
    """Return the offsets by topic and partition."""
    found = group.partitions.values()
    rows = (_offsets(group.group_id, topic, state, ends.get(topic, {})) for topic, state in found)
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def _offsets(group_id: str, topic: str, state: SharePartition, ends: Mapping[int, LogEnds]) -> PartitionOffsets:
    counts = offsets_by_state(state)
    finished = counts[DeliveryState.ACKNOWLEDGED] + counts[DeliveryState.ARCHIVED]
    end = ends.get(state.key.partition)
    lag = None
    if end is not None and state.start_offset >= 0:
        lag = end.unfinished(state.start_offset, finished)
    return PartitionOffsets(
        group_id=group_id,
        topic=topic,
        partition=state.key.partition,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        end_offset=state.end_offset,
        lag=lag,
        available=counts[DeliveryState.AVAILABLE],
        acquired=counts[DeliveryState.ACQUIRED],
        acknowledged=counts[DeliveryState.ACKNOWLEDGED],
        archived=counts[DeliveryState.ARCHIVED],
        max_delivery_count=highest_delivery_count(state),
    )


def members_of(group: GroupState, engine: Engine | None) -> list[GroupMember]:
    """Return the engine, if it runs."""
    return [_member(group, engine)] if engine is not None and engine.is_running else []


def _member(group: GroupState, engine: Engine) -> GroupMember:
    beat = engine.beat
    acquired = {
        (topic, state.key.partition): held
        for topic, state in group.partitions.values()
        if (held := _held(state, beat.member_id))
    }
    return GroupMember(
        group_id=group.group_id,
        member_id=beat.member_id,
        host=beat.host,
        pid=beat.pid,
        writer_epoch=beat.writer_epoch,
        since_ms=beat.since_ms,
        silent_ms=engine.silent_ms,
        acquired=acquired,
        unreachable_since_ms=beat.unreachable_since_ms,
        calls=beat.calls,
    )


def _held(state: SharePartition, member_id: str) -> int:
    return sum(offsets for run, offsets in offsets_by_kind(state.in_flight) if run.member_id == member_id)
