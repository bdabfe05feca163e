"""The bounds of an assignment, from counts alone (R123)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from share_spark.coordinator.group.records import Assignment


def pairs(assignment: Assignment) -> set[tuple[str, int]]:
    """The partitions of an assignment as (topic id, partition)."""
    return {(topic_id, number) for topic_id, numbers in assignment.items() for number in numbers}


def check_balance(
    subscriptions: Mapping[str, frozenset[str]], counts: Mapping[str, int], found: Mapping[str, Assignment]
) -> None:
    """Check the assignments of all members: of what they subscribe to, everything, and evenly.

    ``subscriptions``: topic ids by member. ``counts``: the number of partitions by topic id.
    """
    assert found.keys() == subscriptions.keys()
    for member, assignment in found.items():
        assert assignment.keys() <= subscriptions[member]
        assert all(numbers and list(numbers) == sorted(set(numbers)) for numbers in assignment.values())
        assert pairs(assignment) <= _all(assignment, counts)
    if len(set(subscriptions.values())) == 1:
        (topic_ids,) = set(subscriptions.values())
        _check_pool(list(subscriptions), _all(topic_ids, counts), found)
        return
    for topic_id in counts:
        subscribers = [member for member, topic_ids in subscriptions.items() if topic_id in topic_ids]
        _check_pool(subscribers, _all([topic_id], counts), found)


def _check_pool(members: list[str], pool: set[tuple[str, int]], found: Mapping[str, Assignment]) -> None:
    if not members or not pool:
        return
    shares = [len(pairs(found[member]) & pool) for member in members]
    sharers = Counter(pair for member in members for pair in pairs(found[member]) & pool)
    assert set(sharers) == pool
    assert min(shares) >= 1
    assert max(shares) - min(shares) <= 1
    assert max(sharers.values()) <= -(-len(members) // len(pool))


def _all(topic_ids: Iterable[str], counts: Mapping[str, int]) -> set[tuple[str, int]]:
    return {(topic_id, number) for topic_id in topic_ids for number in range(counts.get(topic_id, 0))}
