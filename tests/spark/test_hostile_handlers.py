"""A handler that does whatever a handler can do wrong, inside of Spark: each record comes to its end by itself."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.cli import main
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.moments import FIRST_MOMENT, LAST_MOMENT
from share_spark.state.state_view import read_state
from share_spark.topics.topic_producer import Message
from tests.spark.test_share_group import GroupPlace
from tests.support.hostile_answers import NAMES, NAMES_OF_ROWS, answer_of, error_of
from tests.unit.delivery.test_hostile_answers import OUTPUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = [*NAMES, *NAMES_OF_ROWS]
GOOD = 40
ATTEMPTS = 2
AT_ONCE = {"a lone surrogate in a reason", "an error as the reason"}
"""They are rejected."""


def hostile(calls: Path) -> Any:
    """The value of a record says what it does."""

    def handle(record: Record) -> Any:
        value = bytes(record.value or b"").decode()
        with calls.open("a") as file:
            file.write(f"{value}\n")
        return answer_of(value) if value in KINDS else (Ack.ACCEPT, {"id": int(value)})

    return handle


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> GroupPlace:
    """Worked off twice."""
    place = GroupPlace(spark, tmp_path_factory.mktemp("hostile"))
    values = [*KINDS, *map(str, range(GOOD))]
    place.log.append("orders", [Message(value.encode(), partition=at % 2) for at, value in enumerate(values)])
    for _ in range(2):
        group = place.group(hostile(place.directory / "calls"), **{"share.delivery.count.limit": ATTEMPTS})
        group = group.process(hostile(place.directory / "calls"), output=OUTPUT).to_delta(
            str(place.directory / "bills")
        )
        assert group.trigger(availableNow=True).start().awaitTermination(120)
    return place


def test_each_record_is_called_as_often_as_it_may_and_a_second_start_calls_nothing(place: GroupPlace) -> None:
    calls = Counter((place.directory / "calls").read_text().splitlines())
    assert calls == {
        **{kind: 1 if kind in AT_ONCE else ATTEMPTS for kind in KINDS},
        **{str(number): 1 for number in range(GOOD)},
    }


def test_each_record_comes_to_its_end_with_its_error(place: GroupPlace) -> None:
    ends = read_state(place.spark, str(place.directory / "state"), "billing").collect()
    total = len(KINDS) + GOOD
    assert sorted(row.start_offset for row in ends) == [total // 2, total - total // 2]
    dead = {value: error for value, _, _, error in place.dead()}
    assert dead.keys() == set(KINDS)
    wrong = {kind: error for kind, error in dead.items() if not error.startswith(error_of(kind))}
    assert wrong == {}


def test_the_rows_of_the_others_are_there_once(place: GroupPlace) -> None:
    rows = place.spark.read.format("delta").load(str(place.directory / "bills")).collect()
    assert sorted(row.id for row in rows) == list(range(GOOD))


YEAR_58000_US = 1_700_000_000_000_000_000
"""A producer that takes microseconds for milliseconds."""


def test_records_of_any_year(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Delivered, accepted, rejected to a dead-letter table, listed, and not called again."""
    place = GroupPlace(spark, tmp_path)
    times = [YEAR_58000_US, -(2**61), -1_000, 1_000]
    place.log.append(
        "orders",
        [
            Message(b"%d" % (at * 2 + number), partition=0, timestamp=time)
            for at, time in enumerate(times)
            for number in (0, 1)
        ],
    )
    calls = tmp_path / "calls"

    def handle(record: Record) -> Any:
        with calls.open("a") as file:
            file.write(f"{record.timestamp}\n")
        return Ack.ACCEPT if int(record.value or b"") % 2 else Ack.reject("odd time")

    for _ in range(2):
        place.work_off(handle)
    lines = calls.read_text().splitlines()
    assert sorted(set(lines)) == sorted(
        map(str, (FIRST_MOMENT, LAST_MOMENT, "1969-12-31 23:59:59.999000+00:00", "1970-01-01 00:00:00.001000+00:00"))
    )
    assert len(lines) == len(times) * 2
    dead = spark.read.format("delta").load(str(tmp_path / "dead"))
    assert [row[0] for row in dead.orderBy("offset").selectExpr("unix_micros(timestamp)").collect()] == times
    assert main(["dead-letters", "list", "--table", str(tmp_path / "dead"), "--letters", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(times)
    place.log.append("orders", [Message(b"8", partition=0, timestamp=YEAR_58000_US)])
    assert ShareGroupAdmin(str(tmp_path / "state")).lag_ms("billing") == {("orders", 0): 0}
