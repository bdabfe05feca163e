"""Kafka's tools for share groups, unmodified, on a gateway: they do and say what they do on a broker of Kafka 4.2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from share_spark import Message, ShareGroupAdmin
from share_spark.gateway.nodes import Node, owner_of
from share_spark.kafka.broker_connection import Address
from tests.support.broker import running_broker
from tests.support.kafka_tools import (
    CONFIGS,
    CONSOLE,
    GROUPS,
    PERFORMANCE,
    VERIFIABLE,
    Said,
    running_tool,
    tool,
)
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, polled

RECORDS = 20
BEGIN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
"""The time of the first record; the others follow each second, in turn to two partitions."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return filled(Place.below(tmp_path, partitions=2))


def filled(place: Place) -> Place:
    place.log.create_topic("other", 2)
    times = (BEGIN + timedelta(seconds=number) for number in range(RECORDS))
    place.log.append(TOPIC, [Message(b"%d" % at, partition=at % 2, timestamp=time) for at, time in enumerate(times)])
    return place


@contextmanager
def filled_broker(bootstrap: str) -> Iterator[None]:
    """The same topics on a broker, until the end."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [TOPIC, "other"]
    for made in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        made.result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        at_ms = round((BEGIN + timedelta(seconds=number)).timestamp() * 1_000)
        producer.produce(TOPIC, b"%d" % number, partition=number % 2, timestamp=at_ms)
    producer.flush()
    try:
        yield
    finally:
        for gone in admin.delete_topics(topics).values():
            gone.result()


def life_of_a_group(bootstrap: str, group: str) -> list[str]:
    """What the tools say of a group, verb by verb, and what they refuse, from its first member to its end."""
    said: list[str] = []

    def ask(*arguments: str) -> None:
        found = tool(GROUPS, bootstrap, *arguments)
        said.append(f"$ {' '.join(arguments)} -> {found.code}")
        said.extend(sorted(found.lines) if "--reset-offsets" in arguments else found.lines)

    reset = ("--reset-offsets", "--group", group, "--topic", TOPIC)
    ask("--describe", "--group", group)
    eager = ("--group-id", group, "--topic", TOPIC, "--offset-reset-strategy", "earliest")
    with running_tool(VERIFIABLE, bootstrap, *eager, "--acknowledgement-mode", "sync") as member:
        consumed = 0
        while consumed < RECORDS:
            consumed += json.loads(member.wait_for("records_consumed"))["count"]
        member.wait_for("offsets_acknowledged")
        ask("--list", "--state")
        ask("--describe", "--group", group, "--members", "--verbose")
        ask("--describe", "--group", group, "--state", "--verbose")
        ask(*reset, "--to-earliest", "--execute")
        ask("--delete-offsets", "--group", group, "--topic", TOPIC)
        ask("--delete", "--group", group)
        assert "shutdown_complete" in member.end()[-1]
    ask("--list", "--state", "empty")
    ask("--describe", "--group", group, "--verbose")
    ask(*reset, "--to-earliest", "--dry-run")
    ask(*reset, "--to-datetime", "2023-11-14T22:13:30.000", "--execute")
    ask("--describe", "--group", group, "--offsets")
    ask("--reset-offsets", "--group", group, "--topic", "no-such", "--to-earliest", "--execute")
    ask("--delete-offsets", "--group", group, "--topic", TOPIC, "--topic", "other", "--topic", "no-such")
    ask("--describe", "--all-groups")
    ask("--delete", "--group", group, "--group", "nobody")
    ask("--list")
    return said


DIFFERENCES = (
    # By chance:
    (r"[\w-]{22} /127", "MEMBER /127"),
    # A broker counts an epoch more: it assigns partitions only after their state was written.
    (r"(consumer-GROUP-1 2) \d", r"\1 EPOCH"),
    (r"(Stable|Empty) \d \d (\d)$", r"\1 EPOCH EPOCH \2"),
    # A broker does not write that its start offset has passed the last finished records.
    (r"^(GROUP orders \d 0) \d+ 0$", r"\1 START 0"),
    # After a reset a broker does not know the lag.
    (r"^(GROUP orders \d 5) [-5]$", r"\1 LAG"),
)
"""What may differ in a line, and by what it is replaced."""


def without_differences(lines: list[str], bootstrap: str, group: str) -> list[str]:
    """Lines as they are on any server; the width of a column follows its values."""
    text = "\n".join(re.sub(r" +", " ", line) for line in lines).replace(bootstrap, "ADDRESS").replace(group, "GROUP")
    for pattern, replacement in DIFFERENCES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text.splitlines()


def test_a_group_from_its_first_member_to_its_end_as_on_a_broker(place: Place) -> None:
    """A broker of its own: the tools list all groups, and other tests have some."""
    group = f"group-{uuid4().hex[:8]}"
    with running_broker() as broker, filled_broker(broker.bootstrap), place.gateway() as address:
        servers = broker.bootstrap, str(address)
        with ThreadPoolExecutor(2) as both:
            there, here = both.map(lambda bootstrap: life_of_a_group(bootstrap, group), servers)
    assert without_differences(here, str(address), group) == without_differences(there, servers[0], group)


def test_a_reset_group_begins_where_it_was_reset_to(place: Place) -> None:
    with place.gateway() as address:
        assert consoled(address, RECORDS) == RECORDS
        said = tool(GROUPS, address, "--reset-offsets", "--group", GROUP, "--all-topics", "--to-latest", "--execute")
        assert [line.split()[1:] for line in sorted(said.lines)] == [
            ["TOPIC", "PARTITION", "NEW-OFFSET"],
            [TOPIC, "0", "10"],
            [TOPIC, "1", "10"],
        ]
        tool(
            GROUPS, address, "--reset-offsets", "--group", GROUP, "--topic", f"{TOPIC}:1", "--to-earliest", "--execute"
        )
        with consumer(address) as found:
            messages = polled(found)
        assert [(one.partition(), one.offset(), one.delivery_count()) for one in messages] == [
            (1, offset, 1) for offset in range(10)
        ]


def consoled(address: Address, records: int) -> int:
    """The number of different records that a console consumer prints."""
    said = tool(
        CONSOLE, address, "--topic", TOPIC, "--group", GROUP, "--max-messages", str(records), "--timeout-ms", "30000"
    )
    assert said.lines[-1] == f"Processed a total of {records} messages"
    return len(set(said.lines[:-1]))


def test_the_performance_tool_counts_all_records(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 50_000)
    with place.gateway() as address:
        said = tool(PERFORMANCE, address, "--topic", TOPIC, "--group", GROUP, "--num-records", "50000")
        assert said.code == 0, said.text
        assert int(said.lines[-1].split(", ")[5]) == 50_000, said.text
        assert sum(one.lag or 0 for one in ShareGroupAdmin(place.state).describe_offsets(GROUP)) == 0


def test_configs_of_a_group(place: Place) -> None:
    limit = "share.delivery.count.limit"

    def configs(address: Address, *arguments: str) -> Said:
        return tool(CONFIGS, address, "--entity-type", "groups", "--entity-name", GROUP, *arguments)

    with place.gateway() as address:
        said = configs(address, "--alter", "--add-config", f"{limit}=7,share.record.lock.duration.ms=20000")
        assert said == ([f"Completed updating config for group {GROUP}."], 0)
        said = configs(address, "--describe")
        assert said.lines == [
            f"Dynamic configs for group {GROUP} are:",
            f"  {limit}=7 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{limit}=7, DEFAULT_CONFIG:{limit}=5}}",
            "  share.record.lock.duration.ms=20000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:"
            "share.record.lock.duration.ms=20000, DEFAULT_CONFIG:share.record.lock.duration.ms=30000}",
        ]
        said = configs(address, "--alter", "--add-config", "no.such=1")
        assert (said.code, "Unknown group config name: no.such" in said.text) == (1, True)
        said = configs(address, "--alter", "--delete-config", "share.record.lock.duration.ms")
        assert said.code == 0
        with consumer(address) as found:
            polled(found)
    settings = {one.name: one.value for one in ShareGroupAdmin(place.state).describe_configs(GROUP)}
    assert (settings[limit], settings["share.record.lock.duration.ms"]) == ("7", "30000")


def test_tools_may_be_pointed_at_any_of_several_gateways(place: Place) -> None:
    groups = [f"group-{number}" for number in range(4)]
    nodes = [Node(number, Address("", 0)) for number in (1, 2)]
    assert {owner_of(group, nodes).node_id for group in groups} == {1, 2}
    with place.gateway(node_id=1) as first, place.gateway(node_id=2) as second:
        for group, address in zip(groups, (first, second, first, second), strict=True):
            eager = ("--group-id", group, "--topic", TOPIC, "--offset-reset-strategy", "earliest")
            with running_tool(VERIFIABLE, address, *eager, "--acknowledgement-mode", "sync") as member:
                events = [json.loads(member.wait_for('"records_consumed"'))]
                while sum(event.get("count", 0) for event in events if event["name"] == "records_consumed") < RECORDS:
                    events.append(json.loads(member.wait_for('"records_consumed"')))
                member.wait_for('"offsets_acknowledged"')
        for address in (first, second):
            assert sorted(tool(GROUPS, address, "--list").lines) == groups
            for group in groups:
                described = tool(GROUPS, address, "--describe", "--group", group)
                assert [line.split()[:4] for line in described.lines[-2:]] == [
                    [group, TOPIC, "0", str(RECORDS // 2)],
                    [group, TOPIC, "1", str(RECORDS // 2)],
                ], described.text
