"""The scheduled compaction of a state location, safe while its engines run.

For each group: a fresh snapshot where no engine runs, then closed segments are pruned, and those that are kept are
compacted into few files. Then for each table: old versions and old commits are removed. Nothing that a restart needs is
removed: the newest valid segment of a group and all segments above it are never touched. A step that conflicts with
another writer is given up and tried again at the next run.

One compaction at a time works on a location (``heartbeat``). A run that ends early leaves a lock that the next one
takes over after ``LOCK_STALE_MS``, and nothing half done: every step is a commit of its own.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from share_spark.delta.location import Location
from share_spark.delta.table_kind import TableKind
from share_spark.delta.table_maintenance import KeptTable, TableSize, maintenance_session
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.maintenance.heartbeat import Heartbeat, age_ms, lock_file, wall_clock_ms
from share_spark.maintenance.idle_groups import GroupEvidence, evidence_of, snapshot_group
from share_spark.maintenance.retention import (
    closed_files,
    drop_segments,
    letters_before,
    log_starts_after,
    oldest_kept_segment,
)
from share_spark.model.errors import ConfigError, SinkError, StateError, no_such_group
from share_spark.output import letter_columns
from share_spark.spark.on_demand import AnySpark
from share_spark.state.commits import CommitListing
from share_spark.state.tables import check_location, log_table, state_table
from share_spark.topics import topic_registry
from share_spark.topics.topic_table import EmbeddedTopicLog

_log = logging.getLogger(__name__)

LOCK_STALE_MS = 300_000


class Step(NamedTuple):
    """One change that was made, or would be."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The result of a compaction; for a dry run what it would do. ``sizes``: table, before, after."""

    order: CompactionOrder
    steps: Sequence[Step]
    sizes: Sequence[tuple[str, TableSize, TableSize]]


