"""State partitions as Kafka computes them, and requests that name many keys (R71-R73, R97, R98)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from share_spark.coordinator import CoordinatorShard, answer, evolved, state_partition_of
from share_spark.coordinator.messages import (
    DeleteState,
    InitializeState,
    ReadState,
    ShareGroupStateRequest,
    StateRequest,
    StateSnapshot,
    WriteState,
)
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import StateBatch

TOPIC = "4NDDkFljTLmMDZ9fRVJVKg"
HOME = CoordinatorShard(state_partition=0, state_partitions=1, loaded=True)


@pytest.mark.parametrize(
    ("group", "topic_id", "partition", "expected"),
    [
        ("G1", "AAAAAAAAAAAAAAAAAAAAAQ", 0, 16),
        ("G1", "AAAAAAAAAAAAAAAAAAAAAQ", 2_147_483_647, 16),
        ("G1", "4NDDkFljTLmMDZ9fRVJVKg", 0, 42),
        ("G1", "4NDDkFljTLmMDZ9fRVJVKg", 7, 49),
        ("G1", "-_-_-_-_-_-_-_-_-_-_-w", 0, 18),
        ("billing", "AAAAAAAAAAAAAAAAAAAAAQ", 0, 23),
        ("billing", "zzzzzzzzzzzzzzzzzzzzzw", 7, 21),
        ("billing", "4NDDkFljTLmMDZ9fRVJVKg", 2_147_483_647, 37),
        ("grüße-😀", "4NDDkFljTLmMDZ9fRVJVKg", 0, 31),
        ("grüße-😀", "zzzzzzzzzzzzzzzzzzzzzw", 0, 16),
        ("", "zzzzzzzzzzzzzzzzzzzzzw", 7, 0),
    ],
)
def test_r71_keys_go_where_kafka_sends_them(group: str, topic_id: str, partition: int, expected: int) -> None:
    """Expected: what the released classes of 4.2.0 said (SharePartitionKey.asCoordinatorKey, Utils.abs)."""
    assert state_partition_of(SharePartitionKey(group, topic_id, partition)) == expected


def test_r71_the_smallest_hash_has_no_absolute_value() -> None:
    """``wirsausv:4NDDkFljTLmMDZ9fRVJVKg:0`` hashes to -2^31, which Kafka takes for 0; plain ``abs`` would give 48."""
    assert state_partition_of(SharePartitionKey("wirsausv", TOPIC, 0)) == 0


def request(*entries: StateRequest, group: str = "G1") -> ShareGroupStateRequest:
    return ShareGroupStateRequest(group_id=group, entries=entries)


def initialize(partition: int) -> InitializeState:
    return InitializeState(topic_id=TOPIC, partition=partition, state_epoch=1, start_offset=100)


def write(partition: int, *batches: StateBatch) -> WriteState:
    return WriteState(topic_id=TOPIC, partition=partition, state_epoch=1, leader_epoch=0, state_batches=batches)


def after(shard: CoordinatorShard, *entries: StateRequest) -> CoordinatorShard:
    return evolved(shard, answer(shard, request(*entries)).records)


def test_r98_each_entry_has_its_own_answer() -> None:
    shard = after(HOME, initialize(0), initialize(2))
    given = answer(
        shard,
        request(
            replace(write(0), state_epoch=0, start_offset=110),
            replace(write(1), start_offset=110),
            replace(write(2), start_offset=110),
            replace(write(3), topic_id=""),
        ),
    )
    assert [(result.partition, result.error.name) for result in given.results] == [
        (0, "FENCED_STATE_EPOCH"),
        (1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (2, "NONE"),
        (3, "INVALID_REQUEST"),
    ]
    assert [record.key.partition for record in given.records] == [2]


def test_an_entry_sees_what_those_before_it_did() -> None:
    written = write(0, StateBatch(105, 105, 2, 1))
    read = ReadState(topic_id=TOPIC, partition=0)
    given = answer(HOME, request(initialize(0), written, read, DeleteState(topic_id=TOPIC, partition=0), read))
    assert [result.error.name for result in given.results] == ["NONE"] * 4 + ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert given.results[2].state_batches == (StateBatch(105, 105, 2, 1),)
    assert evolved(HOME, given.records) == HOME


def test_an_answer_changes_nothing_until_its_records_are_committed() -> None:
    answer(HOME, request(initialize(0)))
    (result,) = answer(HOME, request(ReadState(topic_id=TOPIC, partition=0))).results
    assert result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_r97_no_group_or_no_entries_no_answer() -> None:
    assert answer(HOME, request(initialize(0), group="")) == ((), ())
    assert answer(HOME, request()) == ((), ())


def test_r72_keys_of_another_state_partition_are_sent_away() -> None:
    key = SharePartitionKey("G1", TOPIC, 7)
    owner = CoordinatorShard(state_partition=state_partition_of(key), loaded=True)
    stranger = replace(owner, state_partition=(owner.state_partition + 1) % 50)
    assert [result.error.name for result in answer(owner, request(initialize(7))).results] == ["NONE"]
    given = answer(stranger, request(initialize(7)))
    assert (given.records, given.results[0].error.name) == ((), "NOT_COORDINATOR")
    assert evolved(stranger, answer(owner, request(initialize(7))).records) == stranger


@pytest.mark.parametrize(
    "entry", [initialize(0), ReadState(topic_id=TOPIC, partition=0), DeleteState(topic_id=TOPIC, partition=0)]
)
def test_r73_a_shard_that_is_not_loaded_says_so(entry: StateRequest) -> None:
    given = answer(replace(HOME, loaded=False), request(entry))
    assert (given.records, given.results[0].error.name) == ((), "COORDINATOR_LOAD_IN_PROGRESS")


def test_r73_a_new_coordinator_is_the_old_one_after_replay() -> None:
    shard, log = HOME, []
    for entries in (
        (initialize(0), initialize(1)),
        (replace(write(0, StateBatch(105, 105, 2, 1)), leader_epoch=3),),
        (DeleteState(topic_id=TOPIC, partition=1), ReadState(topic_id=TOPIC, partition=0, leader_epoch=4)),
    ):
        records = answer(shard, request(*entries)).records
        log += records
        shard = evolved(shard, records)
    assert evolved(HOME, log) == shard
    assert [record.key.partition for record in log if isinstance(record, StateSnapshot)] == [0, 1]
