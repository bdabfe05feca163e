"""The requests of clients outside of Spark, as one micro-batch takes and answers them.

Many requests share a commit: all that have come since the last micro-batch are decided in this one, in the order in
which they came, and answered once its append is durable. The next one takes what has come meanwhile. What clients ask
as members of their group (``GroupAsk``) is decided beside the share-partitions, and is in the same append.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from share_spark.coordinator.group import (
    GroupDecision,
    GroupRecord,
    GroupRequests,
    HeartbeatResponse,
    ShareGroup,
    decide_together,
    new_group,
)
from share_spark.engine.step import PartitionOutcome
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ShareError
from share_spark.model.ids import LogEnds, SharePartitionKey
from share_spark.model.requests import PartitionResponse
from share_spark.partition.kafka_modes import AcquireReadAhead, KafkaRequest

Asked = Mapping[SharePartitionKey, Sequence[KafkaRequest]]
"""Requests of clients by share-partition, in order."""


class ClientAsk(NamedTuple):
    """All that one client asks at once. ``number``: of the port. ``requests``: by share-partition, in order."""

    number: int
    requests: Mapping[SharePartitionKey, Sequence[KafkaRequest]]


class ClientAnswer(NamedTuple):
    """The answer to a ``ClientAsk``. ``responses``: one for each request; share-partitions that the group does not have
    are missing."""

    number: int
    responses: Mapping[SharePartitionKey, Sequence[PartitionResponse]]


class GroupAsk(NamedTuple):
    """All that members ask of their group at once. ``number``: of the port."""

    number: int
    requests: GroupRequests


class GroupAnswer(NamedTuple):
    """The answer to a ``GroupAsk``. ``group``: as it is after it; ``responses``: one for each heartbeat."""

    number: int
    group: ShareGroup | None
    responses: Sequence[HeartbeatResponse]


class Clients(Protocol):
    """The clients of one group that are outside of Spark. Its methods are called by the engine's thread."""

    def take(self) -> Sequence[ClientAsk]:
        """Return what was asked since the last call, without waiting."""
        ...

    def take_group(self) -> GroupAsk | None:
        """Return what members have asked of the group since the last call, without waiting. At most one ask has no
        answer at a time."""
        ...

    def answer_group(self, answer: GroupAnswer) -> None:
        """Take the answer to it; its effects are durable."""
        ...

    def configure(self, config: GroupConfig) -> None:
        """Take the settings of the group that count from now on."""
        ...

    def forget_reads(self, keys: Collection[SharePartitionKey]) -> None:
        """Forget what was read of the logs of these: they were truncated, and other records come there."""
        ...

    def answer(self, answers: Sequence[ClientAnswer], changed: Collection[SharePartitionKey]) -> None:
        """Take the answers to all that was taken; their effects are durable. ``changed``: the share-partitions whose
        state, or log, is another one now: who waits for records may ask again."""
        ...

    def refuse(self, fault: ShareError | None) -> None:
        """Give up what was taken and not answered, and all that is asked from now on: the engine has ended. ``fault``:
        why, None if it was stopped."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until something is asked, at most so long."""
        ...

    def stop_waiting(self) -> None:
        """End the present ``wait``, or the next one. From any thread."""
        ...


