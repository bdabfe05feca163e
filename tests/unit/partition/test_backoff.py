"""Delays of retries in one share-partition: when a released record may be acquired again."""

from __future__ import annotations

import pytest

from share_spark.model.config import BackoffPolicy
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch
from share_spark.model.requests import AnsweredRange, LoseAttempts, Loss, ReleaseMember, RetryDelay
from share_spark.partition import PartitionLimits, kip_batches, next_deadline_ms, waiting
from share_spark.partition.backoff import LEVELS, Backoff, delayed
from tests.support.share_partition import ACCEPT, GAP, KEY, REJECT, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")

FIXED = Backoff(policy=BackoffPolicy.FIXED, delay_ms=100)
EXPONENTIAL = Backoff(policy=BackoffPolicy.EXPONENTIAL, delay_ms=100, max_delay_ms=350)


def released(backoff: Backoff, *delays: tuple[int, int, int]) -> Partition:
    """Ten records, of which 2 to 5 were released at time 0."""
    partition = Partition(limits=PartitionLimits(backoff=backoff))
    partition.fetch("a", (0, 9))
    asked = tuple(RetryDelay(*delay) for delay in delays)
    partition.ack("a", (0, 1, ACCEPT), (2, 5, RELEASE), (6, 9, ACCEPT), delays=asked)
    return partition


def test_a_delayed_record_comes_at_its_time_not_before_and_holds_back_nobody() -> None:
    partition = released(FIXED)
    partition.now_ms = 99
    assert partition.fetch("a", (2, 11)) == [(10, 11, 1)]
    partition.now_ms = 100
    assert partition.fetch("a", (2, 12)) == [(2, 5, 2), (12, 12, 1)]
    assert partition.window == "2-13: 2-5 Q2, 6-9 D1, 10-11 Q1, 12 Q1"


def test_a_delayed_record_counts_for_the_width_of_the_window() -> None:
    partition = released(FIXED)
    partition.limits = PartitionLimits(max_record_locks=9, backoff=FIXED)
    assert partition.fetch("a", (2, 30)) == [(10, 10, 1)]


def test_what_the_handler_asks_for_wins() -> None:
    partition = released(FIXED, (0, 2, 500), (4, 4, 0))
    assert waiting(partition.state) == (1, (0, 0, 0), ((100, 2), (500, 1)))
    assert partition.fetch("a", (2, 9)) == [(4, 4, 2)]
    partition.now_ms = 100
    assert partition.fetch("a", (2, 9)) == [(3, 3, 2), (5, 5, 2)]
    partition.now_ms = 500
    assert partition.fetch("a", (2, 9)) == [(2, 2, 2)]


def test_a_handler_may_ask_where_the_group_has_no_backoff() -> None:
    partition = released(Backoff(), (2, 3, 50))
    assert partition.fetch("a", (2, 9)) == [(4, 5, 2)]


@pytest.mark.parametrize("kind", [ACCEPT, REJECT, GAP])
def test_only_what_is_released_is_delayed(kind: int) -> None:
    partition = Partition(limits=PartitionLimits(backoff=FIXED))
    partition.fetch("a", (0, 9))
    partition.ack("a", (5, 9, kind), delays=(RetryDelay(0, 9, 70),))
    assert waiting(partition.state).delayed == ()


def test_the_last_attempt_is_archived_at_once() -> None:
    partition = Partition(limits=PartitionLimits(max_delivery_count=1, backoff=FIXED))
    partition.fetch("a", (0, 1))
    partition.ack("a", (0, 0, RELEASE))
    assert partition.window == "1-2: 1 Q1"


def test_what_has_no_answer_is_not_delayed() -> None:
    partition = Partition(limits=PartitionLimits(backoff=FIXED))
    partition.fetch("a", (0, 9))
    partition.ask(
        LoseAttempts(member_id="a", ranges=(AnsweredRange(0, 1, Loss.NOT_ENTERED), AnsweredRange(2, 3, Loss.FINISHED)))
    )
    partition.ask(ReleaseMember(member_id="a", charged=False))
    assert partition.fetch("a", (0, 9)) == [(0, 1, 1), (2, 3, 2), (4, 9, 1)]


