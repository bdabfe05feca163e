"""Changes to groups without a running engine: start offsets, topics, whole groups. They go through the share
coordinator, which claims the group as an engine would (``maintenance.share_coordinator``), so an engine that starts
meanwhile is either refused or makes the change fail. Without Spark where the storage and the tables allow it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from share_spark.admin.state_reader import GroupState, StateReader
from share_spark.coordinator.messages import DeleteState, InitializeState, ShareGroupStateRequest, StateRequest
from share_spark.maintenance.share_coordinator import DeltaShareCoordinator
from share_spark.model.config import GroupConfig
from share_spark.model.dynamic_config import altered, over
from share_spark.model.errors import ErrorCode, StateError, TopicError, no_such_partition, no_such_topic
from share_spark.model.ids import LogEnds, SharePartitionKey
from share_spark.partition import SharePartition
from share_spark.spark.on_demand import AnySpark


class StartAt(Enum):
    """The new start of a group. ``OFFSET`` and ``SHIFT`` take a number, ``TIME`` milliseconds since the epoch."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """A share-partition that is to begin at ``offset``. ``state_epoch``: the one after the known one; with it, what was
    in flight is forgotten."""

    key: SharePartitionKey
    topic: str
    offset: int
    state_epoch: int


def moved(start: StartAt, number: int, before: int, ends: LogEnds, at_time: int | None) -> int:
    """Return the new start offset, always one that the log has, or its end. ``at_time``: for TIME, the first offset
    that is not older."""
    wanted = {
        StartAt.EARLIEST: ends.log_start_offset,
        StartAt.LATEST: ends.end_offset,
        StartAt.OFFSET: number,
        StartAt.SHIFT: before + number,
        StartAt.TIME: ends.end_offset if at_time is None else at_time,
    }[start]
    return min(max(wanted, ends.log_start_offset), ends.end_offset)


def new_offset(
    topic: str,
    state: SharePartition,
    start: StartAt,
    number: int,
    ends: Mapping[int, LogEnds],
    at_time: Mapping[int, int],
) -> NewOffset:
    """Return the new offset of a share-partition. ``at_time``: for TIME, by partition. Raises TopicError."""
    partition = state.key.partition
    if partition not in ends:
        raise TopicError(f"topic {topic!r} has no partition {partition} any more")
    offset = moved(start, number, state.start_offset, ends[partition], at_time.get(partition))
    return NewOffset(key=state.key, topic=topic, offset=offset, state_epoch=state.state_epoch + 1)


def partitions_of(group: GroupState, topics: Mapping[str, Collection[int]] | None) -> list[tuple[str, SharePartition]]:
    """Return the share-partitions by topic and partition. Raises ConfigError for one that the group does not have."""
    known = {(topic, state.key.partition): (topic, state) for topic, state in group.partitions.values()}
    names = {topic for topic, _ in known}
    for topic, partitions in (topics or {}).items():
        if topic not in names:
            raise no_such_topic(group.group_id, topic)
        for partition in partitions:
            if (topic, partition) not in known:
                raise no_such_partition(group.group_id, topic, partition)
    return [
        found
        for (topic, partition), found in sorted(known.items(), key=lambda item: item[0])
        if topics is None or (topic in topics and (not topics[topic] or partition in topics[topic]))
    ]


def planned_configs(
    reader: StateReader,
    group_id: str,
    add: Mapping[str, object],
    delete: Collection[str],
    begun: GroupConfig | None = None,
) -> dict[str, str]:
    """Return the group's dynamic configs, by key, with the values ``add`` and without the keys ``delete``; the group
    need not be there. ``begun``: the settings that it begins with, None: those of its engine. Raises ConfigError."""
    found = altered(reader.dynamic_config_file(group_id).read(), add, delete)
    over(begun or GroupConfig.parse(reader.job_settings(group_id)), found)
    return found


def reset(spark: AnySpark, location: str, group_id: str, offsets: Sequence[NewOffset]) -> None:
    """Reset offsets in one commit or not at all. Raises FencedError (an engine runs the group), StateError,
    SinkError."""
    _change(spark, location, group_id, (_initialize(found) for found in offsets), _names(offsets))


def _initialize(found: NewOffset) -> InitializeState:
    _, topic_id, partition = found.key
    return InitializeState(
        topic_id=topic_id, partition=partition, state_epoch=found.state_epoch, start_offset=found.offset
    )


def _names(offsets: Iterable[NewOffset]) -> dict[str, str]:
    return {found.key.topic_id: found.topic for found in offsets}


def forget(spark: AnySpark, location: str, group_id: str, keys: Iterable[SharePartitionKey]) -> None:
    """Delete the state of these share-partitions, in one commit. Raises as ``reset``."""
    _change(
        spark, location, group_id, (DeleteState(topic_id=key.topic_id, partition=key.partition) for key in keys), {}
    )


def delete(spark: AnySpark, location: str, group_id: str) -> None:
    """Delete all state of a group, and its members, in one commit. Raises as ``reset``."""
    shares = DeltaShareCoordinator(spark, location)
    shares.load()
    shares.delete_group(group_id)


def _change(
    spark: AnySpark, location: str, group_id: str, entries: Iterable[StateRequest], topic_names: Mapping[str, str]
) -> None:
    shares = DeltaShareCoordinator(spark, location, topic_names=topic_names)
    shares.load()
    for result in shares.answer(ShareGroupStateRequest(group_id=group_id, entries=tuple(entries))):
        if result.error is not ErrorCode.NONE:
            raise StateError(
                f"partition {result.partition} of group {group_id!r}: {result.message or result.error.name}"
            )
