"""Rows of the state log as Spark makes them: the records of a micro-batch, or one claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from share_spark.delta.location import sql_literal
from share_spark.state.buckets import RECORD
from share_spark.state.record_rows import CLAIM
from share_spark.state.tables import LOG_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.state.commits import CommitNote

_TYPES = dict(column.split(" ", 1) for column in LOG_COLUMNS.split(", "))
_WRITTEN_AT = "current_timestamp() AS written_at"


def claim_row(spark: SparkSession, note: CommitNote) -> DataFrame:
    """The row of a claim."""
    row: dict[str, int | str | None] = {"group_id": note.group_id, "segment": note.segment, "kind": CLAIM}
    row |= {"writer_epoch": note.writer_epoch, "run_id": note.run_id, "at_ms": note.at_ms}
    return spark.range(0, 1, 1, 1).selectExpr(*_typed(row), _WRITTEN_AT)


def record_rows(frame: DataFrame, note: CommitNote, query_id: str | None) -> DataFrame:
    """The records in a frame of ``buckets``, with their stamps, in one file."""
    key: dict[str, int | str | None] = {"group_id": note.group_id, "segment": note.segment}
    stamp: dict[str, int | str | None] = {
        "writer_epoch": note.writer_epoch,
        "run_id": note.run_id,
        "query_id": query_id,
        "batch_id": note.batch_id,
        "at_ms": note.at_ms,
    }
    # One file: readers open as many files as there are micro-batches in a segment, not times the number of tasks.
    columns = [*_typed(key), "record.*", *_typed(stamp), _WRITTEN_AT]
    return frame.where(f"row = {RECORD}").selectExpr(*columns).coalesce(1)


def _typed(values: Mapping[str, int | str | None]) -> list[str]:
    """Constants as SQL text: a tenth of the calls into the JVM that building them as columns takes."""
    return [f"CAST({sql_literal(value)} AS {_TYPES[name]}) AS {name}" for name, value in values.items()]
