"""The topics in a topic table, and where they are kept. Values and text, no I/O.

Topics (id, number of partitions, log starts) are properties of the table, one per topic, because a commit that changes
properties conflicts with every concurrent append: no producer can append to a topic that is being deleted, and a reader
of the table at a version reads its topics at that version. Log ends change with every append and are not there: each
append carries the new ends of its partitions in its commit's ``userMetadata``.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from share_spark.delta.commit_files import note_fields
from share_spark.delta.table_kind import TableKind
from share_spark.engine.ports import RECORD_COLUMNS
from share_spark.model.errors import TopicError

KIND = TableKind(name="topic_log", text="topic table", version=1)
PARTITIONED_BY = ("topic", "partition")
COLUMNS = RECORD_COLUMNS

TABLE_PROPERTIES = {
    **KIND.properties,
    # Two appends to one partition must conflict, even those of different programs.
    "delta.isolationLevel": "Serializable",
    # Reads by offset or timestamp skip files by these; statistics of keys and values are never used.
    "delta.dataSkippingStatsColumns": "offset,timestamp",
    "delta.checkpointInterval": "100",
}

_TOPIC_PREFIX = "share_spark.topic."
_NOTE = "share_spark.append"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """One topic. ``starts``: log start offsets that are not 0. ``floors``: the log ends when records were last deleted,
    so that an end never falls when the newest records go.
    """

    topic_id: str
    partitions: int
    starts: Mapping[int, int] = field(default_factory=dict)
    floors: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the value of the property."""
        fields = {
            "id": self.topic_id,
            "partitions": self.partitions,
            "starts": self.starts,
            "floors": self.floors,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TopicEntry:
        """Return the topic; the inverse of ``to_json``."""
        fields = json.loads(text)
        return cls(
            topic_id=fields["id"],
            partitions=fields["partitions"],
            starts=_by_partition(fields["starts"]),
            floors=_by_partition(fields["floors"]),
        )

    def trimmed(self, before: Mapping[int, int], ends: Mapping[int, int]) -> TopicEntry:
        """Return the topic with the log start moved up to ``before`` (-1: to the end), never down or past the end."""
        starts = dict(self.starts)
        for partition, offset in before.items():
            wanted = ends[partition] if offset < 0 else min(offset, ends[partition])
            starts[partition] = max(starts.get(partition, 0), wanted)
        return replace(self, starts=starts, floors=dict(ends))


class AppendNote(NamedTuple):
    """Our note in the commit of an append: its id and topic, and the log ends after it."""

    append_id: str
    topic_id: str
    topic: str
    ends: Mapping[int, int]

    def to_json(self) -> str:
        """Return the ``userMetadata``."""
        return json.dumps({_NOTE: self._asdict()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> AppendNote | None:
        """Return the note, None if the text is not one of ours."""
        fields = note_fields(text).get(_NOTE)
        if not isinstance(fields, dict) or fields.keys() != set(cls._fields):
            return None
        return cls(**{**fields, "ends": _by_partition(fields["ends"])})


def entries(properties: Mapping[str, str]) -> dict[str, TopicEntry]:
    """Return the topics among a table's properties, by name."""
    return {
        key.removeprefix(_TOPIC_PREFIX): TopicEntry.from_json(value)
        for key, value in properties.items()
        if key.startswith(_TOPIC_PREFIX)
    }


def property_key(topic: str) -> str:
    """Return the name of the property that holds a topic."""
    return f"{_TOPIC_PREFIX}{topic}"


def new_topic_id() -> str:
    """Return a fresh UUID in Kafka's 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def check_topic(topic: str, partitions: int) -> None:
    """Check Kafka's rules for a new topic. Raises TopicError."""
    if not _NAME.fullmatch(topic) or topic in (".", ".."):
        raise TopicError(f"{topic!r} is not a valid topic name (letters, digits, '.', '_', '-')")
    if partitions < 1:
        raise TopicError(f"topic {topic!r} needs at least one partition, not {partitions}")


def check_properties(place: str, properties: Mapping[str, str]) -> None:
    """Check that a table with these properties is a topic table that we can read. Raises TopicError."""
    if (fault := KIND.fault(place, properties)) is not None:
        raise TopicError(fault)


def _by_partition(fields: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in fields.items()}
