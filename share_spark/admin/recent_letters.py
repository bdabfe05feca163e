"""The newest letters of a dead-letter table, for repeated looks: a limited number of files, bytes and letters, and no
file twice. No Spark.

    the newest files, up to the limits  →  letters by error, file by file, kept  →  all together
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.admin.letters import Letter, LetterFilter, letters_of
from share_spark.admin.letters_by_error import LettersByError, by_error, together, with_patterns
from share_spark.admin.stored_letters import StoredLetters
from share_spark.delta.location import Location
from share_spark.delta.table_log import ActiveFile
from share_spark.model.errors import DeadLetterError
from share_spark.output.letter_columns import COLUMN_NAMES

MOST_FILES = 1_000
MOST_BYTES = 256 << 20
MOST_LETTERS = 200_000
"""The limits of a read. The newest file is read even if it has more letters, unless it is larger in bytes."""

_ALL = LetterFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundErrors:
    """The errors of one group, the most frequent first. ``is_cut``: the table has older letters, of this group or of
    others, which were not read."""

    errors: Sequence[LettersByError]
    is_cut: bool


@dataclass(slots=True)
class RecentLetters:
    """The newest letters of the table in ``place`` (a path). The errors of each file are kept between calls, since a
    file never changes. Methods raise ConfigError (``place`` is no path) and DeadLetterError (no such table, of another
    kind, or not readable here)."""

    place: str
    _by_file: dict[str, list[LettersByError]] = field(default_factory=dict)

    def check(self) -> None:
        """Check that the table can be read here."""
        self._opened()

    def by_error(self, group_id: str) -> FoundErrors:
        """Return the errors of a group at the latest version."""
        stored, paths = self._read()
        found = [one for path in paths for one in self._by_file[path] if one.group_id == group_id]
        return FoundErrors(errors=together(found), is_cut=len(paths) < len(stored.table.log.active))

    def unredriven(self) -> dict[str, int]:
        """Return, by group, how many of the letters that are read were not sent again, at the latest version."""
        _, paths = self._read()
        found: dict[str, int] = {}
        for one in (one for path in paths for one in self._by_file[path]):
            found[one.group_id] = found.get(one.group_id, 0) + one.count - one.redriven
        return found

    def letters(self, error: LettersByError, most: int) -> list[Letter]:
        """Return the newest ``most`` of those that ``error`` counts."""
        stored, paths = self._read()
        seen = {path: one.last_seen for path in paths for one in self._by_file[path] if one.key == error.key}
        found: list[Letter] = []
        for path in sorted(seen, key=lambda path: seen[path], reverse=True):
            if len(found) == most and seen[path] < found[-1].archived_at:
                break
            found = sorted([*found, *_of_file(stored, path, error, most)], key=_age, reverse=True)[:most]
        return found

    def _opened(self) -> StoredLetters:
        stored = StoredLetters.open(Location.parse(self.place))
        if not all(file.is_whole for file in stored.table.log.active.values()):
            why = (
                "it has deletion vectors: REORG TABLE ... APPLY (PURGE) removes them, share-spark dead-letters reads it"
            )
            raise DeadLetterError(f"dead-letter table {self.place} is not shown here: {why}")
        return stored

    def _read(self) -> tuple[StoredLetters, list[str]]:
        """Return the table at its latest version, and the files that are read."""
        stored = self._opened()
        paths = newest_files(stored.table.log.active)
        self._by_file = {path: self._by_file.get(path) or self._errors_in(stored, path) for path in paths}
        return stored, paths

    def _errors_in(self, stored: StoredLetters, path: str) -> list[LettersByError]:
        return by_error(rows for _, rows in stored.scan(_ALL, (), [path]))


def _of_file(stored: StoredLetters, path: str, error: LettersByError, most: int) -> Iterator[Letter]:
    for _, rows in stored.scan(LetterFilter(group=error.group_id), COLUMN_NAMES, [path]):
        is_same: Any = pc.field("reason") == error.reason
        pattern = pc.field("error")
        is_same &= pattern.is_null() if error.error is None else pattern == error.error
        numbered = with_patterns(rows.select(["reason", "error", "archived_at", "offset"]))
        numbered = numbered.append_column("row", pa.array(range(rows.num_rows), pa.int64())).filter(is_same)
        newest = numbered.sort_by([("archived_at", "descending"), ("offset", "descending")]).slice(0, most)
        yield from letters_of(rows.take(newest.column("row")))


def _age(letter: Letter) -> tuple[Any, ...]:
    return letter.archived_at, letter.offset, letter.partition, letter.topic


def newest_files(active: Mapping[str, ActiveFile]) -> list[str]:
    """Return the files that are read, the newest first: by the last letter in the log's statistics, else by the time of
    writing."""
    about = {path: json.loads(file.stats or "{}") for path, file in active.items()}
    chosen: list[str] = []
    size = letters = 0
    for path in sorted(active, key=lambda path: _latest_ms(active[path], about[path]), reverse=True)[:MOST_FILES]:
        size, letters = size + active[path].size, letters + about[path].get("numRecords", 0)
        if size > MOST_BYTES or (chosen and letters > MOST_LETTERS):
            break
        chosen.append(path)
    return chosen


def _latest_ms(file: ActiveFile, stats: Mapping[str, Any]) -> int:
    latest = stats.get("maxValues", {}).get("archived_at")
    return file.written_at_ms if latest is None else round(datetime.fromisoformat(latest).timestamp() * 1_000)
