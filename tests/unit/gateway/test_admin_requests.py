"""Requests of administrators' tools: what they read, and what they may change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType

from share_spark import Message, ShareGroupAdmin
from share_spark.gateway import apis
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.gateway import Gateway
from share_spark.gateway.group_topics import FixedTopics, GroupTopics
from share_spark.gateway.served_groups import OneGroup, ServedGroup
from share_spark.gateway.stored_groups import StoredGroups
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.kafka.broker_connection import Address
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.topics.topic_batches import TopicBatchReader
from tests.support.asking import asking
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, polled, work_off

ACCEPT = AcknowledgeType.ACCEPT

NON_EMPTY, NOT_FOUND, INVALID_CONFIG, INVALID_REQUEST, STORAGE = 68, 69, 40, 42, 56

TIMES = ((0, -1), (0, -2), (0, 1_577_836_800_000), (0, 1_577_836_800_001), (1, -1), (1, 4_000_000_000_000))
"""Partitions and timestamps; -1 and -2 are the latest and the earliest offset."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A topic of two partitions with ten records each."""
    place = Place.below(tmp_path, partitions=2)
    place.produce(1, 20)
    return place


def consumed(address: Address, records: int = 20) -> None:
    with consumer(address) as found:
        work_off(found, records, lambda _: ACCEPT)