def report_lines(report: CompactionReport) -> list[str]:
    """Return a line for each step, then a table of sizes; for a dry run the present sizes."""
    dry = " (dry run: nothing was changed)" if report.order.dry_run else ""
    steps = [f"  {step.subject}: {step.text}" for step in report.steps]
    rows = [("table", "files", "bytes", "rows")]
    rows += [(name, *_changes(before, after)) for name, before, after in report.sizes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    name_width, *number_widths = widths
    table = [
        "  " + "  ".join([name.ljust(name_width), *map(str.rjust, numbers, number_widths)]) for name, *numbers in rows
    ]
    return [f"compaction of {report.order.state}{dry}", *steps, "", *table, *_growth_lines(report)]


def _growth_lines(report: CompactionReport) -> list[str]:
    """Return the reason if a table is larger than before."""
    if not any(after.files > before.files or after.bytes > before.bytes for _, before, after in report.sizes):
        return []
    days = report.order.vacuum_retention_ms / 86_400_000
    return [
        "",
        f"  Files and bytes are those on disk. What was joined or replaced, and its commits, is kept for {days:g} days",
        "  (vacuum retention): a compaction adds to it first, and a later one removes it.",
    ]


def _changes(before: TableSize, after: TableSize) -> tuple[str, str, str]:
    changes = (f"{old:,}" if old == new else f"{old:,} -> {new:,}" for old, new in zip(before, after, strict=True))
    files, size, rows = changes
    return files, size, rows


def compact(spark: AnySpark, order: CompactionOrder) -> CompactionReport:
    """Compact a state location. Only those steps ask for a session that rewrite rows (OPTIMIZE, deletions), remove old
    files and commits where there are any, and read letters and topics. Raises StateError, ConfigError (then nothing was
    changed): no state, not ours, no such group, another compaction at work."""
    session = maintenance_session(spark)
    tables = _tables(session, order)
    groups = _groups(tables["share_state_log"], order)
    run = _Compaction(session, order, groups)
    before = [table.size() for table in tables.values()]
    if order.dry_run:
        run.work(tables)
    else:
        with _only_one(session, order.state):
            run.work(tables)
    after = [table.size() for table in tables.values()]
    return CompactionReport(order=order, steps=run.steps, sizes=list(zip(tables, before, after, strict=True)))


def _tables(session: AnySpark, order: CompactionOrder) -> dict[str, KeptTable]:
    """Return the tables of the order, each checked to be ours."""
    check_location(session, order.state)
    places = {"share_state_log": log_table(order.state)}
    if not state_table(order.state).is_free(session):
        places["share_partition_state"] = state_table(order.state)
    if order.dead_letter is not None:
        _check_kind(session, order.dead_letter, letter_columns.KIND)
        places[f"dead letters {order.dead_letter}"] = order.dead_letter
    if order.topic_table is not None:
        _check_kind(session, order.topic_table, topic_registry.KIND)
        places[f"topics {order.topic_table}"] = order.topic_table
    return {name: KeptTable(session, place) for name, place in places.items()}


def _check_kind(session: AnySpark, place: Location, kind: TableKind) -> None:
    properties = place.properties(session) if place.exists(session) else {}
    if (fault := kind.fault(str(place), properties)) is not None:
        raise ConfigError(fault)


def _groups(log: KeptTable, order: CompactionOrder) -> list[str]:
    groups = sorted({found.values["group_id"] for found in log.partitions()})
    if order.group_id is None:
        return groups
    if order.group_id not in groups:
        raise no_such_group(order.group_id, str(order.state))
    return [order.group_id]


@contextmanager
def _only_one(session: AnySpark, location: Location) -> Iterator[None]:
    """Hold the location's lock. Raises StateError if another compaction holds it."""
    file = lock_file(session, location)
    text = (
        f"{socket.gethostname()}, process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}"
    )
    if not file.create(text):
        age = age_ms(file)
        if age is not None and age < LOCK_STALE_MS:
            raise StateError(f"another compaction of {location} is at work ({file.read()})")
        _log.warning("taking over from a compaction of %s that died (%s)", location, file.read())
        # Two runs can take over at the same moment, and then both work: slower, but harmless (see ``heartbeat``).
        file.delete()
        if not file.create(text):
            raise StateError(f"another compaction of {location} has just begun ({file.read()})")
    heartbeat = Heartbeat(file=file, say=lambda: text)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.close()
        file.delete()


@dataclass(slots=True)
class _Compaction:
    session: AnySpark
    order: CompactionOrder
    groups: Sequence[str]
    steps: list[Step] = field(default_factory=list)
    _found: list[GroupEvidence] = field(default_factory=list)

    def work(self, tables: dict[str, KeptTable]) -> None:
        """Do all steps, groups first: files that they no longer need are then removed with the old versions."""
        log, *others = tables.values()
        if not self.order.dry_run:
            log.file_noted_rows()
        for group_id in self.groups:
            self._found.append(self._snapshot(group_id))
        # After all snapshots: what is pruned or joined must lie below the newest valid segment of its group.
        for found in self._found:
            self._prune(log, found)
        # The files that these steps replace are removed with the old versions, which therefore come last.
        self._optimize_closed(log)
        self._drop_old_versions(log, self._log_retention_ms())
        for table in others:
            if table.place == self.order.dead_letter:
                self._drop_letters(table)
            if table.place == self.order.topic_table:
                self._drop_records(table)
            self._optimize(table)
            ours = table.place == state_table(self.order.state)
            self._drop_old_versions(table, self.order.vacuum_retention_ms if ours else None)

    def _say(self, subject: str, text: str) -> None:
        _log.info("%s: %s", subject, text)
        self.steps.append(Step(subject, text))

    # ---------------------------------------------------------------------------------------------- groups

    def _snapshot(self, group_id: str) -> GroupEvidence:
        found, commits = self._look(group_id)
        subject = f"group {group_id}"
        if found.has_engine(wall_clock_ms(), self.order.idle_ms):
            self._say(subject, "an engine runs it, or has until lately: snapshots are left to it")
        elif found.unfinished:
            self._say(subject, "its last engine has left work that the next one finishes first: no snapshot")
        elif found.segment < 0 or not found.updates:
            self._say(subject, "nothing since its last snapshot")
        elif self.order.dry_run:
            self._say(subject, f"would snapshot it: {found.updates} updates since the last one")
        elif self._snapshot_idle(found, commits):
            return self._look(group_id)[0]
        return found

    def _snapshot_idle(self, found: GroupEvidence, commits: CommitListing) -> bool:
        """Write a snapshot; return whether it was written. A sink that cannot be claimed does not stop other groups."""
        subject = f"group {found.group_id}"
        try:
            size = snapshot_group(self.session, self.order.state, commits, found)
        except SinkError as fault:
            self._say(subject, f"{fault}; a frozen engine might still write there: no snapshot")
            return False
        if size is None:
            self._say(subject, "an engine was at work meanwhile: snapshots are left to it, or to the next one")
            return False
        self._say(subject, f"snapshot of {size} share-partitions instead of {found.updates} updates")
        return True

    def _look(self, group_id: str) -> tuple[GroupEvidence, CommitListing]:
        commits = CommitListing.of(self.session, log_table(self.order.state).directory(self.session))
        version = commits.latest_version()
        return evidence_of(self.session, self.order.state, group_id, commits, version), commits

    def _prune(self, log: KeptTable, found: GroupEvidence) -> None:
        if self.order.history_retention_ms is None or found.segment <= 0:
            return
        retention_ms, now_ms = self.order.history_retention_ms, wall_clock_ms()
        oldest = oldest_kept_segment(log, found.group_id, found.segment, retention_ms=retention_ms, now_ms=now_ms)
        files = closed_files(log, found.group_id, oldest)
        if not files:
            return
        self._do(
            f"group {found.group_id}",
            f"prune {files} files of segments below {oldest}",
            partial(drop_segments, log, found.group_id, oldest),
        )

    def _optimize_closed(self, log: KeptTable) -> None:
        closed = {found.group_id: found.segment for found in self._found}
        wanted: dict[str, list[tuple[str, int]]] = {}
        for values, _, small in log.partitions():
            group_id, segment = values["group_id"], values["segment"]
            if small > 1 and int(segment) < closed.get(group_id, -1):
                wanted.setdefault(group_id, []).append((segment, small))
        for group_id, found in wanted.items():
            for start in range(0, len(found), _SEGMENTS_AT_ONCE):
                chosen = found[start : start + _SEGMENTS_AT_ONCE]
                partitions = {"group_id": [group_id], "segment": [segment for segment, _ in chosen]}
                files = sum(files for _, files in chosen)
                self._do(
                    "share_state_log",
                    f"join {files} files of {len(chosen)} closed segments",
                    partial(log.optimize, partitions),
                )

    def _log_retention_ms(self) -> int:
        """Return how long commits are kept. A running engine that was idle for long looks for claims from its own last
        commit on: that commit is kept."""
        now_ms, idle_ms = wall_clock_ms(), self.order.idle_ms
        running = [found for found in self._found if found.has_engine(now_ms, idle_ms)]
        return max([self.order.vacuum_retention_ms, *(now_ms - found.written_at_ms + idle_ms for found in running)])

    # ---------------------------------------------------------------------------------------------- tables

    def _drop_letters(self, table: KeptTable) -> None:
        if self.order.dead_letter_retention_ms is None:
            return
        session = table.spark_for("letters are looked for")
        where = letters_before(wall_clock_ms() - self.order.dead_letter_retention_ms)
        if letters := table.place.load(session).where(where.spark).count():
            self._do(_name(table), f"delete {letters} letters", partial(table.delete, where))

    def _drop_records(self, table: KeptTable) -> None:
        if self.order.topic_retention_ms is None:
            return
        session = table.spark_for("records are looked for")
        log = EmbeddedTopicLog(session, table.place)
        starts = log_starts_after(session, table.place, wall_clock_ms() - self.order.topic_retention_ms)
        for topic, moved in starts.items():
            offsets = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(moved.items()))
            self._do(
                _name(table),
                f"move the log start of {topic} to (partition: offset) {offsets}",
                partial(_move_log_start, log, topic, moved),
            )

    def _optimize(self, table: KeptTable) -> None:
        files = sum(found.small for found in table.partitions() if found.small > 1)
        if files:
            self._do(_name(table), f"join {files} files", table.optimize)

    def _drop_old_versions(self, table: KeptTable, log_retention_ms: int | None) -> None:
        """Run VACUUM and log clean-up. A dry run of VACUUM lists as much as a real one."""
        if self.order.dry_run:
            files = table.vacuum(self.order.vacuum_retention_ms, dry_run=True)
            self._say(_name(table), f"would remove {files} files of older versions, and commits as old")
            return
        table.vacuum(self.order.vacuum_retention_ms)
        table.checkpoint(log_retention_ms)

    def _do(self, subject: str, text: str, change: Callable[[], bool]) -> None:
        if self.order.dry_run:
            self._say(subject, f"would {text}")
        elif change():
            self._say(subject, text)
        else:
            self._say(subject, f"{text}: gave way to a writer, left for the next run")


_SEGMENTS_AT_ONCE = 50
"""The number of segments in one OPTIMIZE: a conflict with a writer undoes all of it."""


def _move_log_start(log: EmbeddedTopicLog, topic: str, starts: Mapping[int, int]) -> bool:
    """Move the log start. It is committed before the records are deleted, so that no reader misses one it expects."""
    log.delete_records(topic, starts)
    return True


def _name(table: KeptTable) -> str:
    return str(table.place).rpartition("/")[2]
