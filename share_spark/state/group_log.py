"""One group's part of the state log, as one run sees it: who may write, and which commits are valid.

A run claims the group with an append of the next writer epoch, and looks after each of its appends whether another run
has claimed it since. ``version`` is the last one that it has looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.delta.commit_files import CommitFile
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.table_log import MOST_CHECKPOINT_BYTES, TableLog, UnknownTableError
from share_spark.model.errors import FencedError, StateError
from share_spark.spark import functions as F
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.frames import cloned_session
from share_spark.spark.on_demand import AnySpark, given_session, session_of
from share_spark.spark.progress_log import log_progress
from share_spark.spark.schemas import ARROW_BYTES, ARROW_ROWS
from share_spark.state.commits import CommitListing, CommitNote
from share_spark.state.direct_rows import FOLDED_SCHEMA, rows_by_batch
from share_spark.state.fold import LogState, fold_log
from share_spark.state.log_rows import claim_table
from share_spark.state.record_rows import CLAIM
from share_spark.state.segments import LogTail, tail_of
from share_spark.state.tables import allow_noted_rows, ensure_tables, log_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

Rows = Callable[[], pa.Table]
"""A function that makes the rows of a commit (``log_rows``)."""

_MOST_FILES = 30_000
"""The most files of the log table that are remembered, to read a small segment without Spark: some 10 MB."""

FEW_ROWS = {
    ARROW_ROWS: "128",
    # One log row can be megabytes. The first releases of Spark 4.0 may not know this setting: hence few rows, too.
    ARROW_BYTES: str(16 << 20),
    # By default the JVM has 4,096 of them in memory at a time, with all their ranges.
    "spark.sql.parquet.columnarReaderBatchSize": "64",
}
"""Settings for Spark to read log rows a few at a time."""

_STATE_ERRORS: tuple[type[Exception], ...] = (*JVM_ERRORS, ValueError)


@dataclass(slots=True, kw_only=True)
class GroupLog:
    """``least_epoch``: a writer epoch that is known to have been claimed; a log with only lower ones was reset to an
    older state. ``commits``: of the log table; found at the first use if left out. ``version``: of the last look.
    ``spark``: used only if the files of the log do not suffice (``session``). ``notes_rows``: few rows go into the note
    of their commit, where clients may come; Spark sees them a second later."""

    spark: AnySpark
    location: Location
    group_id: str
    run_id: str
    least_epoch: int = 0
    commits: CommitListing | None = None
    notes_rows: bool = False
    version: int = -1
    writer_epoch: int = 0
    _directory: str | None = None
    _table_log: TableLog | None = None
    _direct: DirectAppends | NotImplementedError | None = None

    @property
    def table(self) -> Location:
        """The log table, of all groups."""
        return log_table(self.location)

    def session(self, why: str) -> SparkSession:
        """Return the session, for work on the log table that only Spark can do. Raises ConfigError: there is none."""
        return session_of(self.spark, f"{self.table} {why}")

    @property
    def directory(self) -> str:
        """The directory of the log table; kept, as the catalog has to be asked for that of a named table."""
        if self._directory is None:
            self._directory = self.table.directory(self.spark)
        return self._directory

    def opened(self) -> CommitListing:
        """Return the commits of the log table, which is made if it is missing. Raises StateError."""
        if self.commits is None:
            with self.as_state_error():
                ensure_tables(self.spark, self.location)
                self.notes_rows = self.notes_rows and allow_noted_rows(self.spark, self.directory)
            self.commits = CommitListing.of(self.spark, self.directory)
        return self.commits

    def open(self) -> LogTail:
        """Return the present end of the log. Raises StateError."""
        commits = self.opened()
        with self.as_state_error():
            return tail_of(self.spark, self.location, self.group_id, commits, commits.latest_version())

    def folded(self, tail: LogTail) -> LogState:
        """Return the state from the valid rows. Raises StateError: some are gone."""
        last = -1

        def noted(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
            nonlocal last
            for rows in parts:
                last = rows.column("batch_id")[-1].as_py() if rows.num_rows else last
                yield rows

        if tail.valid is None:
            return LogState({})
        what = f"loading the state of group {self.group_id}"
        with self.as_state_error(), log_progress(given_session(self.spark), what):
            found = fold_log(noted(self._rows(tail, tail.valid)), self.group_id)
        self.refuse_damaged(tail, last)
        return found

    def _rows(self, tail: LogTail, valid: CommitNote) -> Iterable[pa.Table]:
        """Read the valid records (FOLDED_SCHEMA), by micro-batch; from the files, or by Spark where it has to."""
        log = self.table_log
        try:
            if log is None:
                raise UnknownTableError("its log cannot be read")
            log.refresh()
            if not log.keeps_files:
                log = TableLog.open(log.files, keeps_files=True, most_bytes=MOST_CHECKPOINT_BYTES)
            return rows_by_batch(log, valid)
        except UnknownTableError as reason:
            session = cloned_session(self.session(f"is read by Spark: {reason}"), FEW_ROWS)
            rows = tail.rows(session).where(F.col("kind") != CLAIM).select(FOLDED_SCHEMA.names)
            return [rows.toArrow().sort_by("batch_id")]

    def refuse_damaged(self, tail: LogTail, last_batch_id: int) -> None:
        """Raise StateError if rows are missing. ``last_batch_id``: the last micro-batch with rows, -1 if none."""
        if last_batch_id != tail.last.batch_id:
            raise StateError(
                f"{self.table} is damaged: micro-batch {tail.last.batch_id} of group {self.group_id!r} "
                f"(writer epoch {tail.last.writer_epoch}) was committed, but its rows are gone; was the table restored?"
            )

    @property
    def table_log(self) -> TableLog | None:
        """The log of the table, opened once; None where only Spark can read it. It keeps the table's files while they
        are few."""
        if self._table_log is None:
            files = self.opened().files
            for keeps_files in (True, False):
                try:
                    self._table_log = TableLog.open(files, keeps_files=keeps_files)
                    break
                except UnknownTableError as reason:
                    _log.debug("%s: its log is not read: %s", self.table, reason)
        return self._table_log

    def claim(self, tail: LogTail) -> LogTail:
        """Append a claim of the next epoch; the lowest version wins a tie. Return the tail as of the claim: its last
        segment is the one to write to. ``tail``: as of an earlier version. Raises FencedError, StateError."""
        commits = self.opened()
        with self.as_state_error():
            self.version = commits.latest_version()
            before = self.tail_since(tail)
            if before.epoch < self.least_epoch:
                raise StateError(
                    f"{self.table} is older than the checkpoint of group {self.group_id!r}: it knows "
                    f"writer epoch {before.epoch}, the checkpoint {self.least_epoch}; if the state was restored on "
                    "purpose, delete the checkpoint"
                )
            self.writer_epoch = before.epoch + 1
            self._append_claim(before)
            claimed = self.tail_since(before)
        _log.info("group %s claimed with writer epoch %s", self.group_id, self.writer_epoch)
        return claimed

    def _append_claim(self, tail: LogTail) -> None:
        """Claim in a segment above all that the engine before has closed: it may prune those with all their rows.

        It may have closed some since we looked; then the claim is repeated, higher up.
        """
        segment, highest, is_first = tail.last_segment, tail.last_segment, True
        while is_first or highest > segment:
            segment = highest + 1
            note = self.note("claim", segment, -1, tail.at_ms)
            highest, is_first = self._append(partial(claim_table, note), note, ties=is_first), False

    def note(self, kind: str, segment: int, batch_id: int, at_ms: int) -> CommitNote:
        """Return the note for a commit of this run."""
        return CommitNote(self.group_id, kind, self.writer_epoch, self.run_id, segment, batch_id, at_ms)

    def append(self, rows: Rows, note: CommitNote, *, noted: str | None = None) -> None:
        """Append once; the append is valid unless this raises FencedError. ``noted``: the note with the rows, if they
        need no file. Raises StateError."""
        with self.as_state_error():
            self._append(rows, note, noted=noted)

    def _append(self, rows: Rows, note: CommitNote, *, noted: str | None = None, ties: bool = False) -> int:
        """Return the highest segment that the group's commits before this one wrote to, -1 if there are none."""
        direct = self._direct_appends()
        try:
            if direct is not None:
                return self._append_directly(direct, rows, note, noted=noted, ties=ties)
        except NotImplementedError as reason:  # nothing was appended
            self._only_spark(reason)
        session = self.session(f"can be appended to by Spark only ({self._direct})")
        values = {"group_id": F.lit(note.group_id), "segment": F.lit(note.segment)}
        self.table.append(session.createDataFrame(rows()).withColumns(values), {"userMetadata": note.to_json()})
        return self.look_for_claims(note, ties=ties)

    def _direct_appends(self) -> DirectAppends | None:
        """Return the direct appends, None where only Spark can append."""
        if self._direct is None:
            try:
                if self.table_log is None:
                    raise UnknownTableError("its log cannot be read")
                self._direct = DirectAppends.of(self.spark, self.directory, self.table_log, names_removed=False)
            except NotImplementedError as reason:
                self._only_spark(reason)
        return self._direct if isinstance(self._direct, DirectAppends) else None

    def _only_spark(self, reason: NotImplementedError) -> None:
        _log.info("%s: appended to by Spark, which takes longer: %s", self.table, reason)
        self._direct = reason

    def _append_directly(
        self, direct: DirectAppends, rows: Rows, note: CommitNote, *, noted: str | None, ties: bool
    ) -> int:
        """Append after a look: a claim before this append is always seen here."""
        highest = -1

        def note_of_others(found: CommitNote | None) -> None:
            nonlocal highest
            self._refuse_foreign(found, ties=ties)
            if found is not None and found.group_id == self.group_id:
                highest = max(highest, found.segment)

        def meanwhile(commit: CommitFile | None) -> None:
            nonlocal highest
            if commit is None:
                highest = max(highest, self._look_beyond_clean_up())
            else:
                note_of_others(CommitNote.from_json(commit.note))

        commits = self.opened()
        if self.version < direct.log.version:
            for _, found in takewhile(lambda commit: commit.version <= direct.log.version, commits.after(self.version)):
                note_of_others(found)
            if not commits.holds(self.version):
                meanwhile(None)  # clean-up goes upwards: some may have gone before they were read
        place = {"group_id": note.group_id, "segment": str(note.segment)}
        files = [direct.begin(rows(), place)] if noted is None else []
        version = direct.commit(files, note=noted or note.to_json(), meanwhile=meanwhile)
        if len(direct.log.active) > _MOST_FILES:
            direct.log.forget_files()
        # What this append decided is valid. But a run that was stopped in it for long must not call handlers any more.
        self._refuse_claims_after(version)
        self.version = version  # not before: if the look fails, the log is asked whether this append happened
        return highest

    def _look_beyond_clean_up(self) -> int:
        """Look for claims in the rows, if commits since the last look are gone: it was long ago. Return the highest
        segment in use. Raises FencedError."""
        commits = self.opened()
        version = commits.latest_version()
        tail = tail_of(self.spark, self.location, self.group_id, commits, version)
        if tail.epoch > self.writer_epoch:
            raise FencedError(
                f"another engine has claimed group {self.group_id!r} (writer epoch {tail.epoch}); this one "
                f"(epoch {self.writer_epoch}) stops"
            )
        self.version = version
        return tail.last_segment

    def find(self, batch_id: int) -> CommitNote | None:
        """Return the commit of our micro-batch, if it is after our own last one. Raises FencedError."""
        found, looked_to = None, self.version
        if self.version >= 0 and not self.opened().holds(self.version):
            raise StateError(f"{self.table}: commits since the last one of this run were removed; start again")
        for version, note in self.opened().after(self.version):
            self._refuse_foreign(note)
            if note is not None and (note.run_id, note.batch_id) == (self.run_id, batch_id):
                found = note
            looked_to = version
        self.version = looked_to
        return found

    def refuse_if_fenced(self) -> None:
        """Raise FencedError if another run has claimed the group since our last look. This is no look itself: an append
        of our own whose outcome is unknown must still be found."""
        self._refuse_claims_after(self.version)

    def _refuse_claims_after(self, version: int) -> None:
        for _, note in self.opened().after(version):
            self._refuse_foreign(note)

    def tail_since(self, before: LogTail) -> LogTail:
        """Return ``before`` as of the last look. Raises StateError."""
        commits = self.opened()
        with self.as_state_error():
            if before.version < self.version and not commits.holds(before.version + 1):  # clean-up has taken it
                return tail_of(self.spark, self.location, self.group_id, commits, self.version)
            since = takewhile(lambda commit: commit.version <= self.version, commits.after(before.version))
            return before.after(since)

    def look_for_claims(self, own: CommitNote, *, ties: bool = False) -> int:
        """Return the highest segment that the group's commits before ``own`` wrote to, -1 if there are none."""
        seen, looked_to, highest = False, self.version, -1
        for version, note in self.opened().after(self.version):
            self._refuse_foreign(note, ties=ties and not seen)
            seen = seen or note == own
            if note is not None and note.group_id == self.group_id and not seen:
                highest = max(highest, note.segment)
            looked_to = version
        self.version = looked_to
        if not seen:
            raise StateError(f"the append of {own.kind} is not in the log of {self.location}")
        return highest

    def _refuse_foreign(self, note: CommitNote | None, *, ties: bool = False) -> None:
        """Raise FencedError for a claim above ours; for one of the same epoch only if it came first (``ties``)."""
        if note is None or note.group_id != self.group_id or note.run_id == self.run_id:
            return
        if note.kind == "claim" and note.writer_epoch + int(ties) > self.writer_epoch:
            raise FencedError(
                f"another engine has claimed group {self.group_id!r} (writer epoch {note.writer_epoch}, "
                f"run {note.run_id}); this one (epoch {self.writer_epoch}) stops"
            )

    @contextmanager
    def as_state_error(self) -> Iterator[None]:
        """Raise StateError for all errors of Spark and of the storage."""
        try:
            yield
        except _STATE_ERRORS as fault:
            raise StateError(f"{self.table} cannot be used: {first_line(fault)}") from fault
