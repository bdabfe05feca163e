"""The micro-batch: inputs, decision, one append, then effects. The only loop that owns order and durability.

    log ends, acknowledgements, time  ->  plan  ->  advance (decide, on the executors)
        ->  dead letters of what is about to be archived  ->  one append  ->  has somebody else claimed the group?
        ->  deliver what was acquired; its acknowledgements are an input of the next micro-batch

What if the process dies ...
- before the append: nothing was visible; the acknowledgements that were not committed are lost with their handlers'
  run, the records stay Acquired until their lock ends, and are delivered again with a higher count;
- while dead letters are written: they are written again (at least once);
- after the append, before or during delivery: the same as the first, and the delivery has been counted.
An append whose outcome is unknown is looked up by its stamp; the live state is rebuilt from the log before going on.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from share_spark.engine.planning import Inputs, is_done, plan
from share_spark.engine.ports import (
    AcknowledgedSpan,
    AcquiredSpan,
    Clock,
    DeadLetter,
    DeadLetterSink,
    Delivery,
    ShareStateStore,
)
from share_spark.engine.progress import MicroBatchProgress, StepTimer
from share_spark.engine.step import NO_RANGES, Control, Front, Outcome, Ranges
from share_spark.engine.topics import SubscribedTopics
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ErrorCode, FencedError, StateError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AcknowledgeType, ArchiveReason

_log = logging.getLogger(__name__)

_COMMIT_ATTEMPTS = 3
_DEAD_LETTER_REASONS = (ArchiveReason.REJECTED, ArchiveReason.DELIVERY_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world as one engine sees it."""

    topics: SubscribedTopics
    store: ShareStateStore
    delivery: Delivery
    dead_letters: DeadLetterSink | None
    clock: Clock


