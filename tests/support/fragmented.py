"""A segment of large, scattered updates, as an engine leaves it whose handler releases one record in twenty of a large
window: the released ones are acquired and released again in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.delta.location import Location
from share_spark.state.commits import CommitNote
from share_spark.state.tables import LOG_COLUMNS, ensure_tables, log_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.partition import SharePartition
    from share_spark.state.state_store import DeltaShareStateStore

GROUP = "fragmented"
STRIDE = 20
TIME_MS = 5_000
"""Of the last micro-batch."""

_RANGES = f"transform(sequence(0L, {{ranges}}L - 1), i -> named_struct('first_offset', i * {STRIDE}L{{first}}, "
_RANGES += f"'last_offset', i * {STRIDE}L + {{last}}L, {{rest}}))"
_HELD = "'delivery_count', CAST(batch AS SMALLINT), 'member_id', 'spark-dead', 'lock_deadline_ms', 9L"
_RELEASED = "'delivery_state', 0Y, 'delivery_count', CAST(batch AS SMALLINT)"
_FINISHED = "'delivery_state', 2Y, 'delivery_count', 1S"


def write_segment(spark: SparkSession, location: Location, *, partitions: int, ranges: int, updates: int) -> None:
    """Two commits: the snapshots, and all updates at once, in files by micro-batch. Odd micro-batches acquire, even
    ones release."""
    ensure_tables(spark, location)
    _append(spark, location, partitions, ranges, range(1))
    _append(spark, location, partitions, ranges, range(1, updates + 1))


def _append(spark: SparkSession, location: Location, partitions: int, ranges: int, batches: range) -> None:
    places = spark.range(partitions).selectExpr("CAST(id AS INT) AS partition")
    micro_batches = spark.range(batches.start, batches.stop).selectExpr("id AS batch")
    rows = places.crossJoin(micro_batches).repartitionByRange(8, "batch").selectExpr("*", *_derived(ranges))
    schema = spark.createDataFrame([], LOG_COLUMNS).schema
    note = CommitNote(GROUP, "records", 1, "dead", 0, batches[-1], TIME_MS)
    columns = [rows[field.name].cast(field.dataType) for field in schema.fields]
    log_table(location).append(rows.select(columns), {"userMetadata": note.to_json()})


def _derived(ranges: int) -> list[str]:
    scattered = _RANGES.format(ranges=ranges, first="", last=0, rest=_RELEASED)
    held = _RANGES.format(ranges=ranges, first="", last=0, rest=_HELD)
    finished = _RANGES.format(ranges=ranges, first=" + 1", last=STRIDE - 1, rest=_FINISHED)
    constants = {"group_id": f"'{GROUP}'", "segment": "0", "topic": "'wide'", "topic_id": "'AAAAAAAAAAAAAAAAAAAAAQ'"}
    constants |= dict.fromkeys(("snapshot_epoch", "state_epoch", "leader_epoch"), "0")
    constants |= {"start_offset": "IF(batch = 0, 0L, -1L)", "kind": "IF(batch = 0, 'ShareSnapshot', 'ShareUpdate')"}
    released = f"IF(batch % 2 = 0, {scattered}, array())"
    constants |= {"state_batches": f"IF(batch = 0, concat({scattered}, {finished}), {released})"}
    constants |= {"acquired": f"IF(batch % 2 = 1, {held}, array())", "ended": "array()"}
    constants |= dict.fromkeys(set(_names()) - constants.keys() - {"partition", "batch_id"}, "NULL")
    constants |= {"writer_epoch": "1L", "run_id": "'dead'", "batch_id": "batch", "at_ms": f"{TIME_MS}L"}
    constants |= {"written_at": "current_timestamp()"}
    return [f"{text} AS {name}" for name, text in constants.items()]


def _names() -> list[str]:
    return [column.split(" ", 1)[0] for column in LOG_COLUMNS.split(", ")]


def read_into_python(rows: DataFrame) -> None:
    """What reading costs: each row as Python objects, by Arrow's own means."""
    rows.mapInArrow(_count_objects, "n bigint").collect()


def _count_objects(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"n": [len(batch.to_pylist())]})


def states_of(store: DeltaShareStateStore) -> list[SharePartition]:
    """The live states."""
    assert store.live is not None
    return [state for _, state in store.live.states.values()]
