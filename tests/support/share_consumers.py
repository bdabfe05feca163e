"""Kafka's share consumers, as clients of a gateway: real ones, of librdkafka."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, NamedTuple

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from share_spark import EmbeddedTopicLog
from share_spark import Message as Record
from share_spark.delta.location import Location
from share_spark.gateway.door import Door
from share_spark.gateway.gateway import Gateway
from share_spark.gateway.group_host import GroupPlace
from share_spark.gateway.node_register import NodeRegister
from share_spark.gateway.nodes import LoneNode, Node
from share_spark.gateway.served_groups import AnyGroup
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.gateway.topic_source import TopicSource
from share_spark.kafka.broker_connection import Address
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.config import GroupConfig
from share_spark.output.dead_letter_table import DeltaDeadLetters

GROUP, TOPIC = "billing", "orders"

Answer = Callable[[Message], AcknowledgeType]


class Place(NamedTuple):
    """Where topics and state are."""

    topics: str
    state: str
    dead_letters: str | None = None

    @classmethod
    def below(cls, directory: Path, *, partitions: int = 4, has_letters: bool = False) -> Place:
        """A place with the topic, which is empty."""
        letters = str(directory / "letters") if has_letters else None
        place = cls(str(directory / "topics"), str(directory / "state"), letters)
        place.log.create_topic(TOPIC, partitions)
        return place

    @property
    def log(self) -> EmbeddedTopicLog:
        return EmbeddedTopicLog(None, self.topics)

    def produce(self, first: int, last: int) -> None:
        """Append records whose values are these numbers, in turn to the partitions."""
        self.log.append(TOPIC, [Record(b"%d" % number) for number in range(first, last + 1)])

    @contextmanager
    def gateway(
        self,
        port: int = 0,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        door: Door | None = None,
        node_id: int | None = 1,
        **settings: object,
    ) -> Iterator[Address]:
        """A gateway in this process. ``clock``: by which sessions of members end."""
        source = TopicSource.of_table(None, Location.parse(self.topics))
        more: dict[str, Any] = {"clock": clock, "dead_letters": self.dead_letters, "door": door, "node_id": node_id}
        with serving(source, self.state, settings_of(settings), port, **more) as address:
            yield address


class GatewayProcess:
    """`share-spark gateway` as a process."""

    def __init__(self, place: Place, port: int = 0, options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "share_spark.cli", "gateway", "--state", place.state]
        command += ["--topic-table", place.topics, "--listen", f"127.0.0.1:{port}", "--starting", "earliest", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"connect to 127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        self.address = Address("127.0.0.1", int(found[1]))

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Signal it, and return (exit code, what it printed to standard error)."""
        self.process.send_signal(number)
        _, printed = self.process.communicate(timeout=30)
        return self.process.returncode, printed


def settings_of(given: Mapping[str, object]) -> GroupConfig:
    """The settings of groups, from names with ``__`` for a dot. Groups begin at the start of the logs."""
    options = {name.replace("__", "."): value for name, value in given.items()}
    return GroupConfig.parse({"share.auto.offset.reset": "earliest", **options})


@contextmanager
def serving(
    source: TopicSource,
    state: str,
    config: GroupConfig,
    port: int = 0,
    *,
    clock: Callable[[], int] = wall_clock_ms,
    dead_letters: str | None = None,
    door: Door | None = None,
    node_id: int | None = 1,
) -> Iterator[Address]:
    """A gateway to these topics, in this process. ``node_id`` None: it neither knows of others nor tells them of
    itself."""
    place = GroupPlace(
        state=Location.parse(state),
        log=source.log,
        topics=source.table,
        kafka=source.kafka,
        config=config,
        dead_letters=DeltaDeadLetters(dead_letters) if dead_letters else None,
    )
    catalog, way, listen = TopicCatalog(source.log), door or Door(), Address("127.0.0.1", port)
    me = Node(node_id or 1, listen, token_urlsafe(), way.certificate)
    groups = AnyGroup(place=place, reader=source.reader, catalog=catalog, clock=clock, nodes=LoneNode(me))
    if node_id is None:
        gateway = Gateway.open(listen, groups, catalog, door=way)
    else:
        groups.nodes = register = NodeRegister.at(place.state, me)
        gateway = Gateway.beside_others(listen, groups, catalog, register, door=way)
    try:
        yield gateway.address
    finally:
        gateway.close()


@contextmanager
def consumer(
    address: Address, *, group: str = GROUP, topic: str = TOPIC, security: Mapping[str, str] = {}
) -> Iterator[ShareConsumer]:
    """A consumer that acknowledges each record by itself."""
    settings = {
        "bootstrap.servers": str(address),
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "log_level": 2,  # without it the client says that its share consumer is a preview
        **security,
    }
    found = ShareConsumer(settings)
    found.subscribe([topic])
    try:
        yield found
    finally:
        found.close()


def polled(found: ShareConsumer, seconds: float = 20.0) -> list[Message]:
    """The records of the next poll that has some; none after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if messages := [message for message in found.poll(timeout=0.5) if not _failed(message)]:
            return messages
    return []


def _failed(message: Message) -> bool:
    if message.error() is not None:
        raise AssertionError(f"the consumer was told: {message.error()}")
    return False


def work_off(found: ShareConsumer, records: int, answer: Answer, seconds: float = 60.0) -> Counter[tuple[int, int]]:
    """Acknowledge until so many records are finished. Returns how often each value was delivered and accepted, as
    (value, answer)."""
    said: Counter[tuple[int, int]] = Counter()
    finished, until = 0, time.monotonic() + seconds
    while finished < records:
        assert time.monotonic() < until, f"{finished} of {records} records are finished"
        for message in polled(found):
            chosen = answer(message)
            found.acknowledge(message, chosen)
            said[int(message.value() or b"-1"), int(chosen)] += 1
            finished += chosen is not AcknowledgeType.RELEASE
        refuse_errors(found.commit_sync())
    return said


def refuse_errors(committed: dict[object, Exception | None]) -> None:
    """Each acknowledgement was taken."""
    assert not [fault for fault in committed.values() if fault is not None], committed
