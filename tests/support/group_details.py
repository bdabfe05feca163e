"""Groups as the pages get them, made of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from share_spark.admin.group_details import GroupDetails, GroupMember, GroupPhase, offsets_of
from share_spark.admin.state_reader import GroupState
from share_spark.model.ids import LogEnds, SharePartitionKey
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.partition import SharePartition
from share_spark.partition.columns import in_best_form

NOW_MS = 1_763_824_000_000
MEMBER = "spark-0123456789ab"
STATES = {
    "V": DeliveryState.AVAILABLE,
    "Q": DeliveryState.ACQUIRED,
    "D": DeliveryState.ACKNOWLEDGED,
    "X": DeliveryState.ARCHIVED,
}


def run(letter: str, first: int, last: int, count: int = 1) -> InFlightBatch:
    """V available, Q acquired, D acknowledged, X archived."""
    owner = (MEMBER, NOW_MS + 27_000) if letter == "Q" else (None, None)
    return InFlightBatch(first, last, STATES[letter], count, *owner)


def state(partition: int, start: int, runs: Sequence[InFlightBatch], group_id: str = "billing") -> SharePartition:
    key = SharePartitionKey(group_id, "topic-id", partition)
    return SharePartition(key=key, leader_epoch=3, start_offset=start, in_flight=in_best_form(runs))


def details(
    states: Mapping[str, Sequence[SharePartition]],
    *,
    group_id: str = "billing",
    waiting: int | None = 1_000,
    members: bool = True,
    fault: str = "",
) -> GroupDetails:
    """``states`` by topic. ``waiting``: records above each window, None if the ends of the logs are not known."""
    found = {
        SharePartitionKey(group_id, topic, one.key.partition): (topic, one)
        for topic, some in states.items()
        for one in some
    }
    group = GroupState(group_id=group_id, writer_epoch=3, at_ms=NOW_MS - 12_000, partitions=found)
    ends = {
        topic: {one.key.partition: LogEnds(0, max(0, one.end_offset) + waiting) for one in some}
        for topic, some in states.items()
        if waiting is not None
    }
    member = GroupMember(
        group_id=group_id,
        member_id=MEMBER,
        host="worker-7.example",
        pid=4711,
        writer_epoch=3,
        since_ms=NOW_MS - 5_400_000,
        silent_ms=4_000,
        acquired={("orders", 0): 400},
    )
    return GroupDetails(
        state=group,
        phase=GroupPhase.STABLE if members else GroupPhase.EMPTY,
        members=[member] if members else [],
        offsets=offsets_of(group, ends),
        ends_fault=fault,
    )


def scattered(partition: int, ranges: int, start: int = 1_000_000) -> SharePartition:
    """Every other range is a single offset that waits again."""
    runs: list[InFlightBatch] = []
    at = start
    while len(runs) < ranges:
        runs += [run("V", at, at, 2 + len(runs) % 3), run("D", at + 1, at + 19)]
        at += 20
    runs += [run("Q", at, at + len(runs) // 2), run("X", at + len(runs) // 2 + 1, at + len(runs), 5)]
    return state(partition, start, runs)
