"""The commits of a Delta table as listed in its log directory: a file name and a line of JSON each, no data read.

The engine looks there for claims of other engines (about a millisecond on a local disk), and on start for the newest
valid commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from share_spark.delta.commit_files import CommitFiles, note_fields
from share_spark.delta.noted_rows import note_with_rows
from share_spark.spark.on_demand import AnySpark

LOOK_BACK = 300
"""The commits to look at before the rows, some 2 ms each: many groups may share a log, and this one was idle."""

_MARK = "share_spark"

_AT_ONCE = 16
"""The number of commit files read in parallel on a long way back: on an object store each costs a round trip."""


class CommitNote(NamedTuple):
    """Our note in a commit's ``userMetadata``. ``kind``: ``claim`` or ``records``. ``at_ms``: the time at which the
    micro-batch was decided; of a claim the highest known so far; 0 if there was none."""

    group_id: str
    kind: str
    writer_epoch: int
    run_id: str
    segment: int
    batch_id: int
    at_ms: int = 0

    def to_json(self) -> str:
        """Return the ``userMetadata`` text."""
        return json.dumps(self._fields_in_json(), separators=(",", ":"))

    def with_rows(self, rows: Sequence[Mapping[str, Any]], stamps: Mapping[str, Any]) -> str:
        """Return the ``userMetadata`` text with the rows of the commit; ``stamps``: other columns that all of them
        have."""
        return note_with_rows(self._fields_in_json() | dict(stamps), rows)

    def _fields_in_json(self) -> dict[str, Any]:
        return {_MARK: 1, **self._asdict()}

    @classmethod
    def from_json(cls, text: str | None) -> CommitNote | None:
        """Return the note, None for other commits (maintenance, SQL of a user)."""
        fields = note_fields(text)
        if fields.get(_MARK) != 1 or not fields.keys() >= _FIELDS_OF_EVERY_NOTE:
            return None
        return cls(**{name: fields[name] for name in cls._fields if name in fields})


_FIELDS_OF_EVERY_NOTE = frozenset(CommitNote._fields) - CommitNote._field_defaults.keys()


class NotedCommit(NamedTuple):
    """One version of the table."""

    version: int
    note: CommitNote | None


@dataclass(frozen=True, slots=True)
class CommitListing:
    """The commits of a state log with our notes in them."""

    files: CommitFiles

    @classmethod
    def of(cls, spark: AnySpark, table_directory: str) -> CommitListing:
        """Return the listing of the table in ``table_directory``."""
        return cls(CommitFiles.at(spark, table_directory))

    def latest_version(self) -> int:
        """Return the newest version; -1 for an empty log. Lists the directory: only for the start."""
        return self.files.latest_version()

    def holds(self, version: int) -> bool:
        """Return whether this commit exists. It does not once clean-up has removed it."""
        return self.files.exists(version)

    def after(self, version: int) -> Iterator[NotedCommit]:
        """Yield the commits above ``version``, oldest first."""
        while (commit := self._read(version + 1)) is not None:
            yield commit
            version += 1

    def back_from(self, version: int) -> Iterator[NotedCommit]:
        """Yield the commits from ``version`` down, newest first, until one that log clean-up has removed."""
        step = 2  # few at first: usually the answer is in the newest two commits
        with ThreadPoolExecutor(_AT_ONCE) as readers:
            while version >= 0:
                wanted = range(version, max(-1, version - step), -1)
                for commit in readers.map(self._read, wanted):
                    if commit is None:
                        return
                    yield commit
                version, step = version - step, min(2 * step, _AT_ONCE)

    def _read(self, version: int) -> NotedCommit | None:
        found = self.files.read(version)
        return None if found is None else NotedCommit(version, CommitNote.from_json(found.note))


@dataclass(frozen=True, slots=True)
class CommitsAsOf(CommitListing):
    """The commits as of ``version``, for a claim that is right only if the group has not changed since. A claim of
    another engine in between is found after them, and is the first."""

    version: int

    def latest_version(self) -> int:
        """Return the version that was seen."""
        return self.version


class GroupTail(NamedTuple):
    """The newest commits of a group. ``valid``: the newest valid ``records`` commit, None if there is none or it cannot
    be known. ``epoch`` and ``segment``: the highest that any engine used, 0 and -1 if none did. ``is_complete``: False
    if log clean-up has removed commits that would have to be seen."""

    valid: CommitNote | None
    epoch: int
    segment: int
    is_complete: bool


def group_tail(commits: Iterator[NotedCommit], group_id: str) -> GroupTail:
    """Walk ``commits``, newest first, only as far back as needed.

    An engine looks for claims right after each append, so at most its last one can come after a foreign claim: a
    candidate is valid if no higher claim stands between it and the commit of the same run before it.

        newest first:   claim e3 | records e2 (candidate) | records e2 | ...            the candidate is valid
        newest first:   records e1 (candidate) | claim e2 | records e1 | ...            stale: claim e2 replaces it
    """
    candidate: CommitNote | None = None
    epoch, segment, version = 0, -1, -1
    for commit in commits:
        version, note = commit
        if note is None or note.group_id != group_id:
            continue
        epoch, segment = max(epoch, note.writer_epoch), max(segment, note.segment)
        if candidate is not None and note.run_id == candidate.run_id:
            return GroupTail(candidate, epoch, segment, True)
        if candidate is None or note.writer_epoch > candidate.writer_epoch:
            candidate = note if note.kind == "records" else None
    return GroupTail(None, epoch, segment, version <= 0)


class SegmentStamps(NamedTuple):
    """The rows of one segment and writer epoch. ``is_whole``: its snapshot is among them; ``batch_id``: their last
    micro-batch, None for claims alone."""

    segment: int
    writer_epoch: int
    is_whole: bool
    batch_id: int | None
    at_ms: int


def tail_by_stamps(found: Iterable[SegmentStamps], group_id: str) -> GroupTail:
    """Return the tail by the rows alone. ``valid``: the end of the newest segment that has its snapshot.

    It is complete if no engine can have fenced the writer of that segment, so that all its appends are valid. Claims
    are rows too, and each lies above all segments that were closed before it (``claim``), so pruning takes none that is
    higher than the epochs it leaves. Of two runs that claim one epoch only the first ever appends.
    """
    segments = list(found)
    whole = [one for one in segments if one.is_whole]
    valid = None
    if whole:
        end = max(whole, key=lambda one: (one.writer_epoch, one.segment))
        batch_id = -1 if end.batch_id is None else end.batch_id
        valid = CommitNote(group_id, "records", end.writer_epoch, "", end.segment, batch_id, end.at_ms)
    epoch = max((one.writer_epoch for one in segments), default=0)
    is_complete = epoch == (valid.writer_epoch if valid else 0)
    return GroupTail(valid, epoch, max((one.segment for one in segments), default=-1), is_complete)


def tail_found(
    commits: CommitListing, version: int, group_id: str, stamps: Callable[[], Iterable[SegmentStamps]]
) -> GroupTail:
    """Return the end of the group's log as of ``version``. ``stamps``: reads those of its rows, which takes longer.

    Usually the newest commits are enough. If the group was idle for many commits of others, the stamps are, unless the
    highest epoch has claimed the group and written nothing: then only the order of commits shows which append came
    before the claim. If log clean-up has removed those commits, only the stamps are left.
    """
    found = group_tail(islice(commits.back_from(version), LOOK_BACK), group_id)
    if found.is_complete:
        return found
    by_rows = tail_by_stamps(stamps(), group_id)
    if by_rows.is_complete:
        return by_rows
    found = group_tail(commits.back_from(version), group_id)
    return found if found.is_complete else by_rows
