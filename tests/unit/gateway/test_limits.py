"""Limits of members, sessions and groups, and the bounds of what a group may be given, as clients meet them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaException
from kio.schema.errors import ErrorCode

from share_spark.kafka.broker_connection import Address
from tests.support.asking import Asking, asking
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, polled, work_off
from tests.unit.gateway.test_admin_requests import INVALID_CONFIG
from tests.unit.gateway.test_server import wait_for

ACCEPT = AcknowledgeType.ACCEPT


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.below(tmp_path, partitions=1)
    place.produce(1, 10)
    return place


def beat(tools: Asking, member: str, group: str = GROUP, epoch: int = 0) -> Any:
    return tools.heartbeat(group, member, TOPIC, epoch=epoch)


def fetch(tools: Asking, member: str, group: str = GROUP) -> Any:
    """The answer to a fetch that opens a session, of the topic that the member was assigned."""
    (assigned,) = beat(tools, member).assignment.topic_partitions
    return tools.share_fetch(group, member, assigned.topic_id, max_wait_ms=200)


def told(address: Address, group: str = GROUP) -> str:
    """What a share consumer of this group is told, instead of records."""
    texts: list[str] = []

    def is_told() -> bool:
        try:
            messages = found.poll(timeout=0.5)
        except KafkaException as fault:
            texts.append(str(fault))
        else:
            texts.extend(str(message.error()) for message in messages)
        return bool(texts)

    with consumer(address, group=group) as found:
        wait_for(is_told)
    return texts[0]


def test_clients_are_told_the_settings_that_their_group_has_now(place: Place) -> None:
    with place.gateway(share__heartbeat__interval__ms=7_000) as address, asking(address) as tools:
        assert beat(tools, "one").heartbeat_interval == timedelta(seconds=7)
        altered = tools.alter_configs(share_heartbeat_interval_ms="9000", share_record_lock_duration_ms="40000")
        assert altered == (0, None)
        wait_for(lambda: beat(tools, "one").heartbeat_interval == timedelta(seconds=9))
        assert fetch(tools, "one").acquisition_lock_timeout == timedelta(seconds=40)


def test_a_member_that_is_silent_for_the_timeout_of_its_group_is_removed(place: Place) -> None:
    settings = {"share__session__timeout__ms": 1_000, "share__heartbeat__interval__ms": 300}
    with place.gateway(**settings) as address, asking(address) as tools:
        assert beat(tools, "silent").error_code is ErrorCode.none
        assert [member.member_id for member in tools.described().members] == ["silent"]
        wait_for(lambda: not tools.described().members)


def test_a_group_is_given_nothing_out_of_the_bounds_of_the_gateway(place: Place) -> None:
    bounds = {
        "group__share__min__session__timeout__ms": 30_000,
        "group__share__max__record__lock__duration__ms": 60_000,
        "group__share__max__heartbeat__interval__ms": 10_000,
    }
    with place.gateway(**bounds) as address, asking(address) as tools:
        for refused, bound in (
            ({"share_session_timeout_ms": "29999"}, "group.share.min.session.timeout.ms"),
            ({"share_record_lock_duration_ms": "60001"}, "group.share.max.record.lock.duration.ms"),
            ({"share_heartbeat_interval_ms": "10001"}, "group.share.max.heartbeat.interval.ms"),
            ({"share_heartbeat_interval_ms": "99"}, "share.heartbeat.interval.ms"),
        ):
            code, text = tools.alter_configs(**refused)
            assert (code, bound in (text or "")) == (INVALID_CONFIG, True), text
        fits = {"share_session_timeout_ms": "30000", "share_record_lock_duration_ms": "60000"}
        assert tools.alter_configs(**fits) == (0, None)
        code, text = tools.alter_configs(group_share_max_size="1000")
        assert (code, "it belongs to the gateway" in (text or "")) == (INVALID_CONFIG, True), text


def test_a_full_group_takes_no_other_member_until_one_leaves(place: Place) -> None:
    with place.gateway(group__share__max__size=1) as address:
        with consumer(address) as found:
            assert polled(found)
            assert "maximum" in told(address)
        with consumer(address) as found:
            work_off(found, 10, lambda _: ACCEPT)


def test_one_more_group_than_the_gateway_takes_is_refused(place: Place) -> None:
    with place.gateway(group__share__max__groups=1) as address, asking(address) as tools:
        with consumer(address) as found:
            work_off(found, 10, lambda _: ACCEPT)
        assert "maximum" in told(address, "other")
        assert fetch(tools, "one", "other").error_code is ErrorCode.group_max_size_reached
        assert beat(tools, "one", epoch=-1).error_code is ErrorCode.none
        assert tools.delete() == 0
        assert beat(tools, "one", "other").error_code is ErrorCode.none


def test_one_more_session_than_the_gateway_takes_is_refused_after_its_wait(place: Place) -> None:
    with place.gateway(group__share__max__share__sessions=1) as address:
        with asking(address) as first, asking(address) as second:
            assert fetch(first, "one").error_code is ErrorCode.none
            assert fetch(second, "two").error_code is ErrorCode.share_session_limit_reached
            assert fetch(first, "one").error_code is ErrorCode.none
        with asking(address) as third:
            wait_for(lambda: fetch(third, "three").error_code is ErrorCode.none)
