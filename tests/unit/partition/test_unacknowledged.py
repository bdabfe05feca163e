"""Locks that end, sessions that close, logs that move on (R12, R25, R55-R58)."""

from __future__ import annotations

import pytest

from share_spark.model.requests import ArchiveReason
from share_spark.partition import PartitionLimits, next_deadline_ms
from tests.support.kafka_partition import ClientPartition
from tests.support.share_partition import ACCEPT, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")


def test_r55_a_lock_ends_at_its_deadline_not_before() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    assert next_deadline_ms(partition.state) == 30_000
    assert partition.advance(29_999).released == 0
    assert partition.advance(1).released == 10
    assert partition.window == "0-10: 0-9 V1"
    assert next_deadline_ms(partition.state) is None


def test_r55_only_what_is_still_acquired() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.ack("a", (3, 4, ACCEPT))
    partition.advance(30_000)
    assert partition.window == "0-10: 0-2 V1, 3-4 D1, 5-9 V1"


def test_r55_at_the_delivery_limit_it_archives_and_the_start_moves() -> None:
    partition = Partition(limits=PartitionLimits(max_delivery_count=1))
    partition.fetch("a", (0, 9))
    answer = partition.advance(30_000)
    assert [found.reason for found in answer.archived] == [ArchiveReason.DELIVERY_LIMIT]
    assert partition.window == "10-10"


def test_r55_idle_expiry_changes_nothing() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.advance(10)
    assert partition.record is None


def test_r57_a_closed_session_gives_back_only_its_own_and_keeps_the_count() -> None:
    partition = Partition()
    partition.fetch("a", (0, 4))
    partition.fetch("b", (5, 9))
    assert partition.release("a").released == 5
    assert partition.window == "0-10: 0-4 V1, 5-9 Q1"


def test_r57_also_where_owners_alternate_in_one_fetched_batch() -> None:
    partition = ClientPartition()
    partition.fetch("a", (0, 9))
    partition.ack("a", (3, 3, RELEASE), (6, 6, RELEASE))
    partition.fetch("b", (3, 9))
    partition.release("b")
    assert partition.window == "0-10: 0-2 Q1, 3 V2, 4-5 Q1, 6 V2, 7-9 Q1"


def test_r25_the_start_follows_the_log_and_available_records_are_archived() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.release("a")
    answer = partition.log_start(4)
    assert partition.window == "4-10: 4-9 V1"
    assert [found[:2] for found in answer.archived] == [(0, 3)]
    assert answer.archived[0].reason is ArchiveReason.LOG_START


def test_r25_acquired_records_below_stay_and_hold_up_the_start() -> None:
    partition = Partition()
    partition.fetch("a", (0, 4))
    partition.fetch("b", (5, 9))
    partition.log_start(5)
    assert partition.window == "5-10: 0-4 Q1, 5-9 Q1"
    partition.ack("b", (5, 9, ACCEPT))
    assert partition.window == "5-10: 0-4 Q1, 5-9 D1"
    partition.release("a")
    assert partition.window == "10-10"


def test_r25_acknowledgements_below_are_ignored_and_expiry_archives_whatever_the_count() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.log_start(4)
    partition.ack("a", (0, 3, RELEASE))
    answer = partition.advance(30_000)
    assert partition.window == "4-10: 4-9 V1"
    assert [tuple(found) for found in answer.archived] == [(0, 3, 1, ArchiveReason.LOG_START)]


def test_r25_past_the_window_it_is_empty_and_begins_there() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.release("a")
    partition.log_start(50)
    assert partition.window == "50-50"
    assert partition.next_fetch_offset == 50


def test_the_start_never_moves_back() -> None:
    partition = Partition()
    partition.fetch("a", (0, 9))
    partition.log_start(50)
    assert partition.log_start(20).archived == ()
    partition.release("a")
    assert partition.state.start_offset == 50
