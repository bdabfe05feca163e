"""The small files of an output table: each micro-batch makes some, and nothing joins them by itself."""

from __future__ import annotations

from share_spark.admin.table_files import log_without_spark
from share_spark.delta.location import Location
from share_spark.delta.table_log import UnknownTableError
from share_spark.model.errors import ShareError

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
