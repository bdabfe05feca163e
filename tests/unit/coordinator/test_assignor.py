"""The assignor: Kafka's examples, its bounds, and what it moves (R123)."""

from __future__ import annotations

import pytest

from share_spark.coordinator.group.assignor import assign
from share_spark.coordinator.group.records import Assignment

A, B = "idA", "idB"


def members(*names: str, topics: frozenset[str]) -> dict[str, frozenset[str]]:
    return dict.fromkeys(names, topics)


def test_more_partitions_than_members_have_one_member_each() -> None:
    found = assign(members("m1", "m2", "m3", topics=frozenset({A})), {A: range(8)}, {})
    assert found == {"m1": {A: (0, 3, 6)}, "m2": {A: (1, 4, 7)}, "m3": {A: (2, 5)}}


def test_more_members_than_partitions_share_them() -> None:
    found = assign(members(*"vwxyz", topics=frozenset({A})), {A: range(2)}, {})
    assert found == {"v": {A: (0, 1)}, "w": {A: (0,)}, "x": {A: (0,)}, "y": {A: (1,)}, "z": {A: (1,)}}


def test_topics_of_one_subscription_are_balanced_together() -> None:
    found = assign(members("m1", "m2", topics=frozenset({A, B})), {A: range(1), B: range(3)}, {})
    assert found == {"m1": {A: (0,), B: (1,)}, "m2": {B: (0, 2)}}


def test_topics_of_different_subscriptions_are_balanced_one_by_one() -> None:
    subscriptions = {"m1": frozenset({A}), "m2": frozenset({B}), "m3": frozenset({A, B})}
    found = assign(subscriptions, {A: range(4), B: range(2)}, {})
    assert found == {"m1": {A: (0, 2)}, "m2": {B: (0,)}, "m3": {A: (1, 3), B: (1,)}}


@pytest.mark.parametrize("topics", [frozenset(), frozenset({A})])
def test_without_partitions_there_is_nothing_to_have(topics: frozenset[str]) -> None:
    assert assign(members("m1", "m2", topics=topics), {}, {"m1": {A: (0,)}}) == {"m1": {}, "m2": {}}


def test_without_members_there_is_nobody() -> None:
    assert assign({}, {A: range(2)}, {}) == {}


def test_a_member_that_joins_takes_only_what_it_gets() -> None:
    held: dict[str, Assignment] = {"m1": {A: (0, 1, 2)}, "m2": {A: (3, 4, 5)}}
    found = assign(members("m1", "m2", "m0", topics=frozenset({A})), {A: range(6)}, held)
    assert found == {"m0": {A: (2, 5)}, "m1": {A: (0, 1)}, "m2": {A: (3, 4)}}


def test_partitions_of_a_member_that_left_go_to_the_others_which_keep_theirs() -> None:
    held: dict[str, Assignment] = {"m1": {A: (0, 1)}, "m3": {A: (4, 5)}}
    found = assign(members("m1", "m3", topics=frozenset({A})), {A: range(6)}, held)
    assert found == {"m1": {A: (0, 1, 2)}, "m3": {A: (3, 4, 5)}}


def test_the_larger_share_stays_with_who_has_it() -> None:
    held: dict[str, Assignment] = {"m1": {A: (0,)}, "m2": {A: (1, 2)}}
    assert assign(members("m1", "m2", topics=frozenset({A})), {A: range(3)}, held) == held


def test_a_partition_that_is_shared_more_than_wanted_loses_members() -> None:
    held: dict[str, Assignment] = {"m1": {A: (0,)}, "m2": {A: (0,)}, "m3": {A: (0,)}}
    found = assign(members("m1", "m2", "m3", topics=frozenset({A})), {A: range(3)}, held)
    assert found == {"m1": {A: (0,)}, "m2": {A: (1,)}, "m3": {A: (2,)}}


def test_what_is_not_subscribed_or_not_there_any_more_is_not_kept() -> None:
    held: dict[str, Assignment] = {"m1": {A: (0, 7), B: (0,)}}
    assert assign(members("m1", topics=frozenset({A})), {A: range(2), B: range(1)}, held) == {"m1": {A: (0, 1)}}
