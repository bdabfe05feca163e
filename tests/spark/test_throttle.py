"""A service that answers 429 behind a running group: what it asks to wait costs no record an attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, arrow_handler
from tests.spark.test_share_group import GroupPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 20
REFUSED = 2
LIMIT = {"share.delivery.count.limit": 2}
TOO_LONG = "throttled for longer than 1 s (delivery.throttle.max.age)"


class TooManyRequests(Exception):  # noqa: N818
    """As clients raise it."""

    def __init__(self) -> None:
        super().__init__("slow down")
        self.retry_after = 0.2


def refuses(directory: Path, value: bytes, count: int) -> bool:
    """Whether the service refuses this call: the first ones of each record."""
    noted = directory / f"calls-{value.decode()}"
    with noted.open("a") as file:
        file.write(f"{count}\n")
    return len(noted.read_text().splitlines()) <= REFUSED


def counts_seen(directory: Path) -> dict[bytes, Counter[int]]:
    """By record: the delivery counts that its handler has seen."""
    found = directory.glob("calls-*")
    return {path.name.removeprefix("calls-").encode(): Counter(map(int, path.read_text().split())) for path in found}


def by_exception(directory: Path) -> Callable[..., Any]:
    def handle(record: Record) -> None:
        assert record.value is not None
        if refuses(directory, record.value, record.delivery_count):
            raise TooManyRequests

    return handle


def by_batch(directory: Path) -> Callable[..., Any]:
    def handle(batch: pa.RecordBatch) -> list[Any]:
        rows = zip(batch.column("value").to_pylist(), batch.column("delivery_count").to_pylist(), strict=True)
        return [Ack.throttled("429", retry_after=0.2) if refuses(directory, *row) else Ack.ACCEPT for row in rows]

    return arrow_handler(handle)


@pytest.mark.parametrize("handler", [by_exception, by_batch])
def test_a_throttled_record_is_accepted_in_the_end_whatever_the_limit(
    spark: SparkSession, tmp_path: Path, handler: Callable[[Path], Any]
) -> None:
    place = GroupPlace(spark, tmp_path)
    place.put(range(RECORDS))
    place.work_off(handler(tmp_path), **LIMIT)
    assert counts_seen(tmp_path) == {b"%d" % number: Counter({1: REFUSED + 1}) for number in range(RECORDS)}
    totals = {
        name: sum(getattr(one, name) for one in place.progress)
        for name in ("acquired", "throttled", "accepted", "released", "redelivered", "not_entered", "archived")
    }
    assert totals == {
        **dict.fromkeys(totals, 0),
        "acquired": RECORDS * (REFUSED + 1),
        "throttled": RECORDS * REFUSED,
        "accepted": RECORDS,
    }
    assert place.ends() == [(RECORDS // 2, RECORDS // 2, 0, 0)] * 2


def test_a_record_that_is_throttled_for_too_long_is_a_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    place = GroupPlace(spark, tmp_path)
    place.put(range(4))

    def handle(record: Record) -> None:
        if record.value == b"3":
            raise TooManyRequests

    place.work_off(handle, **LIMIT, **{"delivery.throttle.max.age": "1s"})
    assert place.dead() == {("3", 1, "rejected", f"{TOO_LONG}: TooManyRequests: slow down")}
    assert sum(one.throttled for one in place.progress) >= 1
    assert sum(one.accepted for one in place.progress) == 3
