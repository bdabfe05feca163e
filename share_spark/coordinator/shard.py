"""All keys of one state partition, and requests that name many of them (R72, R73, R97, R98).

A shard is a value: its owner loads it by replaying the records of its state partition, commits what ``answer`` gives,
and only then goes on with ``evolved`` and sends the results. A commit that failed has changed nothing here.

Which state partition owns a key is the same arithmetic as Kafka's (R70, R71).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from share_spark.coordinator.decide import UPDATES_PER_SNAPSHOT, CoordinatorDecision, decide, malformed, refusal
from share_spark.coordinator.evolve import evolve, replay
from share_spark.coordinator.fault import Fault
from share_spark.coordinator.messages import ShareGroupStateRequest, ShareState, StateRecord, StateRequest, StateResult
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey

STATE_PARTITIONS = 50
"""``share.coordinator.state.topic.num.partitions`` by default (R69); another number sends keys elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorShard:
    """All keys of ``state_partition``, one of ``state_partitions``. Until they are ``loaded`` it says that (R73)."""

    state_partition: int
    state_partitions: int = STATE_PARTITIONS
    updates_per_snapshot: int = UPDATES_PER_SNAPSHOT
    loaded: bool = False
    states: Mapping[SharePartitionKey, ShareState] = field(default_factory=dict)


class Answer(NamedTuple):
    """Records to commit together, and one result per entry, in their order."""

    records: tuple[StateRecord, ...]
    results: tuple[StateResult, ...]


def answer(shard: CoordinatorShard, request: ShareGroupStateRequest) -> Answer:
    """Answer every entry on its own (R98), one that names a key again after those before it. No group: none (R97)."""
    changed: dict[SharePartitionKey, ShareState | None] = {}
    records: list[StateRecord] = []
    results: list[StateResult] = []
    for entry in request.entries if request.group_id else ():
        key = SharePartitionKey(request.group_id, entry.topic_id, entry.partition)
        known = changed[key] if key in changed else shard.states.get(key)
        record, result = _decide(shard, key, known, entry)
        results.append(result)
        if record is not None:
            records.append(record)
            changed[key] = evolve(known, record)
    return Answer(tuple(records), tuple(results))


def evolved(shard: CoordinatorShard, records: Iterable[StateRecord]) -> CoordinatorShard:
    """Return the shard after ``records``, committed or read again; of another state partition's, none counts."""
    owned = (record for record in records if _owner(shard, record.key) == shard.state_partition)
    return replace(shard, states=replay(owned, shard.states))


def _decide(
    shard: CoordinatorShard, key: SharePartitionKey, state: ShareState | None, request: StateRequest
) -> CoordinatorDecision:
    if fault := malformed(request) or _misplaced(shard, key):
        return refusal(request, fault)
    return decide(key, state, request, shard.updates_per_snapshot)


def _misplaced(shard: CoordinatorShard, key: SharePartitionKey) -> Fault | None:
    owner = _owner(shard, key)
    if owner != shard.state_partition:
        return Fault(ErrorCode.NOT_COORDINATOR, f"{key} belongs to state partition {owner}")
    if not shard.loaded:
        return Fault(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"state partition {owner} is being loaded")
    return None


def _owner(shard: CoordinatorShard, key: SharePartitionKey) -> int:
    return state_partition_of(key, shard.state_partitions)


def state_partition_of(key: SharePartitionKey, state_partitions: int = STATE_PARTITIONS) -> int:
    """Return 0 to ``state_partitions`` - 1: the hash of ``group:topicId:partition``, one text for both uses (O14)."""
    return _absolute(_java_hash(str(key))) % state_partitions


def _java_hash(text: str) -> int:
    """Do as Java's ``String.hashCode``: over UTF-16 code units, wrapped to a signed 32-bit number."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8) + low) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _absolute(value: int) -> int:
    """Do as Kafka's ``Utils.abs``: Java's smallest int, which has no positive counterpart, gives 0."""
    return 0 if value == -(1 << 31) else abs(value)
