"""Checkpoints of tables that only this project removes files from, without their tombstones.

A checkpoint of Delta's names each file that has left the table in the last week: VACUUM keeps them. A state log that
takes a hundred commits a second would have sixty million of these names, which each checkpoint repeats. Here they are
left out: VACUUM keeps a file for as long after it was written, and ``log_clean_up`` removes it by the commit in which
it has left the table.

    protocol | metaData | txn, of each writer | add, of each file
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.table_log import MOST_CHECKPOINT_BYTES, TableLog, UnknownTableError

_log = logging.getLogger(__name__)

_TEXTS = pa.map_(pa.string(), pa.string())

_SCHEMA = pa.schema(
    {
        "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
        "metaData": pa.struct(
            [
                ("id", pa.string()),
                ("name", pa.string()),
                ("description", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("createdTime", pa.int64()),
                ("configuration", _TEXTS),
            ]
        ),
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64())]),
        "add": pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", _TEXTS),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
            ]
        ),
        "remove": pa.struct([("path", pa.string()), ("dataChange", pa.bool_())]),
    }
)
"""Delta's names and types. ``remove`` is empty; Spark looks for the column, and for what it requires in it."""

_PLAIN_PROTOCOL = (1, 2)
"""The highest versions (of readers, of writers) whose checkpoints have nothing else."""


def write_own_checkpoint(files: CommitFiles) -> bool:
    """Write a checkpoint of the newest version, read anew; return whether it was written, or was there. Not of a table
    that has, or wants, anything else in it. Raises what the storage raises."""
    try:
        log = TableLog.open(files, keeps_files=True, most_bytes=MOST_CHECKPOINT_BYTES)
        log.check_can_replace()
    except UnknownTableError as reason:
        _log.debug("a checkpoint of %s is left to others: %s", files.directory, reason)
        return False
    if not _is_plain(log):
        return False
    if not log.is_checkpointed:
        rows = list(_rows(log))
        content = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), content)
        files.put_checkpoint(log.version, content.getvalue(), len(rows))
    return True


def _is_plain(log: TableLog) -> bool:
    versions = (log.protocol["minReaderVersion"], log.protocol["minWriterVersion"])
    settings = {name for name in log.properties if name.startswith("delta.checkpoint")}
    return versions <= _PLAIN_PROTOCOL and settings <= {"delta.checkpointInterval"}


def _rows(log: TableLog) -> Iterator[Mapping[str, Any]]:
    yield {"protocol": log.protocol}
    yield {"metaData": log.metadata}
    for app_id, version in log.transactions.items():
        yield {"txn": {"appId": app_id, "version": version}}
    for path, file in log.active.items():
        yield {
            "add": {
                "path": path,
                "partitionValues": file.values,
                "size": file.size,
                "modificationTime": file.written_at_ms,
                "dataChange": False,
                "stats": file.stats,
            }
        }