@dataclass(slots=True, kw_only=True)
class ShareGroupEngine:
    """The engine of one share group: call ``start`` once, then ``run`` per micro-batch, never two at a time.

    Mutable by nature: it remembers the fronts of its share-partitions and the acknowledgements not committed yet.
    """

    config: GroupConfig
    ports: Ports
    available_now: bool = False
    _fronts: dict[SharePartitionKey, Front] = field(default_factory=dict)
    _pending: dict[SharePartitionKey, AcknowledgedSpan] = field(default_factory=dict)
    _targets: Mapping[SharePartitionKey, int] | None = None
    _now_ms: int = 0
    _first: bool = True

    def start(self) -> None:
        """Claim the group, rebuild its state, note the targets of an available-now run.

        Raises TopicError, StateError, FencedError; nothing but the claim is written.
        """
        self.ports.topics.refresh()
        self.ports.topics.check_identity(self.ports.store.known_topics())
        self.ports.store.claim()
        self._fronts = dict(self.ports.store.load())
        if self.available_now:
            ends = self.ports.topics.log_ends()
            self._targets = {key: end.end_offset for key, end in ends.items()}

    @property
    def has_state(self) -> bool:
        """Did the group have any state when this engine started, or has it now?"""
        return bool(self._fronts)

    @property
    def done(self) -> bool:
        """An available-now run has worked off everything below its targets and committed that."""
        return self._targets is not None and not self._pending and is_done(self._fronts, self._targets)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next lock of the dead ends, if there is one."""
        deadlines = [front.next_deadline_ms for front in self._fronts.values() if front.next_deadline_ms]
        return min(deadlines, default=None)

    def run(self, batch_id: int, *, stopping: bool = False) -> MicroBatchProgress:
        """One micro-batch. With ``stopping`` it commits what is known and gives the rest back, and acquires nothing.

        Raises FencedError, TopicError, HandlerError, DeadLetterError, StateError; the engine must then be thrown away.
        """
        timer = StepTimer()
        inputs = self._read_inputs(stopping)
        controls = plan(
            inputs,
            self._fronts,
            max_records=self.config.max_records_per_trigger,
            max_record_locks=self.config.max_record_locks,
        )
        timer.mark("plan")
        outcomes = self._decide_and_commit(batch_id, controls, timer) if controls or self._first else ()
        self._first = False
        self._pending = {}
        self._fronts.update({outcome.key: outcome.front for outcome in outcomes})
        self._deliver(outcomes, timer)
        return MicroBatchProgress.of(batch_id, inputs.now_ms, outcomes, self._lag(inputs), timer.steps)

    def _read_inputs(self, stopping: bool) -> Inputs:
        self._now_ms = max(self._now_ms, self.ports.clock())
        topics = self.ports.topics
        ends = topics.log_ends_or_last() if stopping else topics.log_ends()
        return Inputs(
            now_ms=self._now_ms,
            topics=topics.names(),
            ends=ends,
            initial_offsets=topics.initial_offsets(self._fronts, ends, self._now_ms),
            acknowledged={key: span.ranges for key, span in self._pending.items()},
            targets=self._targets,
            stopping=stopping,
        )

    def _decide_and_commit(
        self, batch_id: int, controls: Mapping[SharePartitionKey, Control], timer: StepTimer
    ) -> Sequence[Outcome]:
        for attempt in range(1, _COMMIT_ATTEMPTS + 1):
            outcomes = self.ports.store.advance(controls, batch_id=batch_id, now_ms=self._now_ms)
            timer.mark("decide")
            _check(outcomes)
            if attempt == 1:
                self._write_dead_letters(outcomes)
                timer.mark("dead letters")
            if self._commit(batch_id):
                timer.mark("append")
                return outcomes
        raise StateError(f"the state log refused micro-batch {batch_id} {_COMMIT_ATTEMPTS} times")

    def _commit(self, batch_id: int) -> bool:
        try:
            self.ports.store.commit()
            return True
        except FencedError:
            raise
        except Exception as fault:  # noqa: BLE001 - the outcome is unknown: only the log can say
            _log.warning("append of micro-batch %s failed (%s); asking the log", batch_id, fault)
            committed = self.ports.store.was_committed(batch_id)
            self._fronts = dict(self.ports.store.load())
            return committed

    def _write_dead_letters(self, outcomes: Sequence[Outcome]) -> None:
        if self.ports.dead_letters is None:
            return
        letters = [letter for outcome in outcomes for letter in self._letters_of(outcome)]
        if letters:
            self.ports.dead_letters.write(letters)

    def _letters_of(self, outcome: Outcome) -> list[DeadLetter]:
        span = self._pending.get(outcome.key)
        errors = span.errors if span else ()
        partition = TopicPartition(outcome.front.topic, outcome.key.partition)
        return [
            DeadLetter(partition, first, last, run.delivery_count, run.reason.value, error)
            for run in outcome.archived
            if run.reason in _DEAD_LETTER_REASONS
            for first, last, error in cut_by_error(run.first_offset, run.last_offset, errors)
        ]

    def _deliver(self, outcomes: Sequence[Outcome], timer: StepTimer) -> None:
        keys = {
            TopicPartition(outcome.front.topic, outcome.key.partition): outcome
            for outcome in outcomes
            if len(outcome.acquired)
        }
        if not keys:
            return
        answers = self.ports.delivery.deliver([AcquiredSpan(at, won.acquired) for at, won in keys.items()])
        said = {answer.partition: answer for answer in answers}
        for at, outcome in keys.items():
            answer = said.get(at) or AcknowledgedSpan(at, NO_RANGES, ())
            self._pending[outcome.key] = answer._replace(ranges=with_gaps(outcome.acquired, answer.ranges))
        timer.mark("deliver")

    def _lag(self, inputs: Inputs) -> int:
        """Offsets not finished yet: log end less SPSO, over all share-partitions."""
        return sum(
            max(0, end.end_offset - max(self._fronts[key].start_offset, end.log_start_offset))
            for key, end in inputs.ends.items()
            if key in self._fronts
        )


def with_gaps(acquired: Ranges, acknowledged: Ranges) -> Ranges:
    """Acknowledge as Gap (type 0) every acquired offset that nobody reported: there is no record at it (R19, R21).

    ``acquired`` (first, last, count) and ``acknowledged`` (first, last, type) ascend and are disjoint; the second lies
    within the first. Returns ranges that cover ``acquired`` exactly.
    """
    acquired = acquired[np.argsort(acquired[:, 0], kind="stable")]
    if _offsets_in(acquired) == _offsets_in(acknowledged):
        return acknowledged
    holes: list[tuple[int, int, int]] = []
    reported = acknowledged[:, :2].tolist()
    position = 0
    at = -1
    for first, last in acquired[:, :2].tolist():
        at = max(at, first)
        while position < len(reported) and reported[position][0] <= last:
            if reported[position][0] > at:
                holes.append((at, reported[position][0] - 1, AcknowledgeType.GAP))
            at = reported[position][1] + 1
            position += 1
        if at <= last:
            holes.append((at, last, AcknowledgeType.GAP))
    filled = np.concatenate([acknowledged, np.array(holes, dtype=np.int64).reshape(-1, 3)])
    return filled[np.argsort(filled[:, 0], kind="stable")]


def cut_by_error(first: int, last: int, errors: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str | None]]:
    """Cut ``first..last`` where the error text changes. ``errors`` ascend and are disjoint."""
    pieces: list[tuple[int, int, str | None]] = []
    at = first
    start = bisect.bisect_left(errors, first, key=lambda entry: entry[1])
    for low, high, text in errors[start:]:
        if low > last:
            break
        if low > at:
            pieces.append((at, low - 1, None))
        pieces.append((max(at, low), min(high, last), text))
        at = min(high, last) + 1
    if at <= last:
        pieces.append((at, last, None))
    return pieces


def _offsets_in(ranges: Ranges) -> int:
    return int((ranges[:, 1] - ranges[:, 0] + 1).sum())


def _check(outcomes: Sequence[Outcome]) -> None:
    """A live engine acknowledges only what it holds; a refusal means its state is not what it believes."""
    for outcome in outcomes:
        if outcome.error is not ErrorCode.NONE:
            raise StateError(f"{outcome.key} refused its own acknowledgements: {outcome.error.name}")
