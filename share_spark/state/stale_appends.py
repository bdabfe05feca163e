"""Stale appends of fenced writers: made by an engine after another one had claimed the group. They are not valid.

An append is valid only if no higher epoch was claimed at a lower version of the table. An engine looks for claims right
after each append and stops at one, so only the last append of an epoch can be late. Whether it is depends on the
versions of two commits, which are found by the notes in them. Log clean-up removes the oldest commits first, so a
commit that is gone came before all that are there. If both the append and the claim are gone, the rows have to suffice:
an append is late if it is in the segment of the claim, which it then cannot have seen, or if it was written later by
the writers' clocks. One case is not recognized: an append that was delayed since before the claim, in a log whose
commits of that time are gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from share_spark.delta.location import Location
from share_spark.model.ids import BatchStamp
from share_spark.spark import functions as F
from share_spark.state.record_rows import CLAIM
from share_spark.state.tables import load_log, log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class EpochRows(NamedTuple):
    """The rows of one writer epoch of a group. The first two fields are of its first row, a claim if that is kept;
    ``last_batch`` None: it has appended only its claim. Times in microseconds since the epoch."""

    first_segment: int
    began_at_us: int
    last_batch: int | None
    last_segment: int | None
    last_at_us: int | None


class EpochNotes(NamedTuple):
    """Versions of the claim and of the last append of an epoch; None: that commit is gone or was never made."""

    claim: int | None = None
    last_append: int | None = None


_GONE = EpochNotes()


def late_appends(rows: Mapping[int, EpochRows], notes: Mapping[int, EpochNotes]) -> list[BatchStamp]:
    """Return the late appends of one group; both arguments are by writer epoch."""
    return [
        BatchStamp(epoch, found.last_batch)
        for epoch, found in rows.items()
        if found.last_batch is not None
        and any(_is_late(epoch, other, rows, notes) for other in rows.keys() | notes.keys())
    ]


def _is_late(epoch: int, other: int, rows: Mapping[int, EpochRows], notes: Mapping[int, EpochNotes]) -> bool:
    """Return whether the last append of ``epoch`` was made after the claim of ``other``."""
    append, claim = notes.get(epoch, _GONE).last_append, notes.get(other, _GONE).claim
    if other <= epoch:
        return False
    if append is not None:
        # Log clean-up removes the oldest commits first: a claim that is gone came before an append that is there.
        return claim is None or claim < append
    # And an append that is gone came before a claim that is there.
    return claim is None and other in rows and _looks_late(rows[epoch], rows[other])


def _looks_late(found: EpochRows, other: EpochRows) -> bool:
    assert found.last_segment is not None
    assert found.last_at_us is not None
    return found.last_segment >= other.first_segment or found.last_at_us > other.began_at_us


def late_appends_at(
    spark: SparkSession, location: Location, version: int, group_id: str | None = None
) -> dict[str, list[BatchStamp]]:
    """Return the late appends by group, of one group or of all, as of ``version`` of the log. Two Spark jobs, the
    second only if a group has had several engines."""
    rows = _rows_by_epoch(load_log(spark, log_table(location), version), group_id)
    # An engine without a successor was never fenced.
    if all(len(epochs) == 1 for epochs in rows.values()):
        return {}
    notes = _notes_by_epoch(_commit_notes(spark, log_table(location).directory(spark), version))
    return {group: late_appends(epochs, notes.get(group, {})) for group, epochs in rows.items()}


def _rows_by_epoch(log: DataFrame, group_id: str | None) -> dict[str, dict[int, EpochRows]]:
    frame = log if group_id is None else log.where(F.col("group_id") == group_id)
    at = F.unix_micros("written_at")
    order = F.when(F.col("kind") != CLAIM, F.col("batch_id"))
    spans = frame.groupBy("group_id", "writer_epoch").agg(
        F.min("segment").alias("first_segment"),
        F.min(at).alias("began_at_us"),
        F.max(order).alias("last_batch"),
        F.max_by("segment", order).alias("last_segment"),
        F.max_by(at, order).alias("last_at_us"),
    )
    return _by_group(
        (
            row.group_id,
            row.writer_epoch,
            EpochRows(row.first_segment, row.began_at_us, row.last_batch, row.last_segment, row.last_at_us),
        )
        for row in spans.collect()
    )


_NOTE = "share_spark int, group_id string, kind string, writer_epoch bigint, batch_id bigint"


def _commit_notes(spark: SparkSession, directory: str, version: int) -> DataFrame:
    """Return ``version`` and the fields of our note, for each commit that still exists. Spark reads them, not one by
    one: a log that keeps its history has as many commits as micro-batches."""
    files = spark.read.schema("commitInfo struct<userMetadata:string>").option("ignoreMissingFiles", "true")
    commits = files.json(f"{directory.rstrip('/')}/_delta_log/{'[0-9]' * 20}.json")
    number = F.substring(F.col("_metadata.file_name"), 1, 20).cast("bigint")
    notes = commits.select(number.alias("version"), F.from_json("commitInfo.userMetadata", _NOTE).alias("note"))
    return notes.where((F.col("version") <= version) & (F.col("note.share_spark") == 1)).select("version", "note.*")


def _notes_by_epoch(notes: DataFrame) -> dict[str, dict[int, EpochNotes]]:
    is_claim = F.col("kind") == CLAIM
    found = notes.groupBy("group_id", "writer_epoch").agg(
        F.min(F.when(is_claim, F.col("version"))).alias("claim"),
        F.max_by("version", F.when(~is_claim, F.col("batch_id"))).alias("last_append"),
    )
    return _by_group(
        (row.group_id, row.writer_epoch, EpochNotes(row.claim, row.last_append)) for row in found.collect()
    )


def _by_group(found: Iterable[tuple[str, int, Any]]) -> dict[str, dict[int, Any]]:
    groups: dict[str, dict[int, Any]] = defaultdict(dict)
    for group_id, epoch, value in found:
        groups[group_id][epoch] = value
    return groups
