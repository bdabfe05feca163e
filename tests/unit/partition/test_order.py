"""Which records that are not finished lie before those that were acquired."""

from __future__ import annotations

from random import Random

import pytest

from share_spark.model.records import DeliveryState, StateBatch
from share_spark.model.requests import AcquiredRange, RetryDelay
from share_spark.partition import SharePartition, from_kip, unfinished_before
from tests.support.share_partition import ACCEPT, KEY, REJECT, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")


def before(state: SharePartition, *acquired: tuple[int, int], member: str = "b") -> list[tuple[int, int]]:
    found = unfinished_before(state, [AcquiredRange(first, last, 1) for first, last in acquired], member)
    return [(run.first_offset, run.last_offset) for run in found]


def test_delayed_locked_and_finished_ones() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.ack("a", (0, 1, ACCEPT), (2, 3, RELEASE), (4, 5, REJECT), delays=(RetryDelay(2, 3, 50),))
    partition.fetch("b", (10, 14))
    assert before(partition.state, (10, 14)) == [(2, 3), (6, 9)]


def test_what_lies_behind_the_last_one_holds_back_nothing() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.ack("a", (0, 0, RELEASE), (4, 4, RELEASE), delays=(RetryDelay(4, 4, 50),))
    partition.fetch("b", (0, 9))
    assert before(partition.state, (0, 0)) == []


def test_what_is_below_the_start_offset_is_not_in_the_log() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.log_start(5)
    partition.fetch("b", (10, 14))
    assert before(partition.state, (10, 14)) == [(5, 9)]


def test_what_the_member_holds_already_is_with_it() -> None:
    partition = Partition()
    partition.fetch("a", (0, 1))
    partition.fetch("b", (2, 5))
    partition.ack("b", (3, 3, RELEASE), delays=(RetryDelay(3, 3, 50),))
    partition.fetch("b", (6, 9))
    assert before(partition.state, (6, 9)) == [(0, 1), (3, 3)]


def test_what_a_state_from_kafka_does_not_say() -> None:
    batches = [StateBatch(5, 6, DeliveryState.AVAILABLE, 1), StateBatch(9, 9, DeliveryState.AVAILABLE, 1)]
    state = from_kip(key=KEY, state_epoch=0, leader_epoch=0, start_offset=5, batches=batches)
    assert before(state, (8, 8)) == [(5, 6), (7, 8)]


@pytest.mark.parametrize("seed", range(50))
def test_offset_by_offset(seed: int) -> None:
    rng, partition = Random(seed), Partition()
    for member in "abc":
        end = partition.state.end_offset
        partition.fetch(member, (partition.state.start_offset, end + 20))
        held = [run for run in partition.state.in_flight if run.member_id == member]
        for run in held:
            for offset in range(run.first_offset, run.last_offset + 1):
                if rng.random() < 0.6:
                    delays = (RetryDelay(offset, offset, rng.choice([0, 50])),)
                    partition.ack(member, (offset, offset, rng.choice([ACCEPT, RELEASE, REJECT])), delays=delays)
    taken = partition.fetch("d", (partition.state.start_offset, partition.state.end_offset + 3))
    own = {offset for first, last, _ in taken for offset in range(first, last + 1)}
    expected = [
        offset
        for run in partition.state.in_flight
        for offset in range(run.first_offset, run.last_offset + 1)
        if not run.delivery_state.is_final and offset not in own and offset < max(own)
    ]
    found = before(partition.state, *(row[:2] for row in taken), member="d")
    assert [offset for first, last in found for offset in range(first, last + 1)] == expected
