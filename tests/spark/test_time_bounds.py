"""Slow, hung and stuck handlers on a running group: they delay only themselves."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from tests.spark.test_share_group import GroupPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 600
STUCK = {5: "sleeps for ever", 6: "never returns from C"}


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> GroupPlace:
    found = GroupPlace(spark, tmp_path)
    found.put(range(RECORDS))
    return found


def slow(_: Record) -> None:
    time.sleep(0.01)


def test_a_slow_handler_is_given_what_it_can_do_in_time(place: GroupPlace) -> None:
    """All was acquired at first; what the budget left over was no attempt, and was not acquired so again."""
    place.work_off(slow, **{"delivery.budget.ms": 1_000})
    first, second, *_ = place.progress
    assert first.acquired == RECORDS
    assert 0 < second.accepted < RECORDS
    assert second.accepted + second.not_entered == RECORDS
    assert second.acquired <= 2 * second.accepted
    assert sum(one.not_entered for one in place.progress[2:]) <= second.accepted
    assert sum(one.accepted for one in place.progress) == RECORDS
    assert {count for one in place.progress for count in one.deliveries} == {1}


def test_a_record_comes_again_when_its_handler_wants_it(spark: SparkSession, tmp_path: Path) -> None:
    place = GroupPlace(spark, tmp_path)
    place.put(range(6))
    place.work_off(
        lambda record: Ack.release(delay="1s") if record.value == b"0" and record.delivery_count == 1 else None
    )
    released = next(one for one in place.progress if one.released)
    (delivered,) = [one for one in place.progress if one.redelivered]
    assert (released.released, delivered.redelivered) == (1, 1)
    assert delivered.now_ms - released.now_ms >= 1_000


def alone_at(directory: str) -> Callable[[Record], None]:
    """A handler that fails while another one runs."""

    def handler(_: Record) -> None:
        marker = Path(directory) / "a handler is running"
        marker.touch(exist_ok=False)
        time.sleep(0.002)
        marker.unlink()

    return handler


def test_no_more_handlers_run_at_a_time_than_are_allowed(place: GroupPlace, tmp_path: Path) -> None:
    place.work_off(alone_at(str(tmp_path)), **{"delivery.max.concurrency": 1})
    assert sum(one.accepted for one in place.progress) == RECORDS
    assert {count for one in place.progress for count in one.deliveries} == {1}


def stuck(record: Record) -> None:
    number = int(record.value or b"")
    if number == 5:
        time.sleep(10_000)
    if number == 6:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2 * 10**9)


@pytest.mark.slow
def test_code_that_does_not_come_back_costs_its_record_and_the_rest_goes_on(place: GroupPlace) -> None:
    options: dict[str, Any] = {"delivery.timeout.ms": 500, "share.delivery.count.limit": 2}
    place.work_off(stuck, **options)
    errors = {int(value): (count, error) for value, count, _, error in place.dead()}
    assert errors.keys() == STUCK.keys()
    assert errors[5] == (2, "time limit of 500 ms exceeded")
    assert errors[6][0] == 2
    assert errors[6][1].startswith("time limit of 500 ms exceeded and did not react: File ")
    assert sum(one.accepted for one in place.progress) == RECORDS - len(STUCK)
