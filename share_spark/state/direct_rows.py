"""The rows of the state log that count, read without a Spark job: a restart with a small state is ready in
milliseconds, and a look at a group needs no JVM."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.state.commits import CommitNote
from share_spark.state.log_rows import LOG_SCHEMA
from share_spark.state.record_rows import CLAIM

MOST_BYTES = 8 << 20
"""Of the files of a segment: about a million ranges, some seconds in Python. Spark reads larger ones in parallel."""


def rows_that_count(log: TableLog, directory: str, valid: CommitNote, most_bytes: int = MOST_BYTES) -> pa.Table:
    """The records (LOG_SCHEMA) up to ``valid``, the last commit of the group that counts, in the order of the
    micro-batches; no claims. ``log`` keeps files. Raises UnknownTableError: only Spark can, or should, read them."""
    wanted = {"group_id": valid.group_id, "segment": str(valid.segment)}
    if not log.keeps_files:
        raise UnknownTableError("the table has many files")
    files = {path: file for path, file in log.active.items() if dict(file.values) == wanted}
    if sum(file.size for file in files.values()) > most_bytes:
        raise UnknownTableError("the segment is large")
    if not all(file.is_whole for file in files.values()):
        raise UnknownTableError("rows of its files are deleted")
    rows = pa.concat_tables([LOG_SCHEMA.empty_table(), *_tables(log, directory, files)])
    counts = (pc.field("writer_epoch") == valid.writer_epoch) & (pc.field("batch_id") <= valid.batch_id)
    return rows.filter(counts & (pc.field("kind") != CLAIM)).sort_by("batch_id")


def _tables(log: TableLog, directory: str, paths: Iterable[str]) -> Iterator[pa.Table]:
    for path in paths:
        if ":/" in path or path.startswith("/"):
            raise UnknownTableError("it has files of another table")
        content = log.files.storage.read(f"{directory.rstrip('/')}/{unquote(path)}")
        if content is None:
            raise UnknownTableError(f"its file {path} is gone")
        yield pq.read_table(io.BytesIO(content)).select(LOG_SCHEMA.names).cast(LOG_SCHEMA)
