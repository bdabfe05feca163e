"""The letters of one dead-letter table: read from its files, deleted, and marked as redriven. Without Spark, or with a
session for tables that only Spark reaches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.admin.letters import Letter, LetterFilter, LetterKey, letters_of
from share_spark.admin.redriven_record import redrive_id
from share_spark.admin.table_files import log_without_spark
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.location import Location
from share_spark.delta.table_log import MOST_CHECKPOINT_BYTES, TableLog
from share_spark.delta.table_rows import Change, FileRows, OvertakenError, TableRows
from share_spark.model.errors import ConfigError, DeadLetterError
from share_spark.output.letter_columns import COLUMN_NAMES, check_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StoredLetter(NamedTuple):
    """A letter with the ``path`` of its file."""

    path: str
    letter: Letter


@dataclass(slots=True)
class StoredLetters:
    """The letters of a table. ``place``: its name in messages. Each method raises DeadLetterError, in one line."""

    place: str
    table: TableRows

    @classmethod
    def open(cls, place: Location, spark: SparkSession | None = None) -> StoredLetters:
        """Open the table at its latest version. Raises ConfigError too, for a name of the catalog without ``spark``."""
        with _as_dead_letter_error(place):
            log = log_without_spark(place) if spark is None else _log_by_spark(place, spark)
        if log is None:
            raise DeadLetterError(f"there is no dead-letter table at {place}")
        check_properties(str(place), log.properties)
        table = TableRows(log.files.directory, log)
        if missing := [name for name in COLUMN_NAMES if name not in table.schema.names]:
            raise DeadLetterError(f"dead-letter table {place} has no column {missing[0]}")
        return cls(str(place), table)

    def scan(
        self, where: LetterFilter, columns: Collection[str] = (), paths: Collection[str] | None = None
    ) -> Iterator[FileRows]:
        """Yield the chosen letters of each file that has any: at least these columns."""
        names = list(dict.fromkeys([*where.columns, *columns]))
        with _as_dead_letter_error(self.place):
            for path, rows in self.table.read(names, paths):
                found = where.chosen(rows)
                if found.num_rows:
                    yield FileRows(path, found)

    def letters(self, where: LetterFilter, paths: Collection[str] | None = None) -> Iterator[StoredLetter]:
        """Yield the letters of each file in the order in which they were archived."""
        order: list[Any] = [(name, "ascending") for name in ("archived_at", "topic", "partition", "offset")]
        for path, rows in self.scan(where, COLUMN_NAMES, paths):
            for letter in letters_of(rows.sort_by(order)):
                yield StoredLetter(path, letter)

    def check_known(self, where: LetterFilter) -> None:
        """Check that there are letters of this group, and of these topics and partitions. Raises ConfigError."""
        if where.group is None and not where.topics:
            return
        with _as_dead_letter_error(self.place):
            known = {row for found in self.table.read(_NAMED) for row in _distinct(found.rows)}
        groups = {group for group, _, _ in known}
        if where.group is not None and where.group not in groups:
            raise ConfigError(f"{self.place} has no letter of group {where.group!r}{_others(groups)}")
        of_group = [row for row in known if where.group in (None, row[0])]
        for topic, partitions in where.topics.items():
            there = {partition for _, name, partition in of_group if name == topic}
            if not there:
                raise ConfigError(
                    f"{self.place} has no letter of topic {topic!r}{_others({n for _, n, _ in of_group})}"
                )
            if missing := sorted(set(partitions) - there):
                raise ConfigError(f"{self.place} has no letter of topic {topic!r}, partition {missing[0]}")

    def check_can_change(self) -> None:
        """Check that letters can be deleted and marked."""
        with _as_dead_letter_error(self.place):
            self.table.check_can_change()

    def delete(self, where: LetterFilter) -> int:
        """Delete the chosen letters of the newest version, in one commit. Returns their number."""

        def judge(rows: pa.Table) -> Change:
            numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
            meant = where.chosen(numbered).column(_NUMBER)
            kept = numbered.filter(pc.invert(pc.is_in(numbered.column(_NUMBER), meant.combine_chunks())))
            return Change(kept.drop_columns([_NUMBER]), len(meant))

        with _as_dead_letter_error(self.place):
            return self.table.change("DELETE", judge)

    def mark(self, sent: Mapping[LetterKey, str], at: datetime, paths: Collection[str]) -> int:
        """Mark letters that were sent under these ids as redriven, in one commit. A letter whose content has changed is
        not marked, since that was not sent. Returns the number of marked ones. ``paths``: the files in which they were;
        if they are in others now, all files are searched, and there are two commits."""
        offsets = pa.array(sorted({key.offset for key in sent}), pa.int64())

        def judge(rows: pa.Table) -> Change:
            ids = _ids_of(rows, offsets, sent)
            return Change(_marked(rows, ids, at), len(ids)) if ids else Change(rows, 0)

        with _as_dead_letter_error(self.place):
            marked = self.table.change("UPDATE", judge, paths)
            # A marked letter has another id now, so it is not marked again.
            return marked if marked == len(sent) else marked + self.table.change("UPDATE", judge)


_NUMBER = "number of the row"
_NAMED = ("group_id", "topic", "partition")


def _log_by_spark(place: Location, spark: SparkSession) -> TableLog | None:
    if not place.exists(spark):
        return None
    files = CommitFiles.at(spark, place.directory(spark))
    return TableLog.open(files, keeps_files=True, most_bytes=MOST_CHECKPOINT_BYTES)


def _distinct(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    grouped = rows.group_by(list(_NAMED)).aggregate([])
    return zip(*(grouped.column(name).to_pylist() for name in _NAMED), strict=True)


def _others(names: Collection[str]) -> str:
    return f": it has {', '.join(sorted(names))}" if names else ": it is empty"


def _ids_of(rows: pa.Table, offsets: pa.Int64Array, sent: Mapping[LetterKey, str]) -> dict[int, str]:
    """Return the ids by the number of the row."""
    meant: Any = pc.indices_nonzero(pc.is_in(rows.column("offset"), offsets))
    letters = letters_of(rows.select(COLUMN_NAMES).take(meant))
    numbered = zip(meant.to_pylist(), letters, strict=True)
    return {number: id_ for number, one in numbered if (id_ := redrive_id(one)) == sent.get(one.identity)}


def _marked(rows: pa.Table, ids: Mapping[int, str], at: datetime) -> pa.Table:
    mask = pa.array([number in ids for number in range(rows.num_rows)], pa.bool_())
    values: dict[str, Any] = {
        "redriven_at": pa.array([at] * len(ids), pa.timestamp("us", "UTC")),
        "redrive_id": pa.array([ids[number] for number in sorted(ids)], pa.string()),
    }
    for name, new in values.items():
        column = pc.replace_with_mask(rows.column(name).combine_chunks(), mask, new)
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows


@contextmanager
def _as_dead_letter_error(place: object) -> Iterator[None]:
    try:
        yield
    except (NotImplementedError, OvertakenError, OSError, pa.ArrowException) as reason:
        raise DeadLetterError(f"dead-letter table {place}: {reason}") from reason
