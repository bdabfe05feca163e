"""Recovery: how long until an engine has its state back, against merely reading the same rows into Python objects?

Broad: 10,000 share-partitions with a snapshot and 100 updates each, in 101 commits, as an engine that accepts
everything would have written them. Fragmented: 4 share-partitions, 50,000 ranges in each update. (An
engine would have started a new segment long before: this is the worst that can be met.)
"""

from __future__ import annotations

import os
import resource

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from share_spark.delta.location import Location
from share_spark.state.commits import CommitNote
from share_spark.state.group_log import FEW_ROWS, GroupLog
from share_spark.state.record_rows import CLAIM
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.state.tables import LOG_COLUMNS, ensure_tables, log_table
from tests.bench.harness import Measure, compare, report, say, seconds_in_turn
from tests.bench.workloads import Scratch
from tests.support import fragmented

PARTITIONS = int(os.environ.get("BENCH_BREADTH", "10000"))
UPDATES = int(os.environ.get("BENCH_UPDATES", "100"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
FRAGMENTED = [int(size) for size in os.environ.get("BENCH_FRAGMENTED", "4,50000,500").split(",")]
"""Share-partitions, ranges in an update, updates."""

GROUP = "recovery"

_RECORD = """
'{group}' AS group_id, 0 AS segment, '{kind}' AS kind, 'wide' AS topic, 'AAAAAAAAAAAAAAAAAAAAAQ' AS topic_id,
CAST(id AS INT) AS partition, 0 AS snapshot_epoch, 0 AS state_epoch, 0 AS leader_epoch, {start}L AS start_offset,
array() AS state_batches, array(named_struct('first_offset', {start}L, 'last_offset', {start}L + 9,
'delivery_count', 1S, 'member_id', 'spark-dead', 'lock_deadline_ms', 30000L)) AS acquired, array() AS doubts,
array() AS delays, array() AS ended, array() AS errors, 1L AS writer_epoch, 'dead' AS run_id,
CAST(NULL AS STRING) AS query_id, {batch}L AS batch_id, 0L AS at_ms, current_timestamp() AS written_at
"""


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met?"""
    scratch = Scratch()
    say(f"recovery: {PARTITIONS:,} share-partitions, {UPDATES} updates each; {ROUNDS} rounds")
    location = Location.parse(scratch.fresh("state"))
    _write(spark, location)
    rows = log_table(location).load(spark).where(f"group_id = '{GROUP}' AND kind <> '{CLAIM}'")
    seconds = seconds_in_turn(
        {
            "ours": lambda: _recover(spark, location),
            "python": lambda: fragmented.read_into_python(rows),
            "jvm": lambda: rows.write.format("noop").mode("overwrite").save(),
        },
        ROUNDS,
    )
    measures = [
        compare(
            "claim and state rebuilt / rows read into Python objects, s", seconds["ours"], seconds["python"], "<= 1.2"
        ),
        compare("the same / rows read by the JVM alone, s", seconds["ours"], seconds["jvm"]),
    ]
    met = report("recovery", "Recovery", measures)
    met = _fragmented(spark, scratch) and met
    scratch.close()
    return met


def _fragmented(spark: SparkSession, scratch: Scratch) -> bool:
    partitions, ranges, updates = FRAGMENTED
    say(f"fragmented: {partitions} share-partitions, {updates} updates of {ranges:,} ranges each; 1 warm-up, 1 round")
    location = Location.parse(scratch.fresh("fragmented"))
    fragmented.write_segment(spark, location, partitions=partitions, ranges=ranges, updates=updates)
    # Spark's own settings would have 4,096 rows of a megabyte in memory at a time.
    for key, value in FEW_ROWS.items():
        spark.conf.set(key, value)
    rows = log_table(location).load(spark).where(f"group_id = '{fragmented.GROUP}' AND kind <> '{CLAIM}'")
    runs = {
        "ours": lambda: _recover(spark, location, fragmented.GROUP, partitions),
        "python": lambda: fragmented.read_into_python(rows),
    }
    seconds_in_turn(runs, 1)
    seconds = seconds_in_turn(runs, 1)
    measures = [
        compare(
            "claim and state rebuilt / rows read into Python objects, s", seconds["ours"], seconds["python"], "<= 1.5"
        ),
        Measure(
            measure="peak memory of the driver's Python, MB",
            ours=_peak_mb(),
            peer=None,
            ratio=None,
            goal=None,
            met=None,
        ),
    ]
    return report("recovery-fragmented", "Recovery of a fragmented segment", measures)


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024


def _write(spark: SparkSession, location: Location) -> None:
    ensure_tables(spark, location)
    empty = spark.createDataFrame([], LOG_COLUMNS)
    for batch in range(UPDATES + 1):
        kind = "ShareUpdate" if batch else "ShareSnapshot"
        record = _RECORD.format(group=GROUP, kind=kind, start=batch * 10, batch=batch)
        rows = spark.range(PARTITIONS).selectExpr(*_columns(record))
        note = CommitNote(GROUP, "records", 1, "dead", 0, batch)
        log_table(location).append(_as_log(rows, empty), {"userMetadata": note.to_json()})


def _columns(record: str) -> list[str]:
    """Split at the commas between columns, not at those inside calls."""
    depth, start, found = 0, 0, []
    for at, letter in enumerate(record):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append(record[start:at])
            start = at + 1
    return [*found, record[start:]]


def _as_log(rows: DataFrame, empty: DataFrame) -> DataFrame:
    """``rows`` in the types of the log, in one file. Columns that only some rows of the log have are null."""
    found = {name: rows[name] for name in rows.columns}
    columns = [found.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in empty.schema.fields]
    return rows.select(columns).coalesce(1)


def _recover(spark: SparkSession, location: Location, group_id: str = GROUP, partitions: int = PARTITIONS) -> None:
    """A restart: the claim, and the state of every share-partition."""
    log = GroupLog(spark=spark, location=location, group_id=group_id, run_id=os.urandom(4).hex())
    store = DeltaShareStateStore(log=log, updates_per_snapshot=500)
    store.claim()
    assert len(store.load()) == partitions
