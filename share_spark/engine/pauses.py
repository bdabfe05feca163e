"""The pauses of a group: nothing is acquired of a paused share-partition, until a time or until somebody resumes it.
Values only; ``maintenance.operator_files`` keeps them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from share_spark.model.ids import SharePartitionKey


class Pause(NamedTuple):
    """A pause. ``topic`` None: the whole group; ``partition`` None: the whole topic. ``until_ms``: its end, in
    milliseconds since the epoch; None: it does not end by itself."""

    topic: str | None = None
    partition: int | None = None
    until_ms: int | None = None

    def holds(self, topic: str, partition: int, now_ms: int) -> bool:
        """Return whether it pauses this share-partition. A pause ends *at* its time."""
        if self.until_ms is not None and self.until_ms <= now_ms:
            return False
        return self.topic in (None, topic) and self.partition in (None, partition)

    @property
    def target(self) -> tuple[str | None, int | None]:
        """The (topic, partition) that it pauses."""
        return self.topic, self.partition

    @property
    def place(self) -> str:
        """``all topics``, ``orders`` or ``orders:0``."""
        return (self.topic if self.partition is None else f"{self.topic}:{self.partition}") or "all topics"

    def __str__(self) -> str:
        """Return the place, and the end."""
        return self.place + ("" if self.until_ms is None else f" until {_iso_time(self.until_ms)}")


Topics = Mapping[str, Collection[int]]
"""Topics with their partitions; an empty collection means all of them."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses of one group."""

    entries: tuple[Pause, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def holds(self, topic: str, partition: int, now_ms: int) -> bool:
        """Return whether this share-partition is paused."""
        return any(pause.holds(topic, partition, now_ms) for pause in self.entries)

    def held(
        self, keys: Iterable[SharePartitionKey], names: Mapping[str, str], now_ms: int
    ) -> frozenset[SharePartitionKey]:
        """Return those of ``keys`` that are paused. ``names``: topic id -> name."""
        if not self:
            return frozenset()
        return frozenset(key for key in keys if self.holds(names[key.topic_id], key.partition, now_ms))

    def at(self, now_ms: int) -> Pauses:
        """Return the pauses without those that have ended."""
        return Pauses(tuple(one for one in self.entries if one.until_ms is None or one.until_ms > now_ms))

    def paused(self, topics: Topics | None, until_ms: int | None) -> Pauses:
        """Add pauses for ``topics``, None for the whole group. They replace earlier ones of the same targets."""
        added = [Pause(*target, until_ms) for target in _targets(topics)]
        replaced = {pause.target for pause in added}
        return _sorted([*(one for one in self.entries if one.target not in replaced), *added])

    def resumed(self, topics: Topics | None) -> Pauses:
        """Remove the pauses of ``topics``, None for all. A topic's partitions are resumed with it."""
        if topics is None:
            return Pauses()
        targets = set(_targets(topics))
        return Pauses(tuple(one for one in self.entries if not {one.target, (one.topic, None)} & targets))

    def not_paused(self, topics: Topics | None) -> Topics:
        """Return those of ``topics`` that no pause is about."""
        paused = {pause.target for pause in self.entries} | {(pause.topic, None) for pause in self.entries}
        return {
            topic: numbers
            for topic, numbers in (topics or {}).items()
            if not paused.issuperset(_targets({topic: numbers}))
        }

    def still_holding(self, topics: Topics | None) -> Pause | None:
        """Return a wider pause that still holds one of ``topics`` after they are resumed."""
        left = [one for one in self.resumed(topics).entries if one.partition is None]
        names = {topic for topic, _ in _targets(topics)}
        return next((one for one in left if one.topic is None or one.topic in names), None)

    def __str__(self) -> str:
        """Return ``orders:0 until 2026-01-31T10:00:00+00:00, bills``; ``nothing`` if there are none."""
        return ", ".join(map(str, self.entries)) or "nothing"


NOT_PAUSED = Pauses()


def _iso_time(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1_000, UTC).isoformat()


def _targets(topics: Topics | None) -> list[tuple[str | None, int | None]]:
    if topics is None:
        return [(None, None)]
    return [
        (topic, partition)
        for topic, numbers in topics.items()
        for partition in (sorted(numbers) if numbers else [None])
    ]


def _sorted(pauses: Iterable[Pause]) -> Pauses:
    """Return the pauses in order: the whole group first, a topic before its partitions."""
    return Pauses(
        tuple(sorted(pauses, key=lambda one: (one.topic or "", -1 if one.partition is None else one.partition)))
    )
