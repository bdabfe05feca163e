"""Heartbeats of a share group's members, rule by rule (R105-R117, R119-R129, R133)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from share_spark.coordinator.group import (
    GroupLimits,
    GroupState,
    TopicMetadata,
    begin_deletion,
    delete_group,
    end_deletion,
    expired,
    heartbeats,
    latest,
    remove_members,
    replay,
)
from share_spark.coordinator.group.records import TopicState
from tests.support.share_group import GROUP_ID, GroupInMemory, request


def kinds(group: GroupInMemory) -> list[int]:
    assert group.last is not None
    return [int(record.key.kind) for record in group.last.records]


# ------------------------------------------------------------------------------------------- join and leave


def test_r105_r107_the_first_heartbeat_makes_the_group_and_is_answered_with_the_assignment() -> None:
    group = GroupInMemory(orders=2, audit=1)
    response = group("m1", 0, "orders", "audit", "missing")
    assert response.error.name == "NONE"
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("m1", 1, 5_000)
    assert response.assignment == {"id of orders": (0, 1), "id of audit": (0,)}
    assert kinds(group) == [10, 11, 15, 13, 12, 14]
    assert group.last is not None
    assert [
        (entry.topic_id, entry.partition, entry.state_epoch, entry.start_offset) for entry in group.last.initialize
    ] == [
        ("id of audit", 0, 1, -1),
        ("id of orders", 0, 1, -1),
        ("id of orders", 1, 1, -1),
    ]


def test_a_heartbeat_that_changes_nothing_has_no_records_and_no_assignment() -> None:
    group = GroupInMemory(orders=2)
    group("m1", 0, "orders")
    response = group("m1", 1)
    assert (kinds(group), response.member_epoch, response.assignment) == ([], 1, None)


def test_r108_the_assignment_is_told_again_to_who_sends_all_fields() -> None:
    group = GroupInMemory(orders=2)
    group("m1", 0, "orders")
    assert group("m1", 1, "orders").assignment == {"id of orders": (0, 1)}
    assert kinds(group) == []


def test_r108_what_is_not_given_stays_as_it_was() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders", rack_id="r1")
    group("m1", 1, client_host="/10.0.0.1")
    assert kinds(group) == [10]
    assert group.group is not None
    member = group.group.members["m1"]
    assert (member.rack_id, member.client_host, member.subscribed_topic_names) == ("r1", "/10.0.0.1", ("orders",))


def test_r114_a_known_member_that_joins_again_keeps_its_epoch_and_is_told_its_assignment() -> None:
    group = GroupInMemory(orders=2)
    group("m1", 0, "orders")
    response = group("m1", 0, "orders")
    assert (response.member_epoch, response.assignment, kinds(group)) == (1, {"id of orders": (0, 1)}, [])


def test_r115_a_member_that_leaves_is_forgotten_and_the_others_get_its_partitions() -> None:
    group = GroupInMemory(orders=4)
    group.join("m1", "m2", names=("orders",))
    assert sorted(group.held("m1")["orders"] + group.held("m2")["orders"]) == [0, 1, 2, 3]
    response = group("m1", -1)
    assert (response.member_epoch, response.assignment, response.error.name) == (-1, None, "NONE")
    assert kinds(group) == [14, 13, 10, 11, 13, 12]
    assert group("m2", 2).assignment == {"id of orders": (0, 1, 2, 3)}
    assert group.group is not None
    assert set(group.group.members) == set(group.group.targets) == set(group.group.assignments) == {"m2"}


def test_r125_a_group_is_stable_with_members_and_empty_without() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    assert group.group is not None
    assert group.group.state is GroupState.STABLE
    group("m1", -1)
    assert group.group.state is GroupState.EMPTY
    assert group("m2", 0, "orders").member_epoch == 3


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"member_id": ""}, "MemberId"),
        ({"rack_id": ""}, "RackId"),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames"),
        ({"subscribed_topic_names": ()}, "SubscribedTopicNames"),
        ({"member_epoch": -2}, "MemberEpoch"),
    ],
)
def test_r106_malformed_requests_change_nothing(changes: dict[str, object], text: str) -> None:
    asked = replace(request("m1", 0, "orders"), **changes)
    decision = heartbeats(GROUP_ID, None, [asked], {}, GroupLimits())
    (response,) = decision.responses
    assert (decision.records, response.error.name) == ((), "INVALID_REQUEST")
    assert text in str(response.error_message)


def test_r106_a_group_has_an_id() -> None:
    (response,) = heartbeats(" ", None, [request("m1", 0, "orders")], {}, GroupLimits()).responses
    assert response.error.name == "INVALID_REQUEST"


@pytest.mark.parametrize("epoch", [5, -1])
def test_r105_without_the_group_only_joining_is_possible(epoch: int) -> None:
    assert GroupInMemory(orders=1)("m1", epoch).error.name == "GROUP_ID_NOT_FOUND"


@pytest.mark.parametrize("epoch", [1, -1])
def test_r105_of_a_known_group_the_member_is_unknown(epoch: int) -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    assert group("m2", epoch).error.name == "UNKNOWN_MEMBER_ID"
    assert kinds(group) == []


def test_r109_a_full_group_takes_no_new_member_but_goes_on_with_those_it_has() -> None:
    group = GroupInMemory(max_size=2, orders=1)
    group.join("m1", "m2", names=("orders",))
    response = group("m3", 0, "orders")
    assert (response.error.name, kinds(group)) == ("GROUP_MAX_SIZE_REACHED", [])
    assert "2 members" in str(response.error_message)
    assert group("m2", 0, "orders").error.name == "NONE"
    assert group("m3", -1).error.name == "UNKNOWN_MEMBER_ID"
    group("m1", -1)
    assert group("m3", 0, "orders").error.name == "NONE"


def test_r114_the_previous_epoch_is_accepted_and_the_lost_assignment_told_again() -> None:
    group = GroupInMemory(orders=4)
    group.join("m1", "m2", names=("orders",))
    assert group.group is not None
    known = group.group.assignments["m1"]
    assert (known.previous_member_epoch, known.member_epoch) == (1, 2)
    response = group("m1", 1)
    assert (response.error.name, response.member_epoch, response.assignment) == ("NONE", 2, known.partitions)
    assert kinds(group) == []


@pytest.mark.parametrize(("epoch", "text"), [(4, "greater member epoch (4)"), (1, "smaller member epoch (1)")])
def test_r114_all_other_epochs_are_fenced(epoch: int, text: str) -> None:
    group = GroupInMemory(orders=4)
    group.join("m1", "m2", names=("orders",))
    group("m3", 0, "orders")
    group("m1", 2)
    response = group("m1", epoch)
    assert (response.error.name, kinds(group)) == ("FENCED_MEMBER_EPOCH", [])
    assert text in str(response.error_message)


# ------------------------------------------------------------------------------------ topics and subscription


def test_r119_another_subscription_raises_the_group_epoch() -> None:
    group = GroupInMemory(orders=2, audit=1)
    group("m1", 0, "orders")
    response = group("m1", 1, "audit")
    assert (response.member_epoch, response.assignment) == (2, {"id of audit": (0,)})
    assert kinds(group) == [10, 11, 15, 13, 12, 14]


def test_the_order_of_topic_names_is_no_change() -> None:
    group = GroupInMemory(orders=2, audit=1)
    group("m1", 0, "orders", "audit", "audit")
    group("m1", 1, "audit", "orders")
    assert kinds(group) == []


def test_r127_new_partitions_show_at_the_next_heartbeat() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    group.topics["orders"] = TopicMetadata("id of orders", 3)
    response = group("m1", 1)
    assert (response.member_epoch, response.assignment) == (2, {"id of orders": (0, 1, 2)})
    assert group.last is not None
    assert [(entry.partition, entry.state_epoch) for entry in group.last.initialize] == [(1, 2), (2, 2)]


def test_r123_a_topic_that_appears_is_assigned_and_one_that_goes_is_not() -> None:
    group = GroupInMemory()
    assert group("m1", 0, "orders").assignment == {}
    group.topics["orders"] = TopicMetadata("id of orders", 1)
    assert group("m1", 1).assignment == {"id of orders": (0,)}
    del group.topics["orders"]
    assert group("m1", 2).assignment == {}
    assert group.group is not None
    assert group.group.topics.initialized == {"id of orders": TopicState("orders", (0,))}


def test_a_topic_that_is_made_anew_is_another_topic() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    group.topics["orders"] = TopicMetadata("id of the second", 1)
    assert group("m1", 1).assignment == {"id of the second": (0,)}


def test_topics_that_nobody_subscribes_to_change_nothing() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    group.topics["audit"] = TopicMetadata("id of audit", 1)
    group("m1", 1)
    assert kinds(group) == []


def test_r113_a_member_moves_to_its_target_in_one_step_at_its_own_heartbeat() -> None:
    group = GroupInMemory(orders=2)
    group("m1", 0, "orders")
    assert group("m2", 0, "orders").assignment == {"id of orders": (1,)}
    assert group.held("m1") == {"orders": (0, 1)}
    response = group("m1", 1)
    assert (response.member_epoch, response.assignment, kinds(group)) == (2, {"id of orders": (0,)}, [14])


def test_an_epoch_that_moves_without_the_partitions_is_told_without_them() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    group("m2", 0, "orders")
    response = group("m1", 1)
    assert (response.member_epoch, response.assignment, kinds(group)) == (2, None, [14])


def test_r133_a_topic_whose_state_is_being_deleted_is_neither_assigned_nor_initialized() -> None:
    group = GroupInMemory(orders=1, audit=1)
    group("m1", 0, "orders", "audit")
    group("m1", -1)
    assert group.group is not None
    group.commit(begin_deletion(group.group, ["id of orders"]).records)
    assert group("m1", 0, "orders", "audit").assignment == {"id of audit": (0,)}
    group.commit(end_deletion(group.group, ["id of orders"]).records)
    response = group("m1", 3)
    assert response.assignment == {"id of orders": (0,), "id of audit": (0,)}
    assert group.last is not None
    assert [(entry.topic_id, entry.state_epoch) for entry in group.last.initialize] == [("id of orders", 4)]


# ------------------------------------------------------------------------------------------ sessions that end


def test_r116_members_that_send_nothing_are_removed_together() -> None:
    group = GroupInMemory(orders=3)
    group.join("m1", "m2", "m3", names=("orders",))
    assert group.group is not None
    seen = {"m1": 10_000, "m2": 60_000}
    assert expired(group.group, seen, started_ms=5_000, now_ms=54_999, limits=group.limits) == ("m3",)
    gone = expired(group.group, seen, started_ms=5_000, now_ms=55_000, limits=group.limits)
    assert gone == ("m1", "m3")
    epoch = group.group.epoch
    group.commit(remove_members(group.group, gone, group.topics).records)
    assert (set(group.group.members), group.group.epoch) == ({"m2"}, epoch + 1)
    assert group("m2", 3).assignment == {"id of orders": (0, 1, 2)}
    assert group("m1", 3).error.name == "UNKNOWN_MEMBER_ID"


def test_r122_timers_begin_anew_with_the_engine() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    assert group.group is not None
    assert expired(group.group, {"m1": 5}, started_ms=90_000, now_ms=134_999, limits=group.limits) == ()


def test_members_that_are_gone_already_are_no_records() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    assert group.group is not None
    assert remove_members(group.group, ["m7"], group.topics) == ((), (), ())


# -------------------------------------------------------------------------------------------------- batches


def test_requests_of_one_batch_cause_one_target_that_all_of_them_are_told() -> None:
    group = GroupInMemory(orders=4)
    responses = group.batch(request("m1", 0, "orders"), request("m2", 0, "orders"), request("m3", -1))
    assert [(response.error.name, response.member_epoch, response.assignment) for response in responses] == [
        ("NONE", 1, {"id of orders": (0, 2)}),
        ("NONE", 1, {"id of orders": (1, 3)}),
        ("UNKNOWN_MEMBER_ID", 0, None),
    ]
    assert kinds(group) == [10, 10, 11, 15, 13, 13, 12, 14, 14]
    assert group.last is not None
    assert [entry.partition for entry in group.last.initialize] == [0, 1, 2, 3]


def test_a_batch_has_room_for_as_many_as_the_group() -> None:
    group = GroupInMemory(max_size=2, orders=1)
    responses = group.batch(*(request(name, 0, "orders") for name in ("m1", "m2", "m3")))
    assert [response.error.name for response in responses] == ["NONE", "NONE", "GROUP_MAX_SIZE_REACHED"]


def test_who_leaves_makes_room_in_the_same_batch() -> None:
    group = GroupInMemory(max_size=1, orders=2)
    group("m1", 0, "orders")
    responses = group.batch(request("m1", -1), request("m2", 0, "orders"))
    assert [(response.error.name, response.assignment) for response in responses] == [
        ("NONE", None),
        ("NONE", {"id of orders": (0, 1)}),
    ]


def test_a_member_that_sends_its_request_twice_has_two_equal_answers() -> None:
    group = GroupInMemory(orders=2)
    first, second = group.batch(request("m1", 0, "orders"), request("m1", 0, "orders"))
    assert first == second
    assert first.assignment == {"id of orders": (0, 1)}


def test_a_member_has_no_epoch_before_it_is_told_one() -> None:
    responses = GroupInMemory(orders=2).batch(request("m1", 0, "orders"), request("m1", 1))
    assert [response.error.name for response in responses] == ["NONE", "FENCED_MEMBER_EPOCH"]


def test_a_member_that_comes_and_goes_in_one_batch_leaves_nothing() -> None:
    group = GroupInMemory(orders=1)
    responses = group.batch(request("m1", 0, "orders"), request("m1", -1))
    assert [response.error.name for response in responses] == ["UNKNOWN_MEMBER_ID", "NONE"]
    assert group.group is not None
    assert (group.group.members, group.group.targets, group.group.assignments, group.group.epoch) == ({}, {}, {}, 1)


def test_a_member_that_goes_and_comes_in_one_batch_is_a_new_one() -> None:
    group = GroupInMemory(orders=1, audit=1)
    group("m1", 0, "orders", rack_id="r1")
    left, joined = group.batch(request("m1", -1), request("m1", 0, "audit"))
    assert (left.member_epoch, joined.member_epoch, joined.assignment) == (-1, 2, {"id of audit": (0,)})
    assert group.group is not None
    assert group.group.members["m1"].rack_id is None
    assert group.group.assignments["m1"].previous_member_epoch == 0


def test_a_group_that_is_made_and_deleted_in_one_commit_is_not_there() -> None:
    group = GroupInMemory(orders=1)
    group("m1", 0, "orders")
    group("m1", -1)
    assert group.group is not None
    group.commit(delete_group(group.group).records)
    assert replay(latest(group.log)) is None
    group("m1", 0, "orders")
    assert replay(latest(group.log)) == group.group


def test_a_decision_that_is_not_committed_has_changed_nothing() -> None:
    group = GroupInMemory(orders=2)
    group("m1", 0, "orders")
    before = replay(group.log)
    heartbeats(GROUP_ID, group.group, [request("m2", 0, "orders")], group.topics, group.limits)
    assert group.group == before
    assert group.group is not None
    assert group.group.group_id == GROUP_ID
