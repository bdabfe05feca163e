"""Writes to a topic table: topics, records, deletions.

**Why two producers never assign the same offsets.** Records that are given one by one are committed at the version at
which their offsets were chosen, or not at all (``topic_appends``). A frame is written by Spark, which commits at any
later version. A blind append conflicts with nothing, so ours are not blind: each has, as one more branch of the rows it
writes, a read of its partitions from the first offset it assigns, and every row that this read finds raises an error.
Rows that were there before the append began stop it by that error; rows committed while it runs stop it by Delta's
conflict check (the table is Serializable and the read is part of the transaction). Either way nothing was written, and
the append is tried again from the new ends. If Delta ever treats such an append as a blind one, the reader of its
commit logs a warning.

Administration (create, delete, trim) rewrites a property of the table; two administrators at the same moment are not
serialized, unlike on a broker.
"""

from __future__ import annotations

import logging
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import MovedError
from share_spark.delta.direct_metadata import change_properties
from share_spark.delta.location import properties_clause
from share_spark.delta.native_changes import RowFilter
from share_spark.delta.table_maintenance import KeptTable, is_conflict
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.spark import functions as F
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.frames import is_frame
from share_spark.spark.on_demand import session_of
from share_spark.topics import topic_registry
from share_spark.topics.topic_appends import DirectTopicAppends, NumberedMessage
from share_spark.topics.topic_registry import AppendNote, TopicEntry
from share_spark.topics.topic_view import TopicState, TopicTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LOG = logging.getLogger(__name__)

ROWS_PER_FILE = 50_000
"""The most rows of a file: several tasks can then read one append of a topic."""

_TRIES = 30
_CHANGE_ERRORS: tuple[type[Exception], ...] = (MovedError, *JVM_ERRORS)
_TAKEN = "share_spark: offsets taken by another producer"
_HEADERS = "array<struct<key:string,value:binary>>"
_NUMBERED_COLUMNS = f"partition int, number bigint, timestamp timestamp, key binary, value binary, headers {_HEADERS}"
_T = TypeVar("_T")