@dataclass(slots=True)
class ClientAsks:
    """The asks that the present micro-batch has taken. ``clients``: None if the group has none. ``_changed``: what they
    were not told of yet. ``_log_ends``: as noted last. ``_group_ask``, ``_decision``: of the members."""

    clients: Clients | None
    _taken: Sequence[ClientAsk] = ()
    _changed: set[SharePartitionKey] = field(default_factory=set)
    _log_ends: dict[SharePartitionKey, int] = field(default_factory=dict)
    _group_ask: GroupAsk | None = None
    _decision: GroupDecision | None = None
    _config: GroupConfig | None = None

    def take(
        self, known: Mapping[SharePartitionKey, LogEnds], paused: Collection[SharePartitionKey], config: GroupConfig
    ) -> Asked:
        """Take what was asked. Return it by share-partition, of those that are ``known``. Nothing is acquired of those
        that are ``paused``, nor past the known end of a log: that would be mistaken for a truncation as soon as the
        log does not answer. Clients are told of another ``config``."""
        if self.clients is None:
            return {}
        if config is not self._config:
            self._config = config
            self.clients.configure(config)
        self._taken, self._group_ask = self.clients.take(), self.clients.take_group()
        asked = dict[SharePartitionKey, list[KafkaRequest]]()
        for ask in self._taken:
            for key, requests in ask.requests.items():
                if key in known:
                    end_offset = 0 if key in paused else known[key].end_offset
                    asked.setdefault(key, []).extend(_below(end_offset, requests))
        return asked

    def leave(self) -> Asked:
        """Take nothing, and return nothing. What a micro-batch has taken that failed is left without an answer: this
        one decides something else. It is refused once the engine has ended."""
        self._taken = ()
        return {}

    @property
    def concern_group(self) -> bool:
        """Whether members have asked something."""
        return self._group_ask is not None

    def decide_group(self, group_id: str, group: ShareGroup | None) -> Sequence[GroupRecord]:
        """Return the records that the answer to members needs. Every group is there from the beginning: an unknown one
        is the end of librdkafka's consumer."""
        if self._group_ask is None:
            return ()
        self._decision = decide_together(group or new_group(group_id), self._group_ask.requests)
        return self._decision.records

    def note_logs(self, changed: Mapping[SharePartitionKey, LogEnds]) -> None:
        """Note that the logs of these end elsewhere now: there may be new records, or some may be gone."""
        if self.clients is None:
            return
        self._changed.update(changed)
        ends = {key: found.log_end for key, found in changed.items()}
        if cut := [key for key, end in ends.items() if end < self._log_ends.get(key, end)]:
            self.clients.forget_reads(cut)
        self._log_ends.update(ends)

    def stop_waiting(self) -> None:
        """End the present wait for clients, from any thread."""
        if self.clients is not None:
            self.clients.stop_waiting()

    def answer(self, outcomes: Iterable[PartitionOutcome], group: ShareGroup | None) -> None:
        """Answer what was taken. ``group``: as it is now."""
        if self.clients is None:
            return
        if self._group_ask is not None and self._decision is not None:
            self.clients.answer_group(GroupAnswer(self._group_ask.number, group, self._decision.responses))
            self._group_ask = self._decision = None
        left = dict[SharePartitionKey, Sequence[PartitionResponse]]()
        for outcome in outcomes:
            left[outcome.key] = outcome.responses
            if outcome.changed:
                self._changed.add(outcome.key)
        answers, changed = [_answer(ask, left) for ask in self._taken], self._changed
        self._taken, self._changed = (), set()
        if answers or changed:
            self.clients.answer(answers, changed)


def records_asked(asked: Asked) -> int:
    """Return how many records clients want at most."""
    return sum(one.max_records for requests in asked.values() for one in requests if isinstance(one, AcquireReadAhead))


def limited(asked: Asked, most: int, turn: int) -> Asked:
    """Return what is asked, with ``most`` records at most: never more, whatever the log batches are. Another
    share-partition is the first in each ``turn``."""
    keys, found = [*asked], dict[SharePartitionKey, Sequence[KafkaRequest]]()
    first, left = turn % max(1, len(keys)), most
    for key in (*keys[first:], *keys[:first]):
        requests = list[KafkaRequest]()
        for one in asked[key]:
            if isinstance(one, AcquireReadAhead):
                requests.append(one.with_at_most(left))
                left = max(0, left - one.max_records)
            else:
                requests.append(one)
        found[key] = requests
    return found


def _below(end_offset: int, requests: Iterable[KafkaRequest]) -> list[KafkaRequest]:
    return [one.below(end_offset) if isinstance(one, AcquireReadAhead) else one for one in requests]


def _answer(ask: ClientAsk, left: dict[SharePartitionKey, Sequence[PartitionResponse]]) -> ClientAnswer:
    """Take the responses to one ask from those that are ``left``, which are in the order of the asks."""
    responses = {}
    for key, requests in ask.requests.items():
        if key in left:
            responses[key], left[key] = left[key][: len(requests)], left[key][len(requests) :]
    return ClientAnswer(ask.number, responses)
