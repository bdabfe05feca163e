"""The assignor on random groups: everything has a member, shares are even, and it settles (R123)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.coordinator.group.assignor import assign
from share_spark.coordinator.group.records import Assignment
from tests.support.balance import check_balance, pairs
from tests.support.examples import examples

TOPICS = ("idA", "idB", "idC")
MEMBERS = [f"m{number}" for number in range(9)]

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
subscription = st.frozensets(st.sampled_from(TOPICS))
held_before = st.dictionaries(
    st.sampled_from(MEMBERS),
    st.dictionaries(st.sampled_from(TOPICS), st.sets(st.integers(0, 8), max_size=6).map(lambda p: tuple(sorted(p)))),
)


@settings(max_examples=examples(500), deadline=None)
@given(
    subscriptions=st.dictionaries(st.sampled_from(MEMBERS), subscription)
    | st.tuples(st.sets(st.sampled_from(MEMBERS)), subscription).map(lambda given: dict.fromkeys(*given)),
    counts=partition_counts,
    held=held_before,
)
def test_every_partition_has_members_and_shares_are_even(
    subscriptions: dict[str, frozenset[str]], counts: dict[str, int], held: dict[str, Assignment]
) -> None:
    partitions = {topic_id: range(many) for topic_id, many in counts.items()}
    found = assign(subscriptions, partitions, held)
    check_balance(subscriptions, counts, found)
    again = assign(subscriptions, partitions, found)
    check_balance(subscriptions, counts, again)
    shared = any(count > 1 for count in Counter(pair for a in found.values() for pair in pairs(a)).values())
    assert shared or again == found  # nothing moves without need


@settings(max_examples=examples(300), deadline=None)
@given(members=st.integers(1, 8), partitions=st.integers(9, 40), leaves=st.booleans(), who=st.integers(0, 7))
def test_a_member_that_comes_or_goes_moves_only_its_own_share(
    members: int, partitions: int, leaves: bool, who: int
) -> None:
    topics = frozenset({"idA"})
    before = assign(dict.fromkeys(MEMBERS[1 : members + 1], topics), {"idA": range(partitions)}, {})
    changed = set(before) - {MEMBERS[1 + who % members]} if leaves else {*before, MEMBERS[0]}
    after = assign(dict.fromkeys(changed, topics), {"idA": range(partitions)}, before)
    lost = sum(len(pairs(before[member]) - pairs(after[member])) for member in changed & set(before))
    assert lost == (0 if leaves else len(pairs(after[MEMBERS[0]])))
