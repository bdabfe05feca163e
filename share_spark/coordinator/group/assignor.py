"""The partitions of each member: Kafka's ``SimpleAssignor``, which balances (KAFKA-19362, KAFKA-19363; R123).

Every partition has at least one member, and every member of a pool at least one partition: with more members than
partitions a partition has several. Members with the same subscription are one pool. Otherwise each topic is a pool of
its own, and its subscribers are balanced for that topic alone, as Kafka does.

    3 members, 8 partitions          5 members, 2 partitions: 3 members to a partition, so 6 places
    m1  0 1 2                        m1  0 1
    m2  3 4 5                        m2  0
    m3  6 7                          m3  0        m4  1        m5  1

Members of a pool differ by one partition at most. Within that they keep what they have. Where Kafka goes by the order
of hash tables, here it is the order of ids, and who holds most has the first claim to a larger share: the same
arguments give the same result, and a member that joins takes from others only what it gets.

Racks do not matter, as in Kafka.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from share_spark.coordinator.group.records import Assignment


class _Partition(NamedTuple):
    topic_id: str
    partition: int


def assign(
    subscriptions: Mapping[str, frozenset[str]],
    partitions: Mapping[str, Sequence[int]],
    held: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """Return the assignment of every member.

    ``subscriptions``: member id to topic ids. ``partitions``: those of each topic id that may be assigned; a topic
    that is not there has none. ``held``: the assignments before.
    """
    shares: dict[str, set[_Partition]] = {member: set() for member in subscriptions}
    for members, topic_ids in _pools(subscriptions):
        pool = [_Partition(topic_id, number) for topic_id in topic_ids for number in partitions.get(topic_id, ())]
        for member, share in _balanced(members, pool, held).items():
            shares[member] |= share
    return {member: _by_topic(share) for member, share in shares.items()}


def _pools(subscriptions: Mapping[str, frozenset[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield members and topic ids that are balanced together, both sorted."""
    topic_ids = sorted(frozenset().union(*subscriptions.values()))
    if len(set(subscriptions.values())) == 1:
        yield sorted(subscriptions), topic_ids
        return
    for topic_id in topic_ids:
        yield sorted(member for member, subscribed in subscriptions.items() if topic_id in subscribed), [topic_id]


def _balanced(
    members: Sequence[str], pool: Sequence[_Partition], held: Mapping[str, Assignment]
) -> dict[str, set[_Partition]]:
    """Share the partitions of one pool among its members."""
    if not pool:
        return {}
    in_pool = set(pool)
    had = {member: sorted(in_pool.intersection(_pairs(held.get(member, {})))) for member in members}
    by_most = sorted(members, key=lambda member: (-len(had[member]), member))
    sharing = -(-len(members) // len(pool))  # rounded up: a partition has as many members
    least, larger = divmod(sharing * len(pool), len(members))
    quotas = {member: least + (place < larger) for place, member in enumerate(by_most)}
    kept = _kept(had, quotas, sharing)
    _fill(kept, pool, quotas, sharing)
    return kept


def _kept(
    had: Mapping[str, Sequence[_Partition]], quotas: Mapping[str, int], sharing: int
) -> dict[str, set[_Partition]]:
    """Return what members keep of what they had: no more than their quota, and no partition more often than wanted."""
    kept: dict[str, set[_Partition]] = {member: set() for member in had}
    sharers: Counter[_Partition] = Counter()
    for member, partitions in had.items():
        for partition in partitions:
            if len(kept[member]) < quotas[member] and sharers[partition] < sharing:
                kept[member].add(partition)
                sharers[partition] += 1
    return kept


def _fill(
    kept: dict[str, set[_Partition]], pool: Sequence[_Partition], quotas: Mapping[str, int], sharing: int
) -> None:
    """Give partitions that lack members to members below their quota, in turn.

    As many places are open as are wanted. A partition may still find that all open members have it already; then it
    has one member less, as in Kafka. One without any member takes the first.
    """
    sharers = Counter(partition for share in kept.values() for partition in share)
    unfilled = deque(member for member, share in kept.items() if len(share) < quotas[member])
    for partition in pool:
        for _ in range(sharing - sharers[partition]):
            member = next((member for member in unfilled if partition not in kept[member]), None)
            if member is None:
                break
            kept[member].add(partition)
            unfilled.remove(member)
            if len(kept[member]) < quotas[member]:
                unfilled.append(member)


def _pairs(assignment: Assignment) -> Iterator[_Partition]:
    for topic_id, numbers in assignment.items():
        for number in numbers:
            yield _Partition(topic_id, number)


def _by_topic(share: set[_Partition]) -> Assignment:
    by_topic = groupby(sorted(share), key=lambda partition: partition.topic_id)
    return {topic_id: tuple(number for _, number in partitions) for topic_id, partitions in by_topic}
