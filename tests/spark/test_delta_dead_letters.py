"""Dead letters to a Delta table, read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.model.errors import DeadLetterError
from share_spark.model.ids import BatchStamp
from share_spark.output.dead_letter_table import DeltaDeadLetters
from tests.support.claims import claim_of
from tests.support.engine_on_delta import only_on_spark
from tests.support.letters import letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_letter_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "dead")
    target = DeltaDeadLetters(place)
    target.check(spark)
    assert spark.read.format("delta").load(place).count() == 0
    target.write(spark, claim_of("billing"), BatchStamp(1, 0), letters(spark))
    DeltaDeadLetters(place).write(spark, claim_of("shipping"), BatchStamp(1, 0), letters(spark).limit(1))
    rows = spark.read.format("delta").load(place).where("group_id = 'billing'")
    bare, full = rows.orderBy("offset").collect()
    assert (full.topic, full.partition, full.offset) == ("orders", 3, 42)
    assert (bytes(full.key), bytes(full.value)) == (b"key", b"value")
    assert [(key, bytes(value)) for key, value in full.headers] == [("own", b"1")]
    assert (full.delivery_count, full.reason) == (5, "delivery limit reached")
    assert full.error == "ValueError: no such city"
    assert full.archived_at is not None
    assert (bare.key, bare.value, bare.error, bare.reason) == (None, None, None, "rejected")


def test_a_foreign_table_is_refused_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "foreign")
    spark.range(3).write.format("delta").save(place)
    with pytest.raises(DeadLetterError, match="is not a dead-letter table of share_spark"):
        DeltaDeadLetters(place).check(spark)
    with pytest.raises(DeadLetterError):
        DeltaDeadLetters(place).write(spark, claim_of("billing"), BatchStamp(1, 0), letters(spark))
    assert spark.read.format("delta").load(place).count() == 3
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("mine")
    with pytest.raises(DeadLetterError, match="is not a dead-letter table"):
        DeltaDeadLetters(str(tmp_path / "files")).check(spark)


def test_a_table_of_the_catalog(spark: SparkSession) -> None:
    target = DeltaDeadLetters("default.dead_letters_by_name")
    target.write(spark, claim_of("billing"), BatchStamp(1, 0), letters(spark))
    assert spark.table("default.dead_letters_by_name").count() == 2


def test_a_missing_schema_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(DeadLetterError) as caught:
        DeltaDeadLetters("no_such_schema.dead").check(spark)
    assert "\n" not in str(caught.value)


def test_the_letters_of_a_micro_batch_are_there_once(spark: SparkSession, tmp_path: Path) -> None:
    """An engine that died after writing has its letters written again by the next; another group's are its own."""
    target = DeltaDeadLetters(str(tmp_path / "dead"))
    for stamp in (BatchStamp(1, 7), BatchStamp(1, 7), BatchStamp(2, 0)):
        target.write(spark, claim_of("billing"), stamp, letters(spark))
    target.write(spark, claim_of("shipping"), BatchStamp(1, 7), letters(spark))
    found = spark.read.format("delta").load(str(tmp_path / "dead")).groupBy("group_id").count().collect()
    assert {row.group_id: row["count"] for row in found} == {"billing": 4, "shipping": 2}


def test_letters_after_others_have_cleaned_up_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody has failed for longer than the table keeps its commits, and somebody marks letters meanwhile."""
    place = tmp_path / "dead"
    target = DeltaDeadLetters(str(place))
    target.write(spark, claim_of("billing"), BatchStamp(1, 7), letters(spark))
    other = DeltaDeadLetters(str(place))
    for batch_id in range(3):
        other.write(spark, claim_of("shipping"), BatchStamp(1, batch_id), letters(spark))
    DeltaTable(str(place)).create_checkpoint()
    for commit in sorted((place / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    target.write(spark, claim_of("billing"), BatchStamp(1, 8), letters(spark))
    assert DeltaTable(str(place)).to_pyarrow_table()["group_id"].to_pylist().count("billing") == 4


@pytest.mark.parametrize("way", ["Spark", "files"])
def test_an_append_that_happened_though_it_raised_is_believed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    place = str(tmp_path / "dead")
    DeltaDeadLetters(place).check(spark)
    if way == "Spark":
        only_on_spark(monkeypatch)
    else:
        monkeypatch.setattr(DirectAppends, "commit", raises_after(DirectAppends.commit))
    DeltaDeadLetters(RaisesAfter(path=place)).write(spark, claim_of("billing"), BatchStamp(1, 7), letters(spark))
    assert spark.read.format("delta").load(place).count() == 2


def raises_after(commit: Callable[..., int]) -> Callable[..., int]:
    """A commit whose answer is lost."""

    def lost(*given: Any, **more: Any) -> int:
        commit(*given, **more)
        raise Py4JError("connection reset")

    return lost


def test_an_append_that_did_not_happen_though_nothing_was_raised_is_a_fault(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "dead")
    DeltaDeadLetters(place).check(spark)
    only_on_spark(monkeypatch)
    with pytest.raises(DeadLetterError, match=f"dead-letter table {place}: the append is not in its log"):
        DeltaDeadLetters(DoesNothing(path=place)).write(spark, claim_of("billing"), BatchStamp(1, 7), letters(spark))


def test_letters_that_a_successor_has_written_are_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    target = DeltaDeadLetters(str(tmp_path / "dead"))
    for stamp in (BatchStamp(1, 7), BatchStamp(2, 0), BatchStamp(1, 7)):
        target.write(spark, claim_of("billing"), stamp, letters(spark))
    assert spark.read.format("delta").load(str(tmp_path / "dead")).count() == 4


class RaisesAfter(Location):
    """An append whose answer is lost."""

    def append(self, frame: DataFrame, options: Mapping[str, str] | None = None) -> None:
        super().append(frame, options)
        raise Py4JError("connection reset")


class DoesNothing(Location):
    """As Delta does with a number that it takes for an old one."""

    def append(self, frame: DataFrame, options: Mapping[str, str] | None = None) -> None:
        pass