class Message(NamedTuple):
    """A record to append. ``partition`` None: by the key, or in turn. ``timestamp`` None: now."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp: Any = None
    headers: Sequence[tuple[str, bytes | None]] | None = None


class _Place(NamedTuple):
    """The place of an append: after ``version`` of the table, each partition from its base offset on."""

    version: int
    bases: Mapping[int, int]
    note: AppendNote


class TopicProducer:
    """Writer to one topic table; it creates the table if there is none."""

    def __init__(self, table: TopicTable) -> None:
        self._table = table
        self._spark = table.spark
        self._location = table.location
        self._direct: DirectTopicAppends | None = None

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic. Raises TopicError: exists already, a bad name, something else is in this place."""
        topic_registry.check_topic(topic, partitions)
        if self._location.is_free(self._spark):
            self._location.create(
                self._spark,
                topic_registry.COLUMNS,
                partitioned_by=topic_registry.PARTITIONED_BY,
                properties=topic_registry.TABLE_PROPERTIES,
            )
        if self._table.find(topic) is not None:
            raise TopicError(f"topic {topic!r} exists already (topic table {self._location})")
        entry = TopicEntry(topic_id=topic_registry.new_topic_id(), partitions=partitions)
        self._put(topic, entry)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Grow to ``partitions``. Raises TopicError: no such topic, or not more than it has."""
        entry = self._table.topic(topic).entry
        if partitions <= entry.partitions:
            raise TopicError(f"topic {topic!r} has {entry.partitions} partitions already")
        self._put(topic, replace(entry, partitions=partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, emptied first: a crash on the way leaves no rows to a later topic of that name."""
        self.delete_records(topic, dict.fromkeys(self._table.topic(topic).ends, -1))
        self._change(topic_registry.property_key(topic), None)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move log starts up to these offsets (-1: the log end) and delete the records below."""
        state = self._known(topic, before)
        entry = state.entry.trimmed(before, _end_offsets(state))
        # The log start first: readers ignore rows below it, but missing rows above it would be gaps.
        self._put(topic, entry)
        self._delete(topic, {p: f"< {entry.starts[p]}" for p in before})

    def remove_offsets(self, topic: str, offsets: Mapping[int, Iterable[int]]) -> None:
        """Remove single records, as compaction does: gaps remain, the log ends do not move."""
        state = self._known(topic, offsets)
        # The log ends first: they follow from the highest offsets in the table, which may be deleted now.
        self._put(topic, replace(state.entry, floors=_end_offsets(state)))
        texts = {p: ", ".join(map(str, wanted)) for p, wanted in offsets.items()}
        chosen = {p: f"IN ({text})" for p, text in texts.items() if text}
        self._delete(topic, chosen)

    def append(self, topic: str, records: DataFrame | Iterable[Message]) -> dict[int, int]:
        """See ``EmbeddedTopicLog.append``."""
        partitions = self._table.topic(topic).entry.partitions
        try:
            if is_frame(records):
                return self._append_frame(topic, records, partitions)
            return self._append_messages(topic, records, partitions)
        except JVM_ERRORS as error:
            raise TopicError(f"append to {topic!r} failed: {first_line(error)}") from error

    def _append_messages(self, topic: str, messages: Iterable[Message], partitions: int) -> dict[int, int]:
        rows = _numbered_messages(messages, partitions)
        counts = Counter(row.partition for row in rows)
        try:
            return self._append_directly(topic, rows, counts)
        except NotImplementedError as reason:
            _LOG.info("%s: appended to by Spark, which takes longer: %s", self._location, reason)
            session = session_of(self._spark, f"{self._location} can be appended to by Spark only ({reason})")
            frame = session.createDataFrame(rows, _NUMBERED_COLUMNS).coalesce(1)
            return self._append_numbered(topic, frame, counts)

    def _append_directly(
        self, topic: str, rows: Sequence[NumberedMessage], counts: Mapping[int, int]
    ) -> dict[int, int]:
        """Append without Spark. Raises NotImplementedError: only Spark can."""
        self._known(topic, counts)
        if not rows:
            return {}
        direct = self._direct = self._direct or DirectTopicAppends.to(
            self._spark, self._location.directory(self._spark)
        )
        return self._retrying(lambda: self._append_directly_once(direct, topic, rows, counts))

    def _append_directly_once(
        self, direct: DirectTopicAppends, topic: str, rows: Sequence[NumberedMessage], counts: Mapping[int, int]
    ) -> dict[int, int]:
        version = direct.refresh()
        place = self._place(topic, counts)
        if place.version != version:
            raise MovedError("another commit came between")
        return self._committed(place, lambda: direct.append(rows, place.bases, place.note, ROWS_PER_FILE))

    def _append_frame(self, topic: str, frame: DataFrame, partitions: int) -> dict[int, int]:
        """Append a frame. It is cached while it is counted and written, so that both see the same rows."""
        numbered = _numbered(frame, partitions).persist()
        try:
            counts = numbered.groupBy("partition").count().collect()
            return self._append_numbered(topic, numbered, dict(map(tuple, counts)))
        finally:
            numbered.unpersist()

    def _append_numbered(self, topic: str, numbered: DataFrame, counts: Mapping[int, int]) -> dict[int, int]:
        self._known(topic, counts)
        if not counts:
            return {}
        return self._retrying(lambda: self._append_once(topic, numbered, counts))

    def _append_once(self, topic: str, numbered: DataFrame, counts: Mapping[int, int]) -> dict[int, int]:
        place = self._place(topic, counts)
        rows = _with_offsets(topic, numbered, place.bases).unionByName(self._guard(topic, place.bases))
        return self._committed(place, lambda: self._write(rows, place.note))

    def _committed(self, place: _Place, write: Callable[[], None]) -> dict[int, int]:
        """Commit, and return the new end offsets. An error may come after the commit: repeating it would write the
        records twice."""
        try:
            write()
        except JVM_ERRORS as error:
            _LOG.debug("append to %s: %s", place.note.topic, first_line(error))
            if not self._table.holds_append(place.note.append_id):
                raise
        return dict(place.note.ends)

    def _place(self, topic: str, counts: Mapping[int, int]) -> _Place:
        state = self._known(topic, counts)
        bases = {partition: state.ends[partition].end_offset for partition in counts}
        ends = {partition: bases[partition] + count for partition, count in counts.items()}
        return _Place(state.version, bases, AppendNote(uuid.uuid4().hex, state.entry.topic_id, topic, ends))

    def _write(self, rows: DataFrame, note: AppendNote) -> None:
        """Write by path, also to a named table: only then the read in ``rows`` is part of the commit."""
        writer = rows.write.format("delta").mode("append").option("userMetadata", note.to_json())
        writer = writer.option("maxRecordsPerFile", ROWS_PER_FILE)
        writer.save(self._location.directory(self._spark))

    def _guard(self, topic: str, bases: Mapping[int, int]) -> DataFrame:
        """Return no rows, or an error for each row that these partitions have from the assigned offsets on."""
        table = self._location.load(session_of(self._spark, f"{self._location} is appended a frame"))
        taken = table.where(
            (F.col("topic") == topic)
            & F.col("partition").isin(list(bases))
            & (F.col("offset") >= min(bases.values()))
            & (F.col("offset") >= _looked_up(bases))
        )
        error = F.raise_error(F.lit(_TAKEN))
        return taken.select(*(error.cast(field.dataType).alias(field.name) for field in table.schema.fields))

    def _known(self, topic: str, partitions: Iterable[int]) -> TopicState:
        state = self._table.topic(topic)
        if unknown := sorted(set(partitions) - set(state.ends)):
            raise TopicError(f"topic {topic!r} has no partition {unknown[0]}")
        return state

    def _put(self, topic: str, entry: TopicEntry) -> None:
        self._change(topic_registry.property_key(topic), entry.to_json())

    def _change(self, name: str, value: str | None) -> None:
        """Set a property; None removes it. Spark does it for a named table, as a catalog has properties of its own."""
        if self._location.path is not None:
            try:
                change_properties(CommitFiles.at(self._spark, self._location.path), {name: value})
                return
            except NotImplementedError as reason:
                _LOG.debug("%s: properties are changed by Spark: %s", self._location, reason)
        pair = properties_clause({name: value or ""})
        key = pair.split(" = ")[0] + ")"
        change = f"UNSET TBLPROPERTIES IF EXISTS {key}" if value is None else f"SET TBLPROPERTIES {pair}"
        session = session_of(self._spark, f"properties of {self._location} can be changed by Spark only")
        self._retrying(lambda: session.sql(f"ALTER TABLE {self._location.sql_name()} {change}"))

    def _delete(self, topic: str, chosen: Mapping[int, str]) -> None:
        """Delete records. ``chosen``: by partition, the condition on offsets."""
        if not chosen:
            return
        table = KeptTable(self._spark, self._location)
        where = RowFilter(spark=_rows_of(topic, chosen, "`"), delta_rs=_rows_of(topic, chosen, '"'))
        if not table.delete(where):
            raise TopicUnreachableError(f"{self._location}: too many writers, gave up")

    def _retrying(self, change: Callable[[], _T]) -> _T:
        """Try again after a conflict, for a bounded number of times. Raises TopicUnreachableError."""
        for attempt in range(_TRIES):
            try:
                return change()
            except _CHANGE_ERRORS as error:
                if not _is_conflict(error):
                    raise
                _LOG.debug("conflict on %s, try %d: %s", self._location, attempt, first_line(error))
                time.sleep(0.02 * attempt)  # longer each time, so that many producers do not meet again
        raise TopicUnreachableError(f"{self._location}: too many writers, gave up after {_TRIES}")


def _rows_of(topic: str, chosen: Mapping[int, str], quote: str) -> str:
    """Return the condition in the dialect that quotes names with ``quote``. A topic's name needs no escapes."""
    parts = [f"(partition = {partition} AND {quote}offset{quote} {offsets})" for partition, offsets in chosen.items()]
    return f"topic = '{topic}' AND ({' OR '.join(parts)})"


