"""The topics that a group subscribes to: their ids, their log ends, and the start offsets of new share-partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from share_spark.engine.busy_partitions import changed_keys
from share_spark.engine.ports import Clock, TopicDescription, TopicLog
from share_spark.engine.step import PartitionInput, PartitionSummary
from share_spark.model.config import OffsetReset
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.ids import LogEnds, SharePartitionKey

_log = logging.getLogger(__name__)

LogEndsByKey = Mapping[SharePartitionKey, LogEnds]

_IDENTITY_CHECK_MS = 5_000
"""The interval at which a live run checks the ids of its topics; a topic whose log ends go back is checked at once."""


@dataclass(slots=True, kw_only=True)
class SubscribedTopics:
    """Topics of one group on one topic log. Remembers their ids, to notice a topic that was created again.

    ``most_age_ms``: log ends may be so old. Nothing is acquired past the ends that are known, so older ones show a
    truncation later, and never one that is none.
    """

    group_id: str
    topics: Sequence[str]
    log: TopicLog
    clock: Clock
    most_age_ms: int = 0
    _described: dict[str, TopicDescription] = field(default_factory=dict)
    _ends: dict[SharePartitionKey, LogEnds] = field(default_factory=dict)
    _checked_ms: int = 0
    _ends_ms: int | None = None
    _known_keys: dict[str, dict[int, SharePartitionKey]] = field(default_factory=dict)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Add topics. Raises TopicError (unknown), TopicUnreachableError."""
        for topic in topics:
            if topic not in self.topics:
                self._described[topic] = self.log.describe(topic)
                self.topics = (*self.topics, topic)
                self._ends_ms = None

    def refresh(self) -> None:
        """Describe all topics. Raises TopicError (unknown, or created again since), TopicUnreachableError."""
        for topic in self.topics:
            found = self.log.describe(topic)
            known = self._described.get(topic)
            if known and known.topic_id != found.topic_id:
                raise _created_again(topic, known.topic_id, found.topic_id)
            self._described[topic] = found
        self._checked_ms = self.clock()

    def check_identity(self, known: Iterable[tuple[str, str]]) -> None:
        """Refuse a state that was made for a deleted topic of the same name. ``known``: (name, id) pairs of topics in
        the state. Raises TopicError."""
        for topic, topic_id in known:
            found = self._described.get(topic)
            if found and found.topic_id != topic_id:
                raise _created_again(topic, topic_id, found.topic_id)

    def log_ends(self) -> dict[SharePartitionKey, LogEnds]:
        """Return the ends of all partitions, in one call per topic, or those of the last call if they are not too old.
        Raises TopicError, TopicUnreachableError."""
        now_ms = self.clock()
        if self._ends_ms is not None and 0 <= now_ms - self._ends_ms < self.most_age_ms:
            return self._ends
        ends: dict[SharePartitionKey, LogEnds] = {}
        for topic in self.topics:
            found = self.log.log_ends(topic)
            ends.update(zip(map(self._keys(topic, found).__getitem__, found), found.values(), strict=True))
        before = self._ends
        changed = (key for key in changed_keys(before, ends) if key in before)
        # A log that ends earlier than before was truncated, or belongs to a new topic of the same name: check at once.
        gone_back = any(ends[key].end_offset < before[key].end_offset for key in changed)
        if gone_back or self.clock() - self._checked_ms >= _IDENTITY_CHECK_MS:
            self.refresh()
        self._ends, self._ends_ms = ends, now_ms
        return ends

    @property
    def last_ends(self) -> Mapping[SharePartitionKey, LogEnds]:
        """The last result of ``log_ends``; never changed afterwards."""
        return self._ends

    def log_ends_or_last(self) -> Mapping[SharePartitionKey, LogEnds]:
        """Return ``log_ends``, or its last result if the topics do not answer: an engine that stops acquires nothing,
        but has to commit and give back what it holds. Nothing was acquired past these ends, so they are never mistaken
        for a truncation. Raises TopicUnreachableError."""
        try:
            return self.log_ends()
        except TopicUnreachableError:
            raise
        except TopicError as fault:
            _log.warning("stopping with the last known log ends: %s", fault)
            return self._ends

    def names(self) -> Mapping[str, str]:
        """Return topic id -> topic name."""
        return {found.topic_id: topic for topic, found in self._described.items()}

    def initial_offsets(
        self,
        summaries: Mapping[SharePartitionKey, PartitionSummary],
        ends: Mapping[SharePartitionKey, LogEnds],
        reset: OffsetReset,
        now_ms: int,
    ) -> dict[SharePartitionKey, int]:
        """Return the SPSO of the share-partitions that have none (R26).

        ``reset`` decides for a topic that is new to the group. A partition that is added to a topic later begins at its
        log start, so that nothing written before it was noticed is skipped (KIP-1282's reading).
        """
        wanted = [key for key in ends if key not in summaries or summaries[key].start_offset < 0]
        seen = {key.topic_id for key, summary in summaries.items() if summary.start_offset >= 0} if wanted else set()
        added = {key: ends[key].log_start_offset for key in wanted if key.topic_id in seen}
        fresh = [key for key in wanted if key.topic_id not in seen]
        return added | (self._by_policy(fresh, ends, reset, now_ms) if fresh else {})

    def _by_policy(
        self,
        keys: Sequence[SharePartitionKey],
        ends: Mapping[SharePartitionKey, LogEnds],
        reset: OffsetReset,
        now_ms: int,
    ) -> dict[SharePartitionKey, int]:
        if reset.policy == "earliest":
            return {key: ends[key].log_start_offset for key in keys}
        if reset.policy == "latest":
            return {key: ends[key].end_offset for key in keys}
        found = self._offsets_at(now_ms - reset.duration_ms)
        # This request was later than the one for the ends: records between the two are new, whatever their time.
        return {key: min(max(found[key], ends[key].log_start_offset), ends[key].log_end) for key in keys}

    def _offsets_at(self, timestamp_ms: int) -> dict[SharePartitionKey, int]:
        return {
            self._key(topic, partition): offset
            for topic in self.topics
            for partition, offset in self.log.offsets_at(topic, timestamp_ms).items()
        }

    def _key(self, topic: str, partition: int) -> SharePartitionKey:
        return SharePartitionKey(self.group_id, self._described[topic].topic_id, partition)

    def _keys(self, topic: str, partitions: Mapping[int, object]) -> Mapping[int, SharePartitionKey]:
        """Return the keys by partition. They are the same objects each time, so ten thousand of them compare fast."""
        keys = self._known_keys.setdefault(self._described[topic].topic_id, {})
        keys.update((partition, self._key(topic, partition)) for partition in partitions.keys() - keys.keys())
        return keys


def begun(
    summaries: Mapping[SharePartitionKey, PartitionSummary], ends: Mapping[SharePartitionKey, LogEnds]
) -> dict[SharePartitionKey, LogEnds]:
    """Return ``ends`` of the share-partitions that have a start offset."""
    return {key: found for key, found in ends.items() if key in summaries and summaries[key].start_offset >= 0}


def warn_of_truncations(
    partition_inputs: Mapping[SharePartitionKey, PartitionInput],
    summaries: Mapping[SharePartitionKey, PartitionSummary],
) -> None:
    """Warn of records that were in the log and are gone."""
    for key, partition_input in partition_inputs.items():
        if partition_input.truncated_to is not None:
            _log.warning(
                "partition %s of topic %r was truncated: its log ends at offset %s, and offsets %s to %s are gone; "
                "what is written there from now on are new records",
                *(key.partition, partition_input.topic, partition_input.truncated_to),
                *(partition_input.truncated_to, summaries[key].end_offset - 1),
            )


def _created_again(topic: str, known: str, found: str) -> TopicError:
    return TopicError(
        f"topic {topic!r} was deleted and created again (topic id was {known}, is {found}); "
        "its share-group state belongs to the old one: use another group or delete the state"
    )