def test_what_waits_for_another_record_is_delayed_and_not_charged() -> None:
    partition = Partition(limits=PartitionLimits(backoff=FIXED))
    partition.fetch("a", (0, 9))
    lost = (AnsweredRange(0, 4, Loss.NOT_ENTERED), AnsweredRange(5, 9, Loss.AMONG_OTHERS))
    partition.ask(LoseAttempts(member_id="a", ranges=lost, delays=(RetryDelay(2, 3, 70), RetryDelay(8, 9, 70))))
    assert waiting(partition.state) == (3, (0, 0, 5), ((70, 2),))
    partition.now_ms = 70
    assert partition.fetch("a", (0, 9)) == [(0, 1, 1), (2, 3, 1), (4, 4, 1)]


def test_what_is_throttled_waits_as_long_as_was_asked_for_and_is_not_charged() -> None:
    partition = Partition(limits=PartitionLimits(max_delivery_count=1, backoff=FIXED))
    for at_ms in (0, 70, 140):
        partition.now_ms = at_ms
        assert partition.fetch("a", (0, 9)) == [(0, 9, 1)]
        throttled = LoseAttempts(
            member_id="a", ranges=(AnsweredRange(0, 9, Loss.THROTTLED),), delays=(RetryDelay(0, 9, 70),)
        )
        response = partition.ask(throttled)
        assert (tuple(response.throttled), response.not_entered) == (((0, 9, 1),), ())
    assert waiting(partition.state).delayed == ((210, 10),)


def test_a_delay_is_no_lock_of_a_member() -> None:
    partition = released(FIXED)
    assert next_deadline_ms(partition.state) is None
    before = partition.state
    partition.advance(1_000, lost=True)
    assert partition.state == before


def test_the_form_of_the_kip_knows_no_delay() -> None:
    assert [(*batch,) for batch in kip_batches(released(FIXED).state)] == [(2, 5, 0, 1), (6, 9, 2, 1)]


def test_what_falls_below_the_log_start_is_archived_while_it_is_delayed() -> None:
    partition = released(FIXED)
    assert [run[:2] for run in partition.log_start(4).archived] == [(2, 3)]
    assert partition.window == "4-10: 4-5 V1, 6-9 D1"


def test_delays_by_policy() -> None:
    assert [FIXED.delay_after_ms(count) for count in (1, 2, 9)] == [100, 100, 100]
    assert [EXPONENTIAL.delay_after_ms(count) for count in (1, 2, 3, 60)] == [100, 200, 350, 350]
    assert Backoff().delay_after_ms(3) == 0
    assert Backoff(policy=BackoffPolicy.FIXED, delay_ms=600_000).delay_after_ms(1) == 600_000, "has no maximum"


def test_jitter_is_within_its_bounds_and_never_above_the_maximum() -> None:
    jittered = Backoff(policy=BackoffPolicy.EXPONENTIAL, delay_ms=1_000, max_delay_ms=2_100, jitter=0.5)
    assert [jittered.delay_after_ms(1, level) for level in (0, LEVELS // 2, LEVELS - 1)] == [500, 1_000, 1_500]
    assert [jittered.delay_after_ms(2, level) for level in (0, LEVELS // 2, LEVELS - 1)] == [1_000, 2_000, 2_100]


def singles(count: int, delivery_count: int = 1) -> tuple[InFlightBatch, ...]:
    available = DeliveryState.AVAILABLE
    return tuple(
        InFlightBatch(2 * at, 2 * at, available, delivery_count, None, None, Doubt.NONE) for at in range(count)
    )


def deadlines(runs: tuple[InFlightBatch, ...], key: SharePartitionKey = KEY) -> list[int | None]:
    jittered = Backoff(policy=BackoffPolicy.FIXED, delay_ms=1_000, jitter=0.5)
    return [run.lock_deadline_ms for run in delayed(runs, (), jittered, key, 7)]


def test_jitter_spreads_scattered_records_over_few_times_and_is_the_same_again() -> None:
    found = deadlines(singles(900))
    assert len(set(found)) == LEVELS
    assert min(found.count(one) for one in set(found)) > 900 / LEVELS / 2
    assert deadlines(singles(900)) == found
    assert deadlines(singles(900, 2)) != found
    assert deadlines(singles(900), KEY._replace(partition=1)) != found


def test_jitter_cuts_no_range() -> None:
    whole = (InFlightBatch(0, 999_999, DeliveryState.AVAILABLE, 1),)
    assert len(deadlines(whole)) == 1
