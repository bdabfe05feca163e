"""Files of our tables, and whether many of them are small, without Spark."""

from __future__ import annotations

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.location import Location
from share_spark.delta.table_log import MOST_CHECKPOINT_BYTES, TableLog, UnknownTableError
from share_spark.model.errors import ConfigError, ShareError
from share_spark.spark.public_files import files_without_spark
from share_spark.state.tables import LOG_TABLE, log_table


def log_without_spark(place: Location, version: int | None = None) -> TableLog | None:
    """Return the log of the table with its files, at its latest or at ``version``; None if there is no table. Raises
    ConfigError (``place`` is a name of the catalog), UnknownTableError (only Spark can read it)."""
    files = commits_without_spark(place)
    if not files.is_table():
        return None
    return TableLog.open(files, keeps_files=True, most_bytes=MOST_CHECKPOINT_BYTES, version=version)


def state_log_without_spark(location: str) -> Location:
    """Return the state log in ``location`` (a directory). Raises ConfigError: that is a name of the catalog."""
    place = Location.parse(location)
    if place.path is None:
        raise ConfigError(
            f"{location} is a name of the catalog, which only Spark can look up: give the directory in which "
            f"{LOG_TABLE} is (in Spark: DESCRIBE DETAIL {log_table(place)})"
        )
    return log_table(place)


def commits_without_spark(place: Location) -> CommitFiles:
    """Return the files of a table's log; there may be none. Raises ConfigError (``place`` is a name of the catalog)."""
    if place.path is None:
        raise ConfigError(
            f"{place} is a name of the catalog, which only Spark can look up: give the directory of the table (in "
            f"Spark: DESCRIBE DETAIL {place})"
        )
    return CommitFiles(files_without_spark(place.path), place.path)


SMALL_BYTES = 16 << 20
MANY = 100
"""The least number of small files that is reported."""


def small_files_text(table: str) -> str:
    """Return how many there are and what joins them; empty for few, or if only Spark can read ``table``."""
    place = Location.parse(table)
    try:
        log = log_without_spark(place)
    except (ShareError, UnknownTableError, OSError):
        return ""
    sizes = [file.size for file in log.active.values()] if log is not None else []
    small = sum(size < SMALL_BYTES for size in sizes)
    if small < MANY:
        return ""
    return f"{small:,} of {len(sizes):,} files are smaller than 16 MB; this joins them: OPTIMIZE {place.sql_name()}"
