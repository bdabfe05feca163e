"""The commits of a Delta table as its log directory lists them: a file name and a line of JSON each, no data read.

The engine looks there for claims of other engines (about a millisecond on a local disk), and on start for the newest
commit that counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from share_spark.delta.commit_files import CommitFiles, note_fields
from share_spark.spark.on_demand import AnySpark

LOOK_BACK = 300
"""Commits looked at before the rows are asked, some 2 ms each: many groups may share a log, and this one was idle."""

_MARK = "share_spark"

_AT_ONCE = 16
"""Commit files that are read in parallel on a long way back: on an object store each costs a round trip."""


class CommitNote(NamedTuple):
    """What we write into a commit's ``userMetadata``. ``kind``: ``claim`` or ``records``. ``at_ms``: the time that the
    micro-batch was decided at; of a claim the highest known so far; 0 if there was none."""

    group_id: str
    kind: str
    writer_epoch: int
    run_id: str
    segment: int
    batch_id: int
    at_ms: int = 0

    def to_json(self) -> str:
        """As ``userMetadata`` text."""
        return json.dumps({_MARK: 1, **self._asdict()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> CommitNote | None:
        """None for other commits (maintenance, SQL of a user)."""
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
        """For the table in ``table_directory``."""
        return cls(CommitFiles.at(spark, table_directory))

    def latest_version(self) -> int:
        """The newest version; -1 for an empty log. Lists the directory: for the start, not for each micro-batch."""
        return self.files.latest_version()

    def holds(self, version: int) -> bool:
        """Is this commit there? Not once clean-up has removed it."""
        return self.files.exists(version)

    def after(self, version: int) -> Iterator[NotedCommit]:
        """The commits above ``version``, oldest first."""
        while (commit := self._read(version + 1)) is not None:
            yield commit
            version += 1

    def back_from(self, version: int) -> Iterator[NotedCommit]:
        """The commits from ``version`` down, newest first, as far as log clean-up has left them."""
        step = 2  # few at first: as a rule the answer is in the newest two commits
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
    """The commits as of ``version``, for a claim that is right only if the group has not changed since: an engine that
    has claimed it meanwhile is found after them, and counts as the first."""

    version: int

    def latest_version(self) -> int:
        """The version that was seen."""
        return self.version


class GroupTail(NamedTuple):
    """What the newest commits say of a group. ``valid``: the newest ``records`` commit that counts, None if there is
    none or it cannot be known. ``epoch`` and ``segment``: the highest that any engine used, 0 and -1 if none did.
    ``is_complete``: False if log clean-up has removed commits that would have to be seen."""

    valid: CommitNote | None
    epoch: int
    segment: int
    is_complete: bool


def group_tail(commits: Iterator[NotedCommit], group_id: str) -> GroupTail:
    """Walk ``commits``, newest first, only as far as needed.

    An engine looks for claims right after each append, so at most its last one can come after a foreign claim: a
    candidate counts if no higher claim stands between it and the commit of the same run before it.

        newest first:   claim e3 | records e2 (candidate) | records e2 | ...            the candidate counts
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
    """What the rows of one segment and writer epoch say. ``is_whole``: its snapshot is among them;
    ``batch_id``: their last micro-batch, None for claims alone."""

    segment: int
    writer_epoch: int
    is_whole: bool
    batch_id: int | None
    at_ms: int


def tail_by_stamps(found: Iterable[SegmentStamps], group_id: str) -> GroupTail:
    """What the rows alone say. ``valid``: the end of the newest segment that has its snapshot.

    It is complete if no engine can have fenced the writer of that segment, so that all that it has appended counts.
    Claims are rows too, and each lies above all segments that were closed before it (``claim``), so pruning takes none
    that is higher than the epochs it leaves. Of two runs that claim one epoch only the first ever appends.
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
    """The end of the group's log as of ``version``. ``stamps``: reads what its rows say, which takes longer.

    The newest commits say it, as a rule. Where the group was idle for many commits of others, the rows' stamps do,
    unless the highest epoch has claimed the group and written nothing: then only the order of commits says which
    append came before the claim. Where log clean-up has taken those commits, the stamps have to do.
    """
    found = group_tail(islice(commits.back_from(version), LOOK_BACK), group_id)
    if found.is_complete:
        return found
    by_rows = tail_by_stamps(stamps(), group_id)
    if by_rows.is_complete:
        return by_rows
    found = group_tail(commits.back_from(version), group_id)
    return found if found.is_complete else by_rows
