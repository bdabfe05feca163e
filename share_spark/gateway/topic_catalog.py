"""The topics that clients see, with Kafka's ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from share_spark.coordinator.group import TopicMetadata
from share_spark.engine.ports import TopicDescription
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import LogEnds


class ListedTopicLog(Protocol):
    """A topic log that can tell which topics it has."""

    def describe_all(self) -> Iterable[TopicDescription]:
        """Return all topics. Raises TopicError, TopicUnreachableError."""
        ...

    def describe(self, topic: str) -> TopicDescription:
        """See ``TopicLog``."""
        ...

    def log_ends(self, topic: str) -> Mapping[int, LogEnds]:
        """See ``TopicLog``."""
        ...

    def offsets_at(self, topic: str, timestamp_ms: int) -> Mapping[int, int]:
        """See ``TopicLog``."""
        ...


@dataclass(slots=True)
class TopicCatalog:
    """The topics of a log. Its calls may wait for the storage: not for the thread of the event loop."""

    log: ListedTopicLog
    _names: dict[str, str] = field(default_factory=dict)

    def all(self) -> dict[str, TopicMetadata]:
        """Return all topics by their names. Raises TopicError, TopicUnreachableError."""
        return self._noted(self.log.describe_all())

    def of(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """Return those of these topics that are there. Raises TopicUnreachableError, TopicError: without ids, by which
        clients ask for topics."""
        return self._noted(self._described(names))

    def _described(self, names: Iterable[str]) -> Iterator[TopicDescription]:
        for name in names:
            try:
                yield self.log.describe(name)
            except TopicUnreachableError:
                raise
            except TopicError:
                self._forget({name})

    def _forget(self, names: Collection[str]) -> None:
        self._names = {topic_id: name for topic_id, name in self._names.items() if name not in names}

    def _noted(self, topics: Iterable[TopicDescription]) -> dict[str, TopicMetadata]:
        found = {}
        for one in topics:
            if one.topic_id == one.topic:
                raise TopicError(f"topic {one.topic!r} has no id: {self.log} is older than Kafka 2.8")
            found[one.topic] = TopicMetadata(one.topic_id, len(one.partitions))
        ids = {topic.topic_id: name for name, topic in found.items()}
        if not ids.keys() <= self._names.keys():
            self._forget(found)  # a topic that was deleted and created again has another id
            self._names |= ids
        return found

    def by_id(self, topic_ids: Iterable[str]) -> Mapping[str, str]:
        """Return the names of topics by their ids, as far as there are such topics. Raises TopicUnreachableError."""
        wanted = set(topic_ids)
        if not wanted <= self._names.keys():
            self.all()
        return {topic_id: self._names[topic_id] for topic_id in wanted if topic_id in self._names}
