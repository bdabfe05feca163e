"""Groups as administrators see and change them (R110, R125-R142, R145)."""

from __future__ import annotations

import pytest

from share_spark.coordinator.group import (
    GroupState,
    GroupType,
    NewOffset,
    alter_offsets,
    begin_deletion,
    delete_group,
    described,
    end_deletion,
    listed,
    matches,
    not_empty,
    refusal_of_offsets,
    refusal_to_join,
    share_partitions,
    topics_to_delete,
)
from share_spark.coordinator.group.records import TopicState
from share_spark.coordinator.group.views import AssignedTopic
from share_spark.model.ids import SharePartitionKey
from tests.support.share_group import GROUP_ID, GroupInMemory


def emptied(**topics: int) -> GroupInMemory:
    """A group whose only member has left."""
    group = GroupInMemory(**topics)
    group("m1", 0, *topics)
    group("m1", -1)
    return group


def keys(topic: str, *partitions: int) -> tuple[SharePartitionKey, ...]:
    return tuple(SharePartitionKey(GROUP_ID, f"id of {topic}", partition) for partition in partitions)


# ------------------------------------------------------------------------------------------------- changes


def test_changes_need_a_group_without_members() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    assert [fault and fault.code.name for fault in (not_empty(GROUP_ID, None), not_empty(GROUP_ID, group.group))] == [
        "GROUP_ID_NOT_FOUND",
        "NON_EMPTY_GROUP",
    ]
    group("m1", -1)
    assert not_empty(GROUP_ID, group.group) is None


def test_r134_new_offsets_begin_share_partitions_anew_with_the_next_epoch() -> None:
    group = emptied(orders=2)
    offsets = [NewOffset("orders", "id of orders", 1, 70), NewOffset("audit", "id of audit", 0, 5)]
    decision = alter_offsets(GROUP_ID, group.group, offsets)
    group.commit(decision.records)
    assert [(e.topic_id, e.partition, e.state_epoch, e.start_offset) for e in decision.initialize] == [
        ("id of orders", 1, 3, 70),
        ("id of audit", 0, 3, 5),
    ]
    assert group.group is not None
    assert group.group.epoch == 3
    assert group.group.topics.initialized == {
        "id of orders": TopicState("orders", (0, 1)),
        "id of audit": TopicState("audit", (0,)),
    }


def test_r134_offsets_may_be_set_before_the_first_member() -> None:
    group = GroupInMemory(orders=2)
    group.commit(alter_offsets(GROUP_ID, None, [NewOffset("orders", "id of orders", 1, 70)]).records)
    assert group.group is not None
    assert (group.group.epoch, group.group.state) == (1, GroupState.EMPTY)
    assert group("m1", 0, "orders").assignment == {"id of orders": (0, 1)}
    assert group.last is not None
    assert [entry.partition for entry in group.last.initialize] == [0]


def test_r133_a_topic_whose_state_is_being_deleted_gets_no_new_offsets_until_that_has_ended() -> None:
    group = emptied(orders=2)
    assert group.group is not None
    group.commit(begin_deletion(group.group, ["id of orders"]).records)
    offset = NewOffset("orders", "id of orders", 1, 70)
    decision = alter_offsets(GROUP_ID, group.group, [offset])
    assert (decision.initialize, decision.refused) == ((), (offset,))
    group.commit(end_deletion(group.group, ["id of orders"]).records)
    decision = alter_offsets(GROUP_ID, group.group, [offset])
    assert (len(decision.initialize), decision.refused) == (1, ())


def test_r131_a_deletion_in_one_commit_has_no_phases() -> None:
    group = emptied(orders=2, audit=1)
    assert group.group is not None
    decision = end_deletion(group.group, ["id of orders", "unknown"])
    group.commit(decision.records)
    assert decision.delete == keys("orders", 0, 1)
    assert set(group.group.topics.initialized) == {"id of audit"}
    assert end_deletion(group.group, ["id of orders"]) == ((), ())