def _numbered(frame: DataFrame, partitions: int) -> DataFrame:
    """Return complete rows with their partition and ``number``, from 0 in the order of the input."""
    missing = {"key": "binary", "partition": "int", "timestamp": "timestamp"}
    missing["headers"] = _HEADERS
    if "value" not in frame.columns:
        raise TopicError("records to append need a column 'value'")
    complete = frame.withColumns({n: F.lit(None).cast(kind) for n, kind in missing.items() if n not in frame.columns})
    placed = complete.withColumn("sequence", F.monotonically_increasing_id()).select(
        "sequence",
        _partition(partitions).cast("int").alias("partition"),
        F.coalesce("timestamp", F.current_timestamp()).alias("timestamp"),
        F.col("key").cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        F.col("headers").cast(missing["headers"]).alias("headers"),
    )
    from pyspark.sql import Window

    order = Window.partitionBy("partition").orderBy("sequence")
    return placed.withColumn("number", F.row_number().over(order) - 1).drop("sequence")


def _partition(partitions: int) -> Column:
    """Return the given partition, else one by the key, else in turn."""
    by_key = F.when(F.col("key").isNotNull(), F.pmod(F.crc32("key"), F.lit(partitions)))
    in_turn = F.pmod(F.col("sequence"), F.lit(partitions))
    return F.coalesce("partition", by_key, in_turn)


def _with_offsets(topic: str, numbered: DataFrame, bases: Mapping[int, int]) -> DataFrame:
    return numbered.select(
        F.lit(topic).alias("topic"),
        "partition",
        (_looked_up(bases) + F.col("number")).cast("bigint").alias("offset"),
        "timestamp",
        "key",
        "value",
        "headers",
    )


def _looked_up(bases: Mapping[int, int]) -> Column:
    """Return the base offset of the row's partition."""
    if len(set(bases.values())) == 1:
        return F.lit(next(iter(bases.values()))).cast("bigint")
    pairs = [F.lit(value) for pair in bases.items() for value in pair]
    return F.element_at(F.create_map(*pairs), F.col("partition")).cast("bigint")


def _numbered_messages(messages: Iterable[Message], partitions: int) -> list[NumberedMessage]:
    """Do as ``_numbered``, on the driver: a few records need no shuffle."""
    now = datetime.now(UTC)
    counts: Counter[int] = Counter()
    rows = []
    for sequence, (value, key, partition, timestamp, headers) in enumerate(messages):
        turn = sequence if key is None else zlib.crc32(key)
        place = turn % partitions if partition is None else partition
        pairs = None if headers is None else list(headers)
        rows.append(NumberedMessage(place, counts[place], timestamp or now, key, value, pairs))
        counts[place] += 1
    return rows


def _is_conflict(error: Exception) -> bool:
    """Return whether another writer committed first, by Delta's check or ours."""
    return isinstance(error, MovedError) or is_conflict(error) or _TAKEN in str(error)


def _end_offsets(state: TopicState) -> dict[int, int]:
    return {partition: ends.end_offset for partition, ends in state.ends.items()}
