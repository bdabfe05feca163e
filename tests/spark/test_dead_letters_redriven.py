"""Letters that a real engine writes: looked at, corrected in SQL, sent again until they are accepted, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark import Ack, DeadLetters, EmbeddedTopicLog, LetterFilter, Message, ShareGroup
from share_spark.admin.redrive_targets import TableTopics
from share_spark.admin.redriven_record import DELIVERY_COUNT, REDRIVE_ID
from share_spark.cli import main
from share_spark.delta.location import Location
from share_spark.model.errors import DeadLetterError
from share_spark.output.letter_columns import COLUMNS, PROPERTIES
from tests.support.letter_tables import make_letters, row
from tests.support.memory_topics import MemoryTopics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Orders:
    """Ten orders; those of Atlantis cannot be billed, and order 9 is rejected until ``is_mended``."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.state, self.topics, self.dead = (str(directory / name) for name in ("state", "topics", "dead"))
        self.log = EmbeddedTopicLog(spark, self.topics)
        self.log.create_topic("orders", 2)
        cities = [b"Atlantis" if number in (3, 4) else b"Zurich" for number in range(10)]
        self.log.append("orders", [Message(city, key=b"%d" % at, partition=at % 2) for at, city in enumerate(cities)])

    def run(self, *, is_mended: bool = False) -> None:
        def bill(record: Any) -> Any:
            if record.value == b"Atlantis":
                raise ValueError(f"no city of order {record.key.decode()}")
            return Ack.ACCEPT if record.key != b"9" or is_mended else Ack.reject("closed")

        group = ShareGroup("billing", spark=self.spark, state=self.state).table(self.topics).subscribe("orders")
        group = group.process(bill).dead_letter(self.dead).option("share.auto.offset.reset", "earliest")
        group = group.option("share.delivery.count.limit", "2").option("history.retention", "7d")
        assert group.trigger(availableNow=True).start().awaitTermination(120)

    def sql(self, text: str) -> list[Any]:
        return self.spark.sql(text.replace("DEAD", f"delta.`{self.dead}`")).collect()


def test_from_the_failure_to_its_end(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = Orders(spark, tmp_path)
    orders.run()
    letters = DeadLetters(orders.dead)
    assert [(one.count, one.error) for one in letters.by_error()] == [
        (2, "ValueError: no city of order #"),
        (1, "closed"),
    ]
    shown_with_history(orders, capsys)

    orders.sql("UPDATE DEAD SET corrected_value = cast('Zurich' AS binary) WHERE error LIKE '%order 3'")
    report = letters.redrive(TableTopics(orders.topics, spark))
    assert (report.sent, report.marked) == (3, 3)
    assert letters.redrive(TableTopics(orders.topics, spark)).sent == 0
    orders.run(is_mended=True)
    (again,) = letters.letters(LetterFilter(redriven=False))
    assert (again.key, again.value, again.partition, again.offset) == (b"4", b"Atlantis", 0, 5)
    said = dict(again.headers)
    (first,) = letters.letters(LetterFilter(topics={"orders": [0]}, offsets=(2, 2)))
    assert (said[REDRIVE_ID], said[DELIVERY_COUNT]) == (str(first.redrive_id).encode(), b"2")

    orders.sql("UPDATE DEAD SET value = cast('Bern' AS binary) WHERE redrive_id IS NULL")
    order = ["dead-letters", "redrive", "--table", orders.dead, "--all", "--topic-table", orders.topics]
    assert main(order) == 0
    assert "1 letter would be sent again to orders. 3 letters redriven already" in capsys.readouterr().out
    assert main([*order, "--execute", "--rate", "5"]) == 0
    assert capsys.readouterr().out == "1 letter sent again, 1 marked as redriven.\n"
    orders.run(is_mended=True)
    assert letters.count(LetterFilter(redriven=False)).letters == 0
    assert [
        (row.offset, row.value) for row in orders.sql("SELECT offset, string(value) AS value FROM DEAD ORDER BY 1")
    ] == [
        (1, "Atlantis"),
        (2, "Atlantis"),
        (4, "Zurich"),
        (5, "Bern"),
    ]
    assert letters.purge(LetterFilter(redriven=True)) == 4
    assert orders.sql("SELECT * FROM DEAD") == []


def shown_with_history(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    """Each delivery, where the state is named."""
    record = ["--topic", "orders", "--partition", "1", "--offset", "1"]
    assert main(["dead-letters", "show", "--table", orders.dead, *record, "--location", orders.state]) == 0
    text = capsys.readouterr().out
    assert "  value (text, 8 bytes)\n    Atlantis\n" in text
    assert text.count("acquired") == 2
    assert "delivery limit reached" in text


def test_beside_an_engine_that_appends(spark: SparkSession, tmp_path: Path) -> None:
    """A purge and marks are commits of their own, and the engine's next letters follow them."""
    orders = Orders(spark, tmp_path)
    orders.run()
    letters = DeadLetters(orders.dead, spark)
    assert letters.purge(LetterFilter(reason="limit")) == 2
    orders.log.append("orders", [Message(b"Atlantis", key=b"11", partition=0)])
    orders.run()
    assert sorted(one.key or b"" for one in letters.letters()) == [b"11", b"9"]


def test_a_table_with_deletion_vectors_is_read_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """As Databricks makes them: to change it takes its own SQL."""
    place = Location.parse(str(tmp_path / "dead"))
    make_letters(tmp_path / "dead", [row(offset) for offset in range(3)])
    spark.sql(f"ALTER TABLE {place.sql_name()} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"UPDATE {place.sql_name()} SET corrected_value = value WHERE offset = 1")
    letters = DeadLetters(str(place))
    assert [(one.offset, one.corrected_value) for one in letters.letters()] == [(2, None), (1, b"1"), (0, None)]
    assert letters.count(LetterFilter(error="city 2")).letters == 1
    topics = MemoryTopics()
    for change in (lambda: letters.purge(LetterFilter()), lambda: letters.redrive(topics)):
        with pytest.raises(DeadLetterError, match="it has deletion vectors"):
            change()
    assert topics.records == []


def test_a_table_of_the_catalog_with_a_session(spark: SparkSession) -> None:
    Location.parse("default.letters_by_name").create(spark, COLUMNS, properties=PROPERTIES)
    letters = DeadLetters("default.letters_by_name", spark)
    assert letters.purge(LetterFilter()) == 0
    spark.sql(
        "INSERT INTO default.letters_by_name (group_id, topic, partition, offset, reason, archived_at) "
        "VALUES ('billing', 'orders', 0, 1, 'rejected', now())"
    )
    assert letters.count().letters == 1
    assert letters.purge(LetterFilter(group="billing")) == 1
    assert spark.table("default.letters_by_name").count() == 0