def test_r132_a_deletion_that_was_begun_is_found_and_ended() -> None:
    group = emptied(orders=2, audit=1)
    assert group.group is not None
    begun = begin_deletion(group.group, ["id of orders"])
    group.commit(begun.records)
    assert begun.delete == keys("orders", 0, 1)
    assert begin_deletion(group.group, ["id of orders"]) == ((), ())
    assert topics_to_delete(group.group, {"id of orders", "id of audit"}) == ("id of orders",)
    ended = end_deletion(group.group, topics_to_delete(group.group, {"id of orders", "id of audit"}))
    group.commit(ended.records)
    assert ended.delete == keys("orders", 0, 1)
    assert group.group.topics.deleting == {}


def test_r130_topics_that_are_gone_have_to_lose_their_state() -> None:
    group = emptied(orders=2, audit=1)
    assert group.group is not None
    assert topics_to_delete(group.group, {"id of audit"}) == ("id of orders",)


def test_r136_a_deleted_group_is_gone_with_all_it_had() -> None:
    group = emptied(orders=2)
    assert group.group is not None
    decision = delete_group(group.group)
    group.commit(decision.records)
    assert [record.key.kind.value for record in decision.records] == [12, 15, 11]
    assert decision.delete == keys("orders", 0, 1)
    assert group.group is None
    assert group("m1", 0, "orders").member_epoch == 1


# --------------------------------------------------------------------------------------------------- views


def test_r137_share_partitions_with_state_stay_when_their_topic_is_not_subscribed_any_more() -> None:
    group = emptied(orders=2)
    assert group.group is not None
    assert share_partitions(group.group) == keys("orders", 0, 1)
    group.commit(begin_deletion(group.group, ["id of orders"]).records)
    assert share_partitions(group.group) == ()


def test_r145_a_description_has_members_with_named_topics() -> None:
    group = GroupInMemory(orders=2)
    group("m2", 0, "orders", "audit", rack_id="r1")
    found = described(GROUP_ID, group.group, group.topics)
    assert (found.state, found.group_epoch, found.assignment_epoch, found.assignor_name) == ("Stable", 1, 1, "simple")
    (member,) = found.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("m2", "r1", 1)
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    assert member.subscribed_topic_names == ("audit", "orders")
    assert member.assignment == (AssignedTopic("id of orders", "orders", (0, 1)),)
    (later,) = described(GROUP_ID, group.group, {}).members
    assert later.assignment == ()


@pytest.mark.parametrize(("group_id", "error"), [("", "INVALID_GROUP_ID"), ("G7", "GROUP_ID_NOT_FOUND")])
def test_r145_what_is_not_there_is_dead(group_id: str, error: str) -> None:
    found = described(group_id, None, {})
    assert (found.error.name, found.state, found.members) == (error, "Dead", ())


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        ((), (), True),
        (("stable",), (), True),
        (("Empty",), (), False),
        ((), ("Share", "consumer"), True),
        ((), ("classic",), False),
        (("STABLE",), ("nonsense",), False),
    ],
)
def test_r142_filters_of_a_list_compare_without_case(
    states: tuple[str, ...], types: tuple[str, ...], expected: bool
) -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    assert group.group is not None
    entry = listed(group.group)
    assert entry == (GROUP_ID, "share", "Stable", "share")
    assert matches(entry, states, types) is expected


# --------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("owner", "asked", "expected"),
    [
        (None, GroupType.SHARE, None),
        (GroupType.SHARE, GroupType.SHARE, None),
        (GroupType.CONSUMER, GroupType.SHARE, "GROUP_ID_NOT_FOUND"),
        (GroupType.SHARE, GroupType.CONSUMER, "INCONSISTENT_GROUP_PROTOCOL"),
        (GroupType.SHARE, GroupType.CLASSIC, "INCONSISTENT_GROUP_PROTOCOL"),
    ],
)
def test_r110_r140_an_id_belongs_to_one_type(owner: GroupType | None, asked: GroupType, expected: str | None) -> None:
    fault = refusal_to_join("G1", owner, asked)
    assert (fault and fault.code.name) == expected


def test_r141_a_share_group_has_no_committed_offsets() -> None:
    assert refusal_of_offsets("G1").code.name == "GROUP_ID_NOT_FOUND"
