"""What operators set for a group holds for share consumers as it does for handlers: rate, pauses, delays, the audit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from share_spark import ShareGroupAdmin, cli
from share_spark.model.ids import is_client
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, polled, refuse_errors, work_off

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.below(tmp_path, partitions=2)


def accepted_within(found: ShareConsumer, seconds: float) -> int:
    """How many records come in a time, all of which are accepted."""
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        messages = polled(found, 0.5)
        for message in messages:
            found.acknowledge(message, ACCEPT)
        refuse_errors(found.commit_sync())
        count += len(messages)
    return count


def test_consumers_share_the_rate_of_their_group_and_a_change_counts_at_once(place: Place) -> None:
    place.produce(1, 1_000)  # one batch of 500 records in each partition
    with place.gateway(delivery__rate__limit=20) as address, consumer(address) as one, consumer(address) as other:
        began = time.monotonic()
        count = 0
        while count < 60:
            count += accepted_within(one, 0.3) + accepted_within(other, 0.3)
            assert count <= 20 * (time.monotonic() - began + 1.0)
        assert time.monotonic() - began < 15
        ShareGroupAdmin(place.state).alter_configs(GROUP, delete=(), add={"delivery.rate.limit": "0"})
        while count < 1_000:
            count += accepted_within(one, 0.1) + accepted_within(other, 0.1)
        assert time.monotonic() - began < 30


def test_of_a_paused_partition_consumers_get_nothing_and_keep_what_they_have(place: Place) -> None:
    admin = ShareGroupAdmin(place.state)
    place.produce(1, 10)
    with place.gateway() as address, consumer(address) as found:
        held = polled(found)
        while len(held) < 10:
            held += polled(found)
        admin.set_pauses(GROUP, admin.plan_pause(GROUP, {TOPIC: [0]}))
        time.sleep(1.5)  # an engine looks once a second
        place.produce(11, 20)
        for message in held:
            found.acknowledge(message, ACCEPT)
        refuse_errors(found.commit_sync())
        assert {message.partition() for message in came_within(found, 2.0)} == {1}
        admin.set_pauses(GROUP, admin.plan_resume(GROUP))
        assert {message.partition() for message in polled(found)} == {0}


def came_within(found: ShareConsumer, seconds: float) -> list[Message]:
    until, messages = time.monotonic() + seconds, list[Message]()
    while time.monotonic() < until:
        some = polled(found, 0.5)
        for message in some:
            found.acknowledge(message, ACCEPT)
        refuse_errors(found.commit_sync())
        messages += some
    return messages


def test_what_a_consumer_releases_comes_again_after_the_delay_of_the_group(place: Place) -> None:
    place.produce(1, 2)
    backoff = {"share__record__redelivery__backoff__policy": "fixed", "share__record__redelivery__backoff__ms": 2_000}
    with place.gateway(**backoff) as address, consumer(address) as found:
        came: dict[int, list[float]] = {1: [], 2: []}

        def answer(message: Message) -> AcknowledgeType:
            value = int(message.value() or b"")
            came[value].append(time.monotonic())
            return RELEASE if value == 1 and len(came[1]) == 1 else ACCEPT

        work_off(found, 2, answer)
    first, second = came[1]
    assert 1.9 <= second - first < 8


def test_the_history_has_the_attempts_of_consumers(place: Place) -> None:
    place.produce(1, 2)
    with place.gateway(history__retention="1d") as address, consumer(address) as found:
        times = dict[int, int]()

        def answer(message: Message) -> AcknowledgeType:
            value = int(message.value() or b"")
            times[value] = times.get(value, 0) + 1
            return REJECT if value == 2 else RELEASE if times[value] == 1 else ACCEPT

        work_off(found, 2, answer)
    admin = ShareGroupAdmin(place.state)
    released, rejected = (admin.record_history(GROUP, TOPIC, partition, 0) for partition in (0, 1))
    (member_id,) = {one.member_id for one in (*released.events, *rejected.events)}
    assert is_client(member_id)
    assert [(one.event, one.delivery_count) for one in released.events] == [
        *(("acquired", 1), ("released", 1)),
        *(("acquired", 2), ("accepted", 2)),
    ]
    assert [(one.event, one.delivery_count) for one in rejected.events] == [("acquired", 1), ("rejected", 1)]


def test_a_gateway_cannot_keep_the_order_of_keys(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["gateway", "--state", place.state, "--topic-table", place.topics, "--option", "delivery.order=key"]
    assert cli.main(command) == cli.BAD_INPUT
    assert "clients take records of a key in any order" in capsys.readouterr().err
