"""A dead letter as it stands in its table, and filters of letters: values, no I/O."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.kafka.letter_headers import Headers
from share_spark.model.moments import FIRST_MOMENT, LAST_MOMENT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LetterKey(NamedTuple):
    """The identity of a letter in its table: a record can become one again when its topic was deleted and created anew,
    or when its log was truncated. ``archived_at_us``: microseconds since the epoch."""

    group_id: str
    topic: str
    partition: int
    offset: int
    archived_at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A row of a dead-letter table (``output.letter_columns``). ``error``: the last one, None for a plain reject."""

    group_id: str
    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    delivery_count: int
    reason: str
    error: str | None
    archived_at: datetime
    corrected_value: bytes | None = None
    redriven_at: datetime | None = None
    redrive_id: str | None = None

    @property
    def identity(self) -> LetterKey:
        """The letter's key in its table."""
        return LetterKey(self.group_id, self.topic, self.partition, self.offset, microseconds(self.archived_at))

    @property
    def value_to_send(self) -> bytes | None:
        """The value that a redrive sends: the corrected value, if there is one."""
        return self.value if self.corrected_value is None else self.corrected_value

    @property
    def size(self) -> int:
        """The size of what is sent, without headers, in bytes."""
        return len(self.key or b"") + len(self.value_to_send or b"")

    @property
    def message(self) -> str:
        """The last error, else the reason."""
        return self.reason if self.error is None else self.error


def letters_of(rows: pa.Table) -> list[Letter]:
    """Return rows with all columns as letters."""
    for number, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            rows = rows.set_column(number, column.name, _in_python(rows.column(number)))
    return [_letter(row) for row in rows.to_pylist()]


def _in_python(times: Any) -> Any:
    least, most = microseconds(FIRST_MOMENT), microseconds(LAST_MOMENT)
    found: Any = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    found = pc.min_element_wise(pc.max_element_wise(found, least, skip_nulls=False), most, skip_nulls=False)
    return found.cast(pa.timestamp("us", "UTC"))


def _letter(row: Mapping[str, Any]) -> Letter:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return Letter(**{name: row[name] for name in Letter.__dataclass_fields__ if name != "headers"}, headers=headers)


def microseconds(moment: datetime) -> int:
    """Return microseconds since the epoch."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """A filter of letters; by default all of them. All conditions have to hold.

    ``topics``: with their partitions, none for all of them. ``offsets``: first and last. ``reason``, ``error``: a part
    of the text, in upper or lower case. ``header``: a name, and the value it has (None: any). ``since``, ``until``
    (exclusive): when they were archived. ``redriven``: only those that were, or were not.
    """

    group: str | None = None
    topics: Mapping[str, Collection[int]] = field(default_factory=dict)
    offsets: tuple[int, int] | None = None
    reason: str | None = None
    error: str | None = None
    header: tuple[str, bytes | None] | None = None
    since: datetime | None = None
    until: datetime | None = None
    redriven: bool | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that have to be read to apply the filter."""
        narrow = ["group_id", "topic", "partition", "offset", "reason", "error", "archived_at", "redriven_at"]
        return [*narrow, *(["headers"] if self.header is not None else [])]

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Return the chosen ones of ``rows`` (``columns``, and any others)."""
        tests = self._tests()
        found = rows.filter(functools.reduce(operator.and_, tests)) if tests else rows
        return found if self.header is None else found.filter(self._with_header(found, *self.header))

    def _tests(self) -> list[pc.Expression]:
        of_topics = [_of_topic(topic, partitions) for topic, partitions in self.topics.items()]
        tests: list[Any] = [functools.reduce(operator.or_, of_topics)] if of_topics else []
        if self.group is not None:
            tests.append(pc.field("group_id") == self.group)
        if self.offsets is not None:
            first, last = self.offsets
            tests.append((pc.field("offset") >= first) & (pc.field("offset") <= last))
        for column, part in (("reason", self.reason), ("error", self.error)):
            if part is not None:
                tests.append(pc.match_substring(pc.field(column), part, ignore_case=True))
        if self.since is not None:
            tests.append(pc.field("archived_at") >= pa.scalar(self.since, pa.timestamp("us", "UTC")))
        if self.until is not None:
            tests.append(pc.field("archived_at") < pa.scalar(self.until, pa.timestamp("us", "UTC")))
        if self.redriven is not None:
            was = pc.field("redriven_at").is_valid()
            tests.append(was if self.redriven else ~was)
        return tests

    @staticmethod
    def _with_header(rows: pa.Table, name: str, value: bytes | None) -> pa.BooleanArray:
        def has(headers: list[Mapping[str, Any]] | None) -> bool:
            return any(one["key"] == name and value in (None, one["value"]) for one in headers or ())

        return pa.array([has(headers) for headers in rows.column("headers").to_pylist()], pa.bool_())


def _of_topic(topic: str, partitions: Collection[int]) -> Any:
    is_topic: Any = pc.field("topic") == topic
    return is_topic & pc.field("partition").isin(sorted(partitions)) if partitions else is_topic
