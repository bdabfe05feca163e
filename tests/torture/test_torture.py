"""The table torture in its short form; and writers that do not look, which it has to convict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.delta.table_log import TableLog
from tests.torture.table import play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 2])
def test_the_table_is_right_whatever_is_done_to_it(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    assert play(spark, tmp_path / "table", seed, 15) is None


@pytest.mark.spark
@pytest.mark.parametrize(("look", "answer", "first"), [("is_there", True, 3), ("overwritten_version", None, 18)])
def test_a_writer_that_does_not_look_is_convicted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str, answer: object, first: int
) -> None:
    """By one of eight seeds: not all of them have a commit that is overwritten."""
    monkeypatch.setattr(TableLog, look, lambda _self: answer)
    played = (play(spark, tmp_path / str(seed), seed, 17) for seed in range(first, first + 8))
    found = next(filter(None, played), None)
    assert found is not None
    assert "missing" in found
