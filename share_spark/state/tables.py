"""The tables under a state location: their columns, their properties, and a check that they are ours.

Two tables per location, shared by all groups that use it:
- ``share_state_log``: the truth. Append-only rows (ShareSnapshot and ShareUpdate; GroupSnapshot and GroupUpdate, of
  members; claims) partitioned by group and segment.
- ``share_partition_state``: the status table, for users. One row per share-partition, rewritten now and then; the
  engine never reads it.

Settings are table properties, so that a session passed in by the user is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_metadata import add_missing_columns, change_properties
from share_spark.delta.location import Location
from share_spark.delta.noted_rows import FILED, NotedRows, notes_between, table_of
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.errors import StateError
from share_spark.spark import functions as F
from share_spark.spark.on_demand import AnySpark, session_of
from share_spark.spark.schemas import columns_in, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT_VERSION = 2

NOTED_FORMAT_VERSION = 3
"""The version of a log whose newest rows may stand in the notes of their commits (``noted_rows``). Releases that do not
know these would miss rows."""

STATE_BATCHES = "array<struct<first_offset:bigint,last_offset:bigint,delivery_state:tinyint,delivery_count:smallint>>"
ACQUIRED = (
    "array<struct<first_offset:bigint,last_offset:bigint,delivery_count:smallint,"
    "member_id:string,lock_deadline_ms:bigint>>"
)
DELAYS = "array<struct<first_offset:bigint,last_offset:bigint,lock_deadline_ms:bigint>>"
DOUBTS = "array<struct<first_offset:bigint,last_offset:bigint,doubt:tinyint>>"
EXCUSED = "array<struct<first_offset:bigint,last_offset:bigint,excused:smallint>>"
ENDED = "array<struct<first_offset:bigint,last_offset:bigint,delivery_count:smallint,outcome:string>>"
ERRORS = "array<struct<first_offset:bigint,last_offset:bigint,delivery_count:smallint,error:string>>"
GROUP_RECORDS = "array<struct<kind:tinyint,member_id:string,record:string>>"

RECORD_COLUMNS = (
    "kind string, topic string, topic_id string, partition int, snapshot_epoch int, state_epoch int, "
    f"leader_epoch int, start_offset bigint, state_batches {STATE_BATCHES}, acquired {ACQUIRED}, doubts {DOUBTS}, "
    f"delays {DELAYS}, excused {EXCUSED}, ended {ENDED}, errors {ERRORS}, "
    f"group_records {GROUP_RECORDS}"
)
"""The columns of a record. ``state_batches`` is the KIP's form (R74) without Acquired. ``acquired`` and ``doubts`` are
ours: the ranges with their member and lock deadline, which keep counts exact, and those of either column that a crash
has put in doubt. So are ``delays``, the Available ranges that are not acquired before a time, and ``excused``, how many
deliveries of a range do not count towards the limit; null if there are none. ``ended`` and ``errors`` are for the audit
alone, and empty or null unless history is kept: how attempts ended, and the reasons of those in ``ended`` (by their
first offset) that have one. ``start_offset`` -1 in an update: not moved. ``group_records``: members, epochs and
assignments, as Kafka's records of a group; a row with them has nothing else."""

STAMP_COLUMNS = (
    "writer_epoch bigint, run_id string, query_id string, batch_id bigint, at_ms bigint, written_at timestamp"
)
"""The writer and the time: a row is valid only if no higher epoch was claimed at a lower table version. ``at_ms``: the
time of the micro-batch, by which locks are judged; ``written_at``: the writer's clock."""

PARTITION_COLUMNS = ("group_id", "segment")
"""The partition columns of the log."""

LOG_COLUMNS = f"group_id string, segment int, {RECORD_COLUMNS}, {STAMP_COLUMNS}"

IN_FLIGHT = (
    "array<struct<first_offset:bigint,last_offset:bigint,state:string,delivery_count:smallint,"
    "member_id:string,lock_deadline:timestamp>>"
)

STATE_COLUMNS = (
    "group_id string, topic string, topic_id string, partition int, start_offset bigint, end_offset bigint, "
    "available bigint, acquired bigint, acknowledged bigint, archived bigint, delayed bigint, max_delivery_count int, "
    f"next_lock_deadline timestamp, next_available timestamp, in_flight {IN_FLIGHT}, "
    "state_epoch int, snapshot_epoch int, writer_epoch bigint, as_of_batch bigint, updated_at timestamp"
)
"""One row per share-partition: SPSO, SPEO (exclusive), number of offsets of the window in each state, the ranges.
``delayed``: how many of the available ones are not acquired before a time; ``next_available``: the first of these
times."""

LOG_TABLE = "share_state_log"
STATE_TABLE = "share_partition_state"

_FORMAT = "share_spark.format.version"
_COMMON = {_FORMAT: str(FORMAT_VERSION)}
_LOG_PROPERTIES = {
    **_COMMON,
    "share_spark.table": LOG_TABLE,
    # Ten commits a checkpoint, Delta's default, would cost a second every ten micro-batches.
    "delta.checkpointInterval": "200",
    # Readers prune by partition; column statistics of a log row are never used and cost time in each append.
    "delta.dataSkippingNumIndexedCols": "0",
}
_STATE_PROPERTIES = {
    **_COMMON,
    "share_spark.table": STATE_TABLE,
    "delta.checkpointInterval": "100",
    "delta.dataSkippingNumIndexedCols": "0",
}


