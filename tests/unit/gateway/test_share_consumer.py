"""librdkafka's share consumer, unmodified, on topics in a Delta table: no broker, and no JVM."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from deltalake import DeltaTable

from share_spark import ShareGroupAdmin
from share_spark.coordinator.group import ShareGroup
from share_spark.delta.location import Location
from share_spark.engine.batch_reader import BATCH_RECORDS, BatchReader, RecordBatch
from share_spark.gateway.topic_source import TopicSource
from share_spark.model.errors import DeadLetterError
from share_spark.model.ids import TopicPartition
from share_spark.output.dead_letter_table import DeltaDeadLetters
from tests.support.raw_members import stored
from tests.support.share_consumers import (
    GROUP,
    TOPIC,
    GatewayProcess,
    Place,
    consumer,
    polled,
    refuse_errors,
    serving,
    settings_of,
    work_off,
)

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
RECORDS = 10_000


def is_bad(value: int) -> bool:
    return value == 4_711


def test_records_are_accepted_released_and_rejected_and_the_state_says_so(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    place.produce(1, RECORDS)
    seen: Counter[int] = Counter()

    def answer(message: Message) -> AcknowledgeType:
        value = int(message.value() or b"")
        seen[value] += 1
        if is_bad(value):
            return REJECT
        return RELEASE if value % 100 == 0 and seen[value] == 1 else ACCEPT

    with place.gateway() as address, consumer(address) as found:
        said = work_off(found, RECORDS, answer)
    assert sum(said.values()) == RECORDS + RECORDS // 100
    assert {value for value, answered in said if answered == RELEASE} == set(range(100, RECORDS + 1, 100))
    assert [value for value, answered in said if answered == REJECT] == [4_711]
    offsets = ShareGroupAdmin(place.state).describe_offsets(GROUP)
    assert [(one.start_offset, one.lag) for one in offsets] == [(RECORDS // 4, 0)] * 4


def letters_of(place: Place) -> list[tuple[object, ...]]:
    """(group, value, delivery count, reason) of each dead letter."""
    columns = ["group_id", "value", "delivery_count", "reason"]
    rows = DeltaTable(str(place.dead_letters)).to_pyarrow_table(columns=columns).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in rows)


def test_what_is_archived_without_success_is_a_dead_letter(tmp_path: Path) -> None:
    place = Place.below(tmp_path, has_letters=True)
    place.produce(1, 300)

    def answer(message: Message) -> AcknowledgeType:
        value = int(message.value() or b"")
        return REJECT if value == 47 else RELEASE if value == 200 else ACCEPT

    with place.gateway(share__delivery__count__limit=2) as address, consumer(address) as found:
        work_off(found, 299, answer)
        until = time.monotonic() + 20
        while len(letters_of(place)) < 2 and time.monotonic() < until:
            for message in found.poll(timeout=0.5):
                found.acknowledge(message, answer(message))
            found.commit_sync()
    assert letters_of(place) == [(GROUP, b"200", 2, "delivery limit reached"), (GROUP, b"47", 1, "rejected")]


def test_dead_letters_that_could_not_be_written_are_written_by_the_next_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place.below(tmp_path, has_letters=True)
    place.produce(1, 100)

    def fails(*_: object) -> None:
        raise DeadLetterError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(DeltaDeadLetters, "write", fails)
        with place.gateway() as address, consumer(address) as found:
            work_off(found, 100, lambda message: REJECT if message.value() == b"47" else ACCEPT)
    place.produce(101, 200)
    with place.gateway() as address, consumer(address) as found:
        said = work_off(found, 100, lambda _: ACCEPT)
    assert {value for value, _ in said} == {*range(101, 201)}
    assert letters_of(place) == [(GROUP, b"47", 1, "rejected")]


def test_a_gateway_that_starts_again_goes_on(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 1_000)
    with place.gateway() as address, consumer(address) as found:
        first = work_off(found, 300, lambda _: ACCEPT)
    place.produce(1_001, 1_500)
    with place.gateway() as address, consumer(address) as found:
        second = work_off(found, 1_500 - sum(first.values()), lambda _: ACCEPT)
    assert {value for value, _ in first + second} == set(range(1, 1_501))
    assert max((first + second).values()) == 1


def test_what_a_consumer_held_comes_to_another_with_the_next_count(tmp_path: Path) -> None:
    place = Place.below(tmp_path, partitions=1)
    place.produce(1, 50)
    with place.gateway() as address:
        with consumer(address) as leaves:
            taken = polled(leaves)
            assert {message.delivery_count() for message in taken} == {1}
            leaves.acknowledge(taken[0], ACCEPT)
            refuse_errors(leaves.commit_sync())
        with consumer(address) as stays:
            again = polled(stays)
            assert [message.offset() for message in again] == list(range(1, len(taken)))
            assert {message.delivery_count() for message in again} == {2}
            for message in again:
                stays.acknowledge(message, ACCEPT)


def test_a_lock_that_runs_out_is_an_attempt(tmp_path: Path) -> None:
    place = Place.below(tmp_path, partitions=1)
    place.produce(1, 5)
    with place.gateway(share__record__lock__duration__ms=1_000) as address, consumer(address) as sleeps:
        assert len(polled(sleeps)) == 5
        with consumer(address) as works:
            again = polled(works)
            assert [(message.offset(), message.delivery_count()) for message in again] == [(at, 2) for at in range(5)]
            for message in again[1:]:
                works.acknowledge(message, ACCEPT)
            refuse_errors(works.commit_sync())
            for message in again:
                sleeps.acknowledge_offset(message.topic(), message.partition(), message.offset(), ACCEPT)
            (fault,) = sleeps.commit_sync().values()
            assert fault is not None, "another member holds the first of these records"
            works.acknowledge(again[0], ACCEPT)
            refuse_errors(works.commit_sync())
            assert [one.start_offset for one in ShareGroupAdmin(place.state).describe_offsets(GROUP)] == [5]


def test_who_waits_gets_records_when_they_come(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    with place.gateway() as address, consumer(address) as found:
        assert polled(found, seconds=2) == []
        place.produce(1, 10)
        assert sum(work_off(found, 10, lambda _: ACCEPT).values()) == 10


def test_members_share_the_records(tmp_path: Path) -> None:
    place = Place.below(tmp_path, partitions=1)
    place.produce(1, 2_000)
    with place.gateway() as address, consumer(address) as one, consumer(address) as other:
        values = []
        for found in (one, other, one, other):
            messages = polled(found)
            values += [message.value() for message in messages]
            for message in messages:
                found.acknowledge(message, ACCEPT)
    assert len(values) == len(set(values))


@dataclass(frozen=True, slots=True)
class Stuck:
    """A reader that does not come back from one partition before ``ends`` is set."""

    reader: BatchReader
    ends: Event

    def read(
        self, at: TopicPartition, offset: int, most_bytes: int, batch_records: int = BATCH_RECORDS
    ) -> Sequence[RecordBatch]:
        if at.partition == 0:
            self.ends.wait()
        return self.reader.read(at, offset, most_bytes, batch_records)


def test_a_partition_that_cannot_be_read_now_holds_up_no_other(tmp_path: Path) -> None:
    place, ends = Place.below(tmp_path), Event()
    place.produce(1, 100)
    source = TopicSource.of_table(None, Location.parse(place.topics))
    stuck = replace(source, reader=Stuck(source.reader, ends))
    with serving(stuck, place.state, settings_of({})) as address, consumer(address) as found:
        try:
            said = work_off(found, 75, lambda _: ACCEPT)
            assert polled(found, 1) == []
        finally:
            ends.set()
        said += work_off(found, 25, lambda _: ACCEPT)
    assert len(said) == 100
    assert max(said.values()) == 1


def accepted_in(found: ShareConsumer, rounds: int) -> Counter[int]:
    """The values of records that were accepted in so many polls, and of which this was confirmed."""
    accepted: Counter[int] = Counter()
    for _ in range(rounds):
        messages = polled(found, seconds=60)
        for message in messages:
            found.acknowledge(message, ACCEPT)
        refused = {at.partition for at, fault in found.commit_sync().items() if fault is not None}
        accepted.update(int(message.value() or b"") for message in messages if message.partition() not in refused)
    return accepted


@pytest.mark.slow
def test_a_gateway_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    place.produce(1, 3_000)
    accepted: Counter[int] = Counter()
    port = 0
    members: ShareGroup | None = None
    with ExitStack() as until_end:
        found: ShareConsumer | None = None
        for _ in range(3):
            with GatewayProcess(place, port) as gateway:
                found = found or until_end.enter_context(consumer(gateway.address))
                accepted += accepted_in(found, 2)
                port = gateway.address.port
            members = members or stored(place)
        with GatewayProcess(place, port) as gateway:
            assert found is not None
            accepted += Counter(value for value, _ in work_off(found, 3_000 - len(accepted), lambda _: ACCEPT))
            assert gateway.end(signal.SIGTERM) == (0, "share-spark: disconnecting clients\n")
        assert members is not None
        assert len(members.members) == 1
        assert stored(place) == members, "it has never joined again"
    assert set(accepted) == set(range(1, 3_001))
    assert max(accepted.values()) == 1


def test_bad_places_are_one_line(tmp_path: Path) -> None:
    place = Place.below(tmp_path)
    options = {"--state": place.state, "--topic-table": place.topics, "--listen": "127.0.0.1:0"}
    for name, value, told in (
        ("--topic-table", str(tmp_path / "nothing"), "there is no topic table"),
        ("--topic-table", "main.topics", "is a name of Spark's catalog"),
        ("--state", place.topics, "is itself a Delta table"),
        ("--dead-letter", place.topics, "is not a dead-letter table of share_spark"),
        ("--dead-letter", "orders-dead", "is a name of Spark's catalog"),
        ("--listen", "here", "'here' is not an address: host:port"),
        ("--listen", "192.0.2.1:9092", "cannot listen on 192.0.2.1:9092"),
    ):
        arguments = [text for pair in (options | {name: value}).items() for text in pair]
        command = [sys.executable, "-m", "share_spark.cli", "gateway", *arguments]
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert run.returncode != 0
        assert told in run.stderr
        assert len(run.stderr.splitlines()) == 1, run.stderr
    assert not Path(place.state).exists()


def test_a_partition_that_is_paused_holds_up_no_other(tmp_path: Path) -> None:
    """Its records are read ahead, so it seems to have enough for the next poll, whose turn it has."""
    place, admin = Place.below(tmp_path, partitions=2), ShareGroupAdmin(str(tmp_path / "state"))
    place.produce(1, 4_000)
    with place.gateway() as address, consumer(address) as found:
        messages = polled(found)
        first = messages[0].partition()
        for message in messages:
            found.acknowledge(message, ACCEPT)
        refuse_errors(found.commit_sync())
        admin.set_pauses(GROUP, admin.plan_pause(GROUP, {TOPIC: [1 - first]}))
        time.sleep(2)
        assert {message.partition() for message in polled(found, 5)} == {first}
