"""``share-spark verify``: replay a state log from its rows alone and check that it is self-consistent.

Every kept segment is replayed, not only the newest: ours (``partition.evolve``) against the share coordinator's
(``coordinator.evolve``) over the KIP's form of the same rows, share-partition by share-partition (``streams``). Then
the segments of each share-partition are compared with each other. It only reads; an engine may run meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.audit.streams import GroupStreams, Place, Stream, streams_by_spark, streams_in_files
from share_spark.coordinator import STATE_PARTITIONS
from share_spark.delta.location import Location
from share_spark.delta.table_log import MOST_CHECKPOINT_BYTES, TableLog, UnknownTableError
from share_spark.model.errors import ConfigError, StateError, no_such_group
from share_spark.model.ids import SharePartitionKey
from share_spark.spark import functions as F
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.on_demand import AnySpark, given_session, session_of
from share_spark.state.commits import CommitListing
from share_spark.state.segments import tail_of
from share_spark.state.tables import check_location, load_log, log_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_MOST_FAULTS = 20
"""The number of faulty share-partitions that are listed; their total is reported as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """One share-partition: how much of it was replayed, and its first fault (None: no fault)."""

    group_id: str
    topic: str
    topic_id: str
    partition: int
    segments: int
    rows: int
    fault: str | None

    @property
    def key(self) -> SharePartitionKey:
        """The key of its state."""
        return SharePartitionKey(self.group_id, self.topic_id, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The verdicts, one per share-partition, by group, topic and partition."""

    verdicts: tuple[PartitionVerdict, ...]

    @property
    def faulty(self) -> tuple[PartitionVerdict, ...]:
        """The verdicts with a fault."""
        return tuple(verdict for verdict in self.verdicts if verdict.fault is not None)

    @property
    def agrees(self) -> bool:
        """Whether no verdict has a fault."""
        return not self.faulty

    @property
    def rows(self) -> int:
        """The number of log rows replayed."""
        return sum(verdict.rows for verdict in self.verdicts)


def verify_lines(report: VerifyReport) -> Iterator[str]:
    """Yield a table of the groups, then the first faults."""
    if not report.verdicts:
        yield "no share-partition there"
        return
    yield f"{'group':24} {'share-partitions':>16} {'segments':>8} {'rows':>9} {'with a fault':>12}"
    for group_id, found in groupby(report.verdicts, key=lambda verdict: verdict.group_id):
        verdicts = list(found)
        segments, rows = max(verdict.segments for verdict in verdicts), sum(verdict.rows for verdict in verdicts)
        faults = sum(verdict.fault is not None for verdict in verdicts)
        yield f"{group_id:24} {len(verdicts):16,} {segments:8,} {rows:9,} {faults:12,}"
    for verdict in report.faulty[:_MOST_FAULTS]:
        yield f"{verdict.group_id} {verdict.topic}-{verdict.partition}: {verdict.fault}"
    if len(report.faulty) > _MOST_FAULTS:
        yield f"... and {len(report.faulty) - _MOST_FAULTS:,} share-partitions more"
    if report.agrees:
        yield "the log is self-consistent: the live state and what Kafka's share coordinator would hold agree"


def verify(
    spark: AnySpark, location: str | Location, group_id: str | None = None, bucket: int | None = None
) -> VerifyReport:
    """Check the log at ``location``, all of it or one group's, or only the share-partitions of one state partition.

    ``spark``: a session, on whose executors the log is replayed; None: in this process, from the files of the log, one
    part of a segment at a time. ``bucket``: 0 to 49, as Kafka would place the keys (R71). Raises ConfigError for a
    bucket that does not exist, StateError if there is no state of ours that can be read, or no such group; changes
    nothing.
    """
    if bucket is not None and not 0 <= bucket < STATE_PARTITIONS:
        raise ConfigError(f"unknown bucket {bucket}: they are 0 to {STATE_PARTITIONS - 1}")
    place = Location.parse(location) if isinstance(location, str) else location
    check_location(spark, place)
    commits = CommitListing.of(spark, log_table(place).directory(spark))
    log = _LogOfGroups(spark, place, commits, commits.latest_version())
    groups = log.groups()
    if group_id is not None and group_id not in groups:
        raise no_such_group(group_id, str(place))
    verdicts: list[PartitionVerdict] = []
    for group in groups if group_id is None else [group_id]:
        _log.info("group %s: replaying its log", group)
        with _as_state_error(place):
            found = _verdicts(log.streams(group, bucket), group)
        verdicts += found
        faults = sum(verdict.fault is not None for verdict in found)
        _log.info("group %s: %s share-partitions replayed, %s with a fault", group, len(found), faults)
    return VerifyReport(verdicts=tuple(verdicts))


_FAULTS: tuple[type[Exception], ...] = (*JVM_ERRORS, pa.ArrowException, UnknownTableError)


@contextmanager
def _as_state_error(place: Location) -> Iterator[None]:
    """Raise what the storage, Parquet and Spark raise for a log that cannot be read as StateError."""
    try:
        yield
    except _FAULTS as fault:
        raise StateError(f"{log_table(place)} cannot be read: {first_line(fault)}") from fault


@dataclass(slots=True)
class _LogOfGroups:
    """The log at ``version``. Read in this process unless a session was given, or only Spark can."""

    spark: AnySpark
    location: Location
    commits: CommitListing
    version: int
    _files: TableLog | None = None

    def groups(self) -> list[str]:
        """Return all groups that have a row."""
        try:
            return sorted({file.values["group_id"] for file in self._log().active.values()})
        except UnknownTableError as reason:
            rows = log_table(self.location).load(self._session(reason), self.version)
            return sorted(row.group_id for row in rows.select("group_id").distinct().collect())

    def streams(self, group_id: str, bucket: int | None) -> GroupStreams:
        """Return the streams of one group."""
        last = tail_of(self.spark, self.location, group_id, self.commits, self.version).last
        try:
            return streams_in_files(self._log(), group_id, last, bucket)
        except UnknownTableError as reason:
            rows = load_log(self._session(reason), log_table(self.location), self.version)
            return streams_by_spark(rows.where(F.col("group_id") == group_id), group_id, last, bucket)

    def _log(self) -> TableLog:
        """Return the log's files. Raises UnknownTableError: only Spark can read it."""
        if given_session(self.spark) is not None:
            raise UnknownTableError("a session was given")
        if self._files is None:
            self._files = TableLog.open(
                self.commits.files, keeps_files=True, most_bytes=MOST_CHECKPOINT_BYTES, version=self.version
            )
        return self._files

    def _session(self, reason: UnknownTableError) -> SparkSession:
        return session_of(self.spark, f"{log_table(self.location)} is read by Spark ({reason})")


@dataclass(slots=True)
class _Judged:
    """A share-partition whose segments are checked one by one. ``place``: the last one's."""

    last: Stream
    place: int
    topic: str
    segments: int = 0
    rows: int = 0
    fault: str | None = None

    def add(self, stream: Stream, place: int) -> None:
        """Add its next segment. The first fault counts."""
        found = stream.fault or (_fault_between(self.last, stream) if self.place == place - 1 else None)
        if self.fault is None and found is not None:
            self.fault = f"segment {stream.segment}, {found}"
        self.topic = max(self.topic, stream.topic)
        self.segments, self.rows = self.segments + 1, self.rows + stream.rows
        self.last, self.place = stream, place


def _verdicts(found: GroupStreams, group_id: str) -> list[PartitionVerdict]:
    numbers: dict[Place, int] = {place: number for number, place in enumerate(found.places)}
    judged: dict[tuple[str, int], _Judged] = {}
    for stream in found.streams:
        key, place = (stream.topic_id, stream.partition), numbers[stream.writer_epoch, stream.segment]
        judged.setdefault(key, _Judged(stream, place, stream.topic)).add(stream, place)
    return sorted(_as_verdicts(judged.items(), group_id), key=lambda one: (one.topic, one.partition, one.topic_id))


def _as_verdicts(judged: Iterable[tuple[tuple[str, int], _Judged]], group_id: str) -> Iterator[PartitionVerdict]:
    for (topic_id, partition), one in judged:
        yield PartitionVerdict(
            group_id=group_id,
            topic=one.topic,
            topic_id=topic_id,
            partition=partition,
            segments=one.segments,
            rows=one.rows,
            fault=one.fault,
        )


def _fault_between(before: Stream, now: Stream) -> str | None:
    """Return a fault between two segments. Epochs never fall, and micro-batches of one engine only grow (R86). A
    segment without a share-partition deleted it; a later one starts from the beginning (R91)."""
    for name, was, becomes in (
        ("state epoch", before.last_state_epoch, now.first_state_epoch),
        ("leader epoch", before.last_leader_epoch, now.first_leader_epoch),
    ):
        if was is not None and becomes is not None and becomes < was:
            return f"micro-batch {now.first_batch}: {name} falls from {was} to {becomes}"
    if before.writer_epoch == now.writer_epoch and now.first_batch <= before.last_batch:
        return f"micro-batch {now.first_batch}: comes after micro-batch {before.last_batch} of the segment before"
    return None