def log_table(location: Location) -> Location:
    """Return the log of records below a state location."""
    return location.table(LOG_TABLE)


def state_table(location: Location) -> Location:
    """Return the status table below a state location."""
    return location.table(STATE_TABLE)


def load_log(session: SparkSession, table: Location, version: int) -> DataFrame:
    """Return the log ``table`` as of ``version`` with LOG_COLUMNS, and with the rows in the notes of commits. One that
    no engine of this release has opened may lack some columns."""
    log = table.load(session, version)
    columns = columns_in(LOG_COLUMNS)
    missing = [field for field in spark_schema(columns) if field.name not in log.columns]
    if missing:
        log = log.withColumns({field.name: F.lit(None).cast(field.dataType) for field in missing})
    noted = _noted_rows(session, table, version)
    if not noted:
        return log
    return log.unionByName(session.createDataFrame(table_of(noted, columns), spark_schema(columns)))


def _noted_rows(session: SparkSession, table: Location, version: int) -> Sequence[NotedRows]:
    """Return the rows that are in no file as of ``version``."""
    files = CommitFiles.at(session, table.directory(session))
    try:
        return TableLog.open(files, version=version).noted
    except UnknownTableError:
        may_have = table.properties(session).get(_FORMAT) == str(NOTED_FORMAT_VERSION)
        return _noted_rows_before(files, version) if may_have else ()


def _noted_rows_before(files: CommitFiles, version: int) -> Sequence[NotedRows]:
    """Return the same where only Spark can read the table: by the newest commit that says what is in files. The first
    commit with rows that are not says it, too."""
    newest = version
    while (commit := files.read(newest)) is not None and FILED not in commit.transactions:
        newest -= 1
    return () if commit is None else notes_between(files, commit.transactions[FILED] + 1, version, PARTITION_COLUMNS)


def ensure_tables(spark: AnySpark, location: Location) -> None:
    """Create the tables unless they exist, and add the columns that older releases did not have, and that do not
    disturb them; refuse a place that is not ours. Raises StateError and then has changed nothing."""
    found = check_place(spark, location)
    log, state = log_table(location), state_table(location)
    if log in found:
        add_missing_columns(spark, log, found[log], LOG_COLUMNS)
    else:
        if state in found:
            session = session_of(spark, f"{state} has rows of a log that was removed")
            state.delta_table(session).delete()
        log.create(spark, LOG_COLUMNS, partitioned_by=PARTITION_COLUMNS, properties=_LOG_PROPERTIES)
    if state not in found:
        state.create(
            spark, f"{STATE_COLUMNS}, bucket int", partitioned_by=("group_id", "bucket"), properties=_STATE_PROPERTIES
        )


def allow_noted_rows(spark: AnySpark, directory: str) -> bool:
    """Let commits to the log in ``directory`` have rows in their notes; return whether they may. Not where only Spark
    can change the table."""
    wanted = {_FORMAT: str(NOTED_FORMAT_VERSION)}
    files = CommitFiles.at(spark, directory)
    try:
        if TableLog.open(files).properties.get(_FORMAT) != wanted[_FORMAT]:
            change_properties(files, wanted)
    except NotImplementedError:
        return False
    return True


def check_place(spark: AnySpark, location: Location) -> dict[Location, TableLog | None]:
    """Return the existing tables of ours with their logs, None where only Spark can read them. Raises StateError if the
    place holds anything that is not ours."""
    if location.path is not None and location.exists(spark):
        raise StateError(f"state location {location} is itself a Delta table, not a place for share-group state")
    tables = (log_table(location), state_table(location))
    return {table: _checked_log(spark, table) for table in tables if not table.is_free(spark)}


def _checked_log(spark: AnySpark, table: Location) -> TableLog | None:
    log = table.log(spark) if table.exists(spark) else None
    if log is None:
        check_table(spark, table)
    else:
        check_properties(str(table), log.properties)
    return log


def check_table(spark: AnySpark, table: Location) -> None:
    """Check that this is one of our tables, of a version that we can read. Raises StateError."""
    check_properties(str(table), table.properties(spark) if table.exists(spark) else {})


def check_properties(table: str, properties: Mapping[str, str]) -> None:
    """Check ``properties`` of the table, none if there is no Delta table. Raises StateError as ``check_table``."""
    version = properties.get(_FORMAT)
    if version is None:
        raise StateError(f"state location holds something else: {table} is not a table of share_spark")
    if not FORMAT_VERSION <= int(version) <= NOTED_FORMAT_VERSION:
        age = "a newer" if int(version) > FORMAT_VERSION else "an older"
        raise StateError(
            f"{table} was written by {age} share_spark (format {version}, this one reads {FORMAT_VERSION} and "
            f"{NOTED_FORMAT_VERSION})"
        )


def check_location(spark: AnySpark, location: Location) -> None:
    """Check, for readers, that the log exists and is ours. Raises StateError."""
    if log_table(location).is_free(spark):
        raise StateError(f"no share-group state at {location}")
    check_table(spark, log_table(location))
