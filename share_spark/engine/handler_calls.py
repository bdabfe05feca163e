"""The calls of handlers, as one engine makes them: how many records they may get, what they have answered, and what is
still in flight. Handlers that wait answer later than the micro-batch that acquired their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from share_spark.engine.acquisition_limits import AcquisitionLimits
from share_spark.engine.answers import answers_for, has_any, throttled_in
from share_spark.engine.concurrency import CallAnswers, Concurrency
from share_spark.engine.delivery_port import (
    AcknowledgedSpans,
    AcquiredSpan,
    CallsLook,
    Delivered,
    Delivery,
    DeliveryLimits,
)
from share_spark.engine.output_commits import OutputCommits
from share_spark.engine.pending import PendingAcknowledgements
from share_spark.engine.planning import PlanInputs, Search
from share_spark.engine.step import PartitionOutcome
from share_spark.engine.throttles import Throttles
from share_spark.model.config import GroupConfig
from share_spark.model.errors import TopicUnreachableError
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition
from share_spark.model.requests import Loss


class Phase(Enum):
    """The purpose of a micro-batch: to go on; to wait for the calls that are in flight, and acquire nothing; to give
    back what is left."""

    RUNS = auto()
    DRAINS = auto()
    STOPS = auto()


class Turn(NamedTuple):
    """A micro-batch, as far as its delivery has to know. ``are_suspects``: what it acquired; ``in_turn``: as in
    ``Delivery.deliver``."""

    stamp: BatchStamp
    now_ms: int
    config: GroupConfig
    are_suspects: bool = False
    in_turn: bool = False


class Answered(NamedTuple):
    """The result of a delivery, and the acknowledgements in it; their output is not committed yet."""

    delivered: Delivered
    pending: PendingAcknowledgements

    def with_output(self, output: OutputCommits, stamp: BatchStamp) -> PendingAcknowledgements:
        """Commit the output. Return the acknowledgements that are valid. Raises as ``OutputCommits.commit``."""
        valid = output.commit(stamp, self.pending.spans, is_explained=self.delivered.is_explained)
        return replace(self.pending, spans=valid)


@dataclass(slots=True, kw_only=True)
class HandlerCalls:
    """The calls of one engine. ``concurrency``: at a time, of handlers that wait. ``in_flight``: how many offsets have
    no answer yet. ``_has_suspects``: they are suspects. ``_keys``: where records whose answers come late were
    delivered."""

    delivery: Delivery
    limits: AcquisitionLimits
    search: Search
    throttles: Throttles = field(default_factory=Throttles)
    concurrency: Concurrency = field(default_factory=Concurrency)
    in_flight: int = 0
    _has_suspects: bool = False
    _keys: dict[TopicPartition, SharePartitionKey] = field(default_factory=dict)

    def most_records(self, inputs: PlanInputs, config: GroupConfig) -> int:
        """Return how many records may be acquired. Nothing else is in flight with suspects: where there are some, the
        calls have to end first."""
        if self.in_flight and (self._has_suspects or inputs.suspects is not None):
            return 0
        most = self.limits.most_records(config, inputs.now_ms)
        self.concurrency = self.concurrency.under(config.max_in_flight)
        room = self.delivery.room(self._limits(config, self.concurrency.most_soon))
        return most if room is None else min(most, room)

    def deliver(self, turn: Turn, outcomes: Sequence[PartitionOutcome], member_id: str) -> Answered | None:
        """Deliver what was acquired. Return the answers that are there, None if there is nothing to wait for."""
        acquired = {
            TopicPartition(outcome.summary.topic, outcome.key.partition): outcome
            for outcome in outcomes
            if len(outcome.acquired)
        }
        if not acquired and not self.in_flight:
            return None
        self._has_suspects = turn.are_suspects or (self._has_suspects and self.in_flight > 0)
        spans = [AcquiredSpan(at, outcome.acquired, outcome.earlier) for at, outcome in acquired.items()]
        delivered = self._delivered(spans, turn)
        if delivered.in_flight is not None:
            self._keys.update({at: outcome.key for at, outcome in acquired.items()})
            return self._answered(delivered, turn, member_id)
        answers = self._bounded(answers_for(acquired, delivered), turn)
        return Answered(delivered, PendingAcknowledgements(spans=answers, at_ms=turn.now_ms))

    def drain(self, turn: Turn, member_id: str) -> Answered:
        """Wait for all calls that run. Return the answers."""
        return self._answered(self.delivery.drain()._replace(fault=None), turn, member_id)

    def take_in(self, turn: Turn, answered: Answered) -> None:
        """Let the answers have their effect on the next micro-batches."""
        delivered, spans = answered.delivered, answered.pending.spans
        self.limits.delivered(delivered, spans, turn.now_ms, in_turn=turn.in_turn)
        if delivered.in_flight is not None:
            self.concurrency = self.concurrency.after(self._call_answers(delivered), turn.now_ms)
        if not delivered.in_flight:
            self.search.after(spans.values(), turn.now_ms)
        self.search.one_by_one |= any(has_any(span, (Loss.UNKNOWN,)) for span in spans.values())

    def look(self) -> CallsLook | None:
        """Return a look at the calls, None if none outlasts its micro-batch. From any thread."""
        calls = self.delivery.calls
        return None if calls is None else calls._replace(throttled=self.throttles.records)

    def forget(self, ends: Mapping[TopicPartition, int]) -> None:
        """Forget records at and above ``ends``: logs were truncated, and others come there."""
        self.delivery.forget_last(ends)
        self.throttles.forget()

    def _delivered(self, spans: Sequence[AcquiredSpan], turn: Turn) -> Delivered:
        try:
            limits = self._limits(turn.config, self.concurrency.most_calls)
            return self.delivery.deliver(spans, limits=limits, in_turn=turn.in_turn)
        except TopicUnreachableError as fault:
            return Delivered((), fault)

    def _limits(self, config: GroupConfig, most_calls: int) -> DeliveryLimits:
        return DeliveryLimits.of(config)._replace(most_calls=most_calls, round_number=self.concurrency.round_number)

    def _call_answers(self, delivered: Delivered) -> CallAnswers:
        throttled = throttled_in(delivered.answers)
        is_used = (delivered.in_flight or 0) >= self.concurrency.most_calls
        return CallAnswers(delivered.throttled, max(0, delivered.entered - throttled), is_used)

    def _answered(self, delivered: Delivered, turn: Turn, member_id: str) -> Answered:
        """Return answers that have come late. Some may be of no interest any more: the log has lost their records
        meanwhile. So they count for what the member still holds."""
        self.in_flight = delivered.in_flight or 0
        answers = self._bounded({self._keys[span.partition]: span for span in delivered.answers}, turn)
        return Answered(delivered, PendingAcknowledgements(spans=answers, at_ms=turn.now_ms, member_id=member_id))

    def _bounded(self, answers: AcknowledgedSpans, turn: Turn) -> AcknowledgedSpans:
        return self.throttles.bounded(answers, turn.now_ms, turn.config.throttle_max_age_ms)
