"""The topics of a topic table and their log ends, kept up to date commit by commit.

A look when nothing was written costs two requests to the file system. An append of ours carries the new log ends in its
commit. Only the first look, and rows that another program has written, need a query for the highest offsets.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from share_spark.delta.commit_files import CommitFile, CommitFiles
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import LogEnds
from share_spark.spark import functions as F
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.on_demand import AnySpark, session_of
from share_spark.topics import topic_registry
from share_spark.topics.record_times import offsets_since
from share_spark.topics.topic_files import TopicFiles, offsets_of, partition_of
from share_spark.topics.topic_registry import AppendNote, TopicEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.delta.location import Location
    from share_spark.engine.delivery_port import AcquiredSpan
    from share_spark.topics.topic_file_rows import TopicFileReader


_LOG = logging.getLogger(__name__)
_REMEMBERED_APPENDS = 256


class TopicState(NamedTuple):
    """One topic at one version of the table."""

    version: int
    entry: TopicEntry
    ends: Mapping[int, LogEnds]


@dataclass(slots=True, kw_only=True)
class TopicView:
    """The table at ``version``: its topics, and one past the highest offset that was ever written, per topic and
    partition (0 where there is none). ``append_ids``: of the latest appends. ``_states``: as of the last call: a
    micro-batch makes several."""

    version: int
    topics: dict[str, TopicEntry] = field(default_factory=dict)
    written: dict[str, dict[int, int]] = field(default_factory=dict)
    append_ids: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_APPENDS))
    _states: dict[str, TopicState] = field(default_factory=dict)

    def state(self, topic: str) -> TopicState | None:
        """Return the topic with its log ends; None if there is no such topic."""
        if (entry := self.topics.get(topic)) is None:
            return None
        known = self._states.get(topic)
        if known is not None and known.version == self.version:
            return known
        written = self.written.get(topic, {})
        ends = {}
        for partition in range(entry.partitions):
            start = entry.starts.get(partition, 0)
            end = max(written.get(partition, 0), entry.floors.get(partition, 0), start)
            ends[partition] = LogEnds(start, end)
        found = self._states[topic] = TopicState(self.version, entry, ends)
        return found

    def apply(self, commit: CommitFile) -> bool:
        """Take in one commit; return False if the log ends cannot be inferred from it."""
        self.version += 1
        if commit.properties is not None:
            self._adopt(topic_registry.entries(commit.properties))
        note = AppendNote.from_json(commit.note)
        if note is None:
            return not commit.adds_data
        # Only an append that is not blind conflicts with others: see ``topic_producer``.
        if commit.blind:
            _LOG.warning("Delta took an append to %s for a blind one: producers may collide", note.topic)
        self.append_ids.append(note.append_id)
        if note.topic in self.topics and self.topics[note.topic].topic_id == note.topic_id:
            self.written.setdefault(note.topic, {}).update(note.ends)
        return True

    def _adopt(self, topics: dict[str, TopicEntry]) -> None:
        """Adopt the topics. One that was deleted and created again under the same name starts at offset 0."""
        for topic, before in self.topics.items():
            if topic not in topics or topics[topic].topic_id != before.topic_id:
                self.written.pop(topic, None)
        self.topics = topics


def view_of(log: TableLog, place: str) -> TopicView:
    """Return the view of a table, whose log keeps its files, without a query. Raises TopicError (no topic table of
    ours), UnknownTableError (the log does not have the offsets in its files)."""
    topic_registry.check_properties(place, log.properties)
    written: dict[str, dict[int, int]] = {}
    for file in log.active.values():
        extent = offsets_of(file)
        if extent is None:
            raise UnknownTableError("a file has no statistics of its offsets")
        topic, partition = partition_of(file)
        ends = written.setdefault(topic, {})
        ends[partition] = max(ends.get(partition, 0), extent[1] + 1)
    return TopicView(version=log.version, topics=topic_registry.entries(log.properties), written=written)


class TopicTable:
    """A topic table with its view. ``spark``: used only for what only Spark can do; safe for threads."""

    def __init__(self, spark: AnySpark, location: Location) -> None:
        self.spark = spark
        self.location = location
        self._files: CommitFiles | None = None
        self._view: TopicView | None = None
        self._record_files: TopicFiles | None = None
        self._lock = threading.Lock()

    def find(self, topic: str) -> TopicState | None:
        """Return the topic, None if there is no such topic.

        Raises TopicError (no topic table), TopicUnreachableError (storage).
        """
        with self._lock:
            return self._now().state(topic)

    def names(self) -> tuple[str, ...]:
        """Return the names of all topics. Raises as ``find``."""
        with self._lock:
            return tuple(self._now().topics)

    def topic(self, topic: str) -> TopicState:
        """Return the topic. Raises as ``find``, and TopicError if there is no such topic."""
        if (found := self.find(topic)) is None:
            raise TopicError(f"topic {topic!r} does not exist (topic table {self.location})")
        return found

    def reader(
        self, acquired: Sequence[AcquiredSpan], ends: Mapping[str, Mapping[int, LogEnds]]
    ) -> TopicFileReader | None:
        """Return a reader of the acquired records, as ``TopicFiles.holding``. Raises as ``find``."""
        with self._lock:
            self._now()
            return self._record_files.holding(acquired, ends) if self._record_files is not None else None

    def offsets_since(self, topic: str, timestamp_ms: int, ends: Mapping[int, LogEnds]) -> dict[int, int] | None:
        """Return, by partition, the first offset that is not older, else the end; None: Spark has to look. ``ends``: of
        the topic. Raises as ``find``."""
        with self._lock:
            self._now()
            if self._record_files is None or not self._record_files.is_readable():
                return None
            try:
                return offsets_since(self._record_files.log, topic, timestamp_ms, ends)
            except UnknownTableError as reason:
                _LOG.debug("times of %s are looked up by Spark: %s", topic, reason)
                return None

    def holds_append(self, append_id: str) -> bool:
        """Return whether this append is among the latest commits. Raises as ``find``."""
        with self._lock:
            return append_id in self._now().append_ids

    def _now(self) -> TopicView:
        try:
            if self._view is None or not self._catch_up(self._view):
                self._view = self._load()
        except JVM_ERRORS as error:
            self._view = None
            message = f"topic table {self.location} cannot be read: {first_line(error)}"
            raise TopicUnreachableError(message, what="topic table") from error
        return self._view

    def _catch_up(self, view: TopicView) -> bool:
        """Apply the commits since; return False if the view must be loaded again."""
        files = self._files
        if files is None or not files.exists(view.version):
            return False
        try:
            return all(view.apply(commit) for commit in self._commits_since(files, view.version))
        except UnknownTableError:
            return False

    def _commits_since(self, files: CommitFiles, version: int) -> Iterator[CommitFile]:
        if self._record_files is not None:
            yield from (commit for _, commit in self._record_files.log.catch_up())
            return
        while (commit := files.read(version + 1)) is not None:
            version += 1
            yield commit

    def _load(self) -> TopicView:
        if not self.location.exists(self.spark):
            raise TopicError(f"there is no topic table at {self.location}")
        files = CommitFiles.at(self.spark, self.location.directory(self.spark))
        self._record_files = None
        try:
            log = TableLog.open(files, keeps_files=True)
            view = view_of(log, str(self.location))
        except UnknownTableError as reason:
            _LOG.debug("%s is read by Spark: %s", self.location, reason)
            return self._load_by_spark(files)
        self._files, self._record_files = files, TopicFiles(log)
        return view

    def _load_by_spark(self, files: CommitFiles) -> TopicView:
        session = session_of(self.spark, f"{self.location} has files whose offsets only Spark can find out")
        version = files.latest_version()
        properties = self.location.properties(self.spark)
        topic_registry.check_properties(str(self.location), properties)
        topics = topic_registry.entries(properties)
        written = self._written(session, version) if topics else {}
        # Properties are as of now, offsets as of ``version``: they agree only if there is no commit between them.
        if files.exists(version + 1):
            return self._load_by_spark(files)
        self._files = files
        return TopicView(version=version, topics=topics, written=written)

    def _written(self, session: SparkSession, version: int) -> dict[str, dict[int, int]]:
        table = self.location.load(session, version)
        highest = table.groupBy("topic", "partition").agg(F.max("offset").alias("offset"))
        written: dict[str, dict[int, int]] = {}
        for topic, partition, offset in highest.collect():
            written.setdefault(topic, {})[partition] = offset + 1
        return written
