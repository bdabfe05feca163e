"""The files of a topic table and their records, by the table's log: for workers that open them without Spark.

There is no answer where a plain Parquet reader would not see what Spark sees, or would need too much memory for it: a
table on another storage than a file system, with deletion vectors or renamed columns, files with large row groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.delta.table_log import ActiveFile, TableLog, is_elsewhere
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.model.ids import LogEnds, TopicPartition
from share_spark.spark.public_files import local_path
from share_spark.topics.topic_file_rows import RecordFile, TopicFileReader, that_hold

MOST_FILES = 30_000
"""The most files of a table. Its log is searched for new ones after each commit."""

MOST_ROW_GROUP_BYTES = 64 << 20
"""The most bytes of a row group of a file, uncompressed. A worker decodes a row group from its beginning, and so do all
micro-batches that take a part of it: Spark reads large ones better."""

_COLUMNS = frozenset({"offset", "timestamp", "key", "value", "headers"})


@dataclass(slots=True)
class TopicFiles:
    """The files of the table in ``log``, which keeps its files, as of its version. ``_found``: each file by its path in
    the log; None: Spark has to read it."""

    log: TableLog
    _found: dict[str, RecordFile | None] = field(default_factory=dict)
    _plain: dict[str, bool] = field(default_factory=dict)
    _by_partition: dict[TopicPartition, list[RecordFile]] = field(default_factory=dict)
    _by_spark: set[TopicPartition] = field(default_factory=set)
    _version: int = -1

    def holding(
        self, acquired: Sequence[AcquiredSpan], ends: Mapping[str, Mapping[int, LogEnds]]
    ) -> TopicFileReader | None:
        """Return a reader of the files that may hold acquired records, without records below the log start; None: Spark
        has to read them. ``ends``: of each topic, by partition."""
        if not self.is_readable():
            return None
        self._catch_up()
        found: dict[TopicPartition, Sequence[RecordFile]] = {}
        for at, ranges, *_ in acquired:
            files = that_hold(self._by_partition.get(at, ()), ranges)
            if at in self._by_spark or not all(self._is_plain(file.path) for file in files):
                return None
            end = ends[at.topic].get(at.partition)
            found[at] = _above(files, end.log_start_offset if end is not None else 0)
        return TopicFileReader(found)

    def is_readable(self) -> bool:
        """Return whether a plain Parquet reader sees the records of the table."""
        log = self.log
        has_plain_names = log.properties.get("delta.columnMapping.mode", "none") == "none"
        is_local = log.files.local_directory is not None
        return has_plain_names and is_local and log.keeps_files and len(log.active) <= MOST_FILES

    def _catch_up(self) -> None:
        if self._version == self.log.version:
            return
        active = self.log.active
        for name in self._found.keys() - active.keys():
            gone = self._found.pop(name)
            self._plain.pop(gone.path if gone is not None else "", None)
        for name in active.keys() - self._found.keys():
            self._found[name] = self._record_file(name, active[name])
        self._by_partition, self._by_spark = {}, set()
        for name, found in self._found.items():
            if found is None:
                self._by_spark.add(partition_of(active[name]))
            else:
                self._by_partition.setdefault(found.partition, []).append(found)
        for files in self._by_partition.values():
            files.sort(key=attrgetter("first_offset"))
        self._version = self.log.version

    def _record_file(self, name: str, file: ActiveFile) -> RecordFile | None:
        if not file.is_whole or is_elsewhere(name):
            return None
        extent = offsets_of(file)
        if extent is None:
            return None
        path = local_path(f"{self.log.files.directory}/{unquote(name)}")
        return RecordFile(str(path), partition_of(file), *extent)

    def _is_plain(self, path: str) -> bool:
        """Return whether a worker can read the file. Checked once: a file never changes."""
        if path not in self._plain:
            self._plain[path] = _is_plain(path)
        return self._plain[path]


def _above(files: Sequence[RecordFile], start: int) -> Sequence[RecordFile]:
    """Return ``files``, with records from ``start`` on."""
    if all(file.first_offset >= start for file in files):
        return files
    kept = (file for file in files if file.last_offset >= start)
    return [file._replace(first_offset=max(file.first_offset, start)) for file in kept]


def partition_of(file: ActiveFile) -> TopicPartition:
    """Return the topic-partition of all records in the file."""
    return TopicPartition(unquote(file.values["topic"]), int(file.values["partition"]))


def offsets_of(file: ActiveFile) -> tuple[int, int] | None:
    """Return the first and the last offset, by the file's statistics; None if these do not have them."""
    stats = json.loads(file.stats or "{}")
    first, last = (stats.get(which, {}).get("offset") for which in ("minValues", "maxValues"))
    return None if first is None or last is None else (int(first), int(last))


def _is_plain(path: str) -> bool:
    """Return whether a worker gets all columns from the file, in little memory."""
    try:
        found = pq.read_metadata(path)
        names = set(found.schema.to_arrow_schema().names)
    except (OSError, pa.ArrowException):
        return False
    sizes = (found.row_group(number).total_byte_size for number in range(found.num_row_groups))
    return names >= _COLUMNS and max(sizes, default=0) <= MOST_ROW_GROUP_BYTES