def test_a_group_from_its_first_member_to_its_end(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        assert (tools.listed(), tools.state()) == ({}, "")
        with consumer(address) as found:
            polled(found)
            assert tools.listed() == {GROUP: "Stable"}
            assert tools.listed(states_filter=("empty",)) == tools.listed(types_filter=("classic",)) == {}
            group = tools.described()
            (member,) = group.members
            assert (member.client_id, member.client_host) == ("rdkafka", "/127.0.0.1")
            (assigned,) = member.assignment.topic_partitions
            assert (assigned.topic_name, assigned.partitions) == (TOPIC, (0, 1))
        assert tools.listed(states_filter=("empty",), types_filter=("SHARE",)) == {GROUP: "Empty"}
        consumed(address)
        assert tools.offsets() == {(TOPIC, 0): (10, 0), (TOPIC, 1): (10, 0)}
        assert tools.delete() == 0
        assert (tools.listed(), tools.state(), tools.delete()) == ({}, "", NOT_FOUND)
        consumed(address)
        assert tools.listed() == {GROUP: "Empty"}


def test_what_a_client_may_do_with_a_group_is_told_if_it_asks(place: Place) -> None:
    unknown = -(2**31)
    with place.gateway() as address, asking(address) as tools:
        consumed(address)
        assert tools.described().authorized_operations == unknown
        assert tools.described(with_operations=True).authorized_operations == 3_400
        assert tools.described("nobody", with_operations=True).authorized_operations == unknown


def test_a_gateway_that_starts_again_knows_the_groups_in_the_tables(place: Place) -> None:
    with place.gateway() as address:
        consumed(address)
    with place.gateway() as address, asking(address) as tools:
        assert tools.listed() == {GROUP: "Empty"}
        assert tools.offsets() == {(TOPIC, 0): (10, 0), (TOPIC, 1): (10, 0)}
        assert tools.alter((TOPIC, 1, 4)).error_code == 0
        assert tools.offsets() == {(TOPIC, 0): (10, 0), (TOPIC, 1): (4, 6)}
        consumed(address, 6)


def test_offsets_are_altered_between_two_engines(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        consumed(address)
        answer = tools.alter((TOPIC, 0, 3), (TOPIC, 7, 0), ("no-such", 0, 0), (TOPIC, 1, 4_711))
        assert answer.error_code == 0
        assert [one.partitions[0].error_code for one in answer.responses] == [0, 3, 3, 0]
        assert tools.offsets() == {(TOPIC, 0): (3, 7), (TOPIC, 1): (10, 0)}, "never past the end"
        assert not [one for one in ShareGroupAdmin(place.state).list_groups() if one.engine and one.engine.is_running]
        with consumer(address) as found:
            messages = polled(found)
            assert [(one.partition(), one.offset()) for one in messages] == [(0, at) for at in range(3, 10)]
            assert {one.delivery_count() for one in messages} == {1}


def test_a_group_and_its_offsets_may_be_new(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        assert tools.alter((TOPIC, 0, 8), group_id="new").error_code == 0
        assert tools.listed() == {"new": "Empty"}
        assert tools.offsets("new") == {(TOPIC, 0): (8, 2)}


def test_offsets_are_deleted_by_topic_and_the_group_stays(place: Place) -> None:
    place.log.create_topic("other", 1)
    with place.gateway() as address, asking(address) as tools:
        consumed(address)
        answer = tools.delete_offsets(TOPIC, "other", "no-such")
        assert [(one.error_code, one.error_message) for one in answer.responses] == [
            (0, None),
            (3, "There is no offset information to delete."),
            (3, "This server does not host this topic-partition."),
        ]
        assert (tools.offsets(), tools.listed()) == ({}, {GROUP: "Empty"})
        consumed(address)
    with place.gateway() as address, asking(address) as tools:
        assert tools.delete_offsets(TOPIC).error_code == 0
        assert tools.listed() == {GROUP: "Empty"}, "also after a start"
        assert tools.delete_offsets(TOPIC, group_id="nobody").error_code == NOT_FOUND


def test_a_group_with_members_is_not_changed(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools, consumer(address) as found:
        messages = polled(found)
        before = tools.offsets()
        refused = [tools.alter((TOPIC, 0, 3)), tools.delete_offsets(TOPIC)]
        assert {(one.error_code, one.error_message) for one in refused} == {(NON_EMPTY, "The group is not empty.")}
        assert tools.delete() == NON_EMPTY
        assert tools.offsets() == before
        for message in messages:
            found.acknowledge(message, ACCEPT)
        assert not [fault for fault in found.commit_sync().values() if fault is not None]


def test_a_group_that_another_engine_runs_is_not_changed(place: Place) -> None:
    with (
        place.gateway() as first,
        place.gateway(node_id=None) as second,
        asking(second) as tools,
        consumer(first) as found,
    ):
        polled(found)
        assert tools.listed() == {GROUP: "Stable"}
        assert (tools.alter((TOPIC, 0, 3)).error_code, tools.delete()) == (NON_EMPTY, NON_EMPTY)


def test_a_group_in_a_query_refuses_changes(place: Place) -> None:
    with place.gateway() as address:
        consumed(address)
    log, catalog = place.log, TopicCatalog(place.log)
    topics, reader = GroupTopics(FixedTopics((TOPIC,)), catalog), TopicBatchReader(log)
    group = ServedGroup.of(GROUP, ClientQueue(), topics, reader, clock=wall_clock_ms)
    served = OneGroup(group_id=GROUP, group=group, stored=StoredGroups(place.state))
    gateway = Gateway.open(Address("127.0.0.1", 0), served, catalog)
    try:
        with asking(gateway.address) as tools:
            assert tools.listed() == {GROUP: "Empty"}
            answer = tools.alter((TOPIC, 0, 3))
            assert (answer.error_code, "run by a Spark query" in answer.error_message) == (NON_EMPTY, True)
            assert (tools.delete(), tools.delete("other")) == (NON_EMPTY, NOT_FOUND)
            assert tools.offsets() == {(TOPIC, 0): (10, 0), (TOPIC, 1): (10, 0)}
    finally:
        gateway.close()


def test_topics_that_are_deleted_vanish(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        consumed(address)
        place.log.delete_topic(TOPIC)
        assert (tools.offsets(), tools.listed()) == ({}, {GROUP: "Empty"})
        place.log.create_topic(TOPIC, 1)
        assert tools.offsets() == {}, "it is another topic"


def test_configs_of_groups(place: Place) -> None:
    with place.gateway() as address, asking(address) as tools:
        assert tools.alter_configs(share_auto_offset_reset="latest", share_delivery_count_limit="7") == (0, None)
        with consumer(address) as found:
            assert polled(found, seconds=1) == [], "the config was there before the group"
            place.log.append(TOPIC, [Message(b"new")])
            assert [one.value() for one in polled(found)] == [b"new"]
        code, text = tools.alter_configs(share_delivery_count_limit="1")
        assert (code, text) == (INVALID_CONFIG, "share.delivery.count.limit: 1 is outside 2..25")
        code, text = tools.alter_configs(share_no_such="1", share_delivery_count_limit="9")
        assert (code, text) == (INVALID_CONFIG, "Unknown group config name: share.no.such")
        assert tools.alter_configs(kind=2, share_delivery_count_limit="9")[0] == INVALID_REQUEST
        assert tools.alter_configs(share_auto_offset_reset=None) == (0, None)
        asked = {"resource_type": 32, "resource_name": GROUP, "configuration_keys": None}
        (result,) = tools.ask(
            apis.DESCRIBE_CONFIGS, resources=[asked], include_synonyms=True, include_documentation=False
        ).results
        limits = [one for one in result.configs if one.config_source == 8]
        assert [(one.name, one.value, [each.value for each in one.synonyms]) for one in limits] == [
            ("share.delivery.count.limit", "7", ["7", "5"])
        ]


def test_a_state_that_cannot_be_read_is_said(place: Place) -> None:
    with place.gateway() as address:
        consumed(address)
    for commit in Path(place.state, "share_state_log", "_delta_log").glob("*.json"):
        commit.write_text("no commit")
    with place.gateway() as address, asking(address) as tools:
        assert tools.ask(apis.LIST_GROUPS, states_filter=(), types_filter=()).error_code == STORAGE
        group = tools.described()
        assert (group.error_code, "cannot be read" in group.error_message) == (STORAGE, True)
        assert (tools.delete(), tools.alter((TOPIC, 0, 3)).error_code) == (STORAGE, STORAGE)


def test_offsets_at_a_time_are_found_without_spark(tmp_path: Path) -> None:
    place = Place.below(tmp_path, partitions=2)
    place.log.append(TOPIC, [Message(b"old", partition=0, timestamp=datetime(2020, 1, 1, tzinfo=UTC))] * 3)
    place.produce(1, 20)
    with place.gateway(share__auto__offset__reset="by_duration:PT1H") as address, asking(address) as tools:
        asked = [{"partition_index": at, "current_leader_epoch": -1, "timestamp": time} for at, time in TIMES]
        topics = [{"name": TOPIC, "partitions": asked}, {"name": "no-such", "partitions": asked[:1]}]
        answer = tools.ask(apis.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics, timeout=timedelta())
        assert [one.offset for one in answer.topics[0].partitions] == [13, 0, 0, 3, 10, -1]
        assert [one.error_code for one in answer.topics[1].partitions] == [3]
        consumed(address)
        assert tools.offsets() == {(TOPIC, 0): (13, 0), (TOPIC, 1): (10, 0)}, "the first three were not wanted"
