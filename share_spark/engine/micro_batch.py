"""The micro-batch: inputs, decision, one append, then effects. The only loop that owns order and durability.

    log ends, acknowledgements, time  ->  plan  ->  advance (decide, on the executors)
        ->  announce dead letters  ->  one append  ->  has somebody else claimed the group?  ->  write dead letters
        ->  deliver what was acquired  ->  commit its output; its acknowledgements are an input of the next micro-batch

What if the process dies ...
- before the append: nothing was visible; the acknowledgements that were not committed are lost with their handlers'
  run, the records stay Acquired until their lock ends, and are delivered again with a higher count; unless they had
  output: then the sink's commit has decided, and the next engine finds it there and absorbs it;
- after the append, before dead letters are written: the next engine finds them announced, and writes them;
- before or during delivery: the same as the first, and the delivery has been counted;
- inside the commit of the output: it is there or it is not, and the acknowledgements with it. An engine that lives and
  cannot tell which does nothing more: what it gave back might have been decided.
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
    Answers,
    Clock,
    DeadLetter,
    DeadLetterSink,
    Delivery,
    OutputSink,
    ShareStateStore,
    Stamp,
)
from share_spark.engine.progress import MicroBatchProgress, StepTimer
from share_spark.engine.spark_errors import first_line
from share_spark.engine.step import LOST, NO_RANGES, Control, Front, Outcome, Ranges
from share_spark.engine.topics import SubscribedTopics
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ErrorCode, FencedError, OutputLostError, OutputUnknownError, SinkError, StateError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AcknowledgeType, ArchivedRange, ArchiveReason

_log = logging.getLogger(__name__)

_COMMIT_ATTEMPTS = 3
ENGINE_LOST = "the engine that ran it was lost"
"""Error of a record whose last attempt, alone, ended with the engine: nobody is left to say more."""

_DEAD_LETTER_REASONS = (ArchiveReason.REJECTED, ArchiveReason.DELIVERY_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world as one engine sees it."""

    topics: SubscribedTopics
    store: ShareStateStore
    delivery: Delivery
    dead_letters: DeadLetterSink | None
    clock: Clock
    sink: OutputSink | None = None


@dataclass(slots=True, kw_only=True)
class ShareGroupEngine:
    """The engine of one share group: call ``start`` once, then ``run`` per micro-batch, never two at a time.

    Mutable by nature: it remembers the fronts of its share-partitions and the acknowledgements not committed yet.
    """

    config: GroupConfig
    ports: Ports
    available_now: bool = False
    _fronts: dict[SharePartitionKey, Front] = field(default_factory=dict)
    _pending: Answers = field(default_factory=dict)
    _pending_of: str | None = None
    _epoch: int = 0
    _suspects_next: bool = True
    _charged: bool = True
    _in_handler: frozenset[str] | None = None
    _unresolved: Stamp | None = None
    _happened: bool | None = None
    _refusal: str = ""
    _announced: Stamp | None = None
    _unwritten: list[Stamp] = field(default_factory=list)
    _output_in_doubt: bool = False
    _targets: Mapping[SharePartitionKey, int] | None = None
    _now_ms: int = 0
    _first: bool = True

    def start(self) -> None:
        """Claim the group, rebuild its state, take over what the engine before left unfinished, note the targets of an
        available-now run.

        Raises TopicError, StateError, FencedError, SinkError, DeadLetterError; nothing but the claim is written.
        """
        self.ports.topics.refresh()
        self.ports.topics.check_identity(self.ports.store.known_topics())
        self._epoch = self.ports.store.claim()
        self._fronts = dict(self.ports.store.load())
        self._take_over()
        if self.available_now:
            ends = self.ports.topics.log_ends()
            self._targets = {key: end.end_offset for key, end in ends.items()}

    def _take_over(self) -> None:
        self._in_handler = self.ports.delivery.died_in_handler()
        if self.ports.dead_letters is not None:
            self.ports.dead_letters.recover(self.ports.store.last_counted)
        counted = self.ports.store.last_counted
        left = self.ports.sink.claim(self._epoch, counted) if self.ports.sink is not None else None
        if left is not None and left.stamp >= counted:
            _log.info("output of the engine before is committed; its acknowledgements count")
            self._pending, self._pending_of = left.answers, left.member_id

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

        Raises FencedError, TopicError, HandlerError, SinkError, DeadLetterError, StateError; the engine must then be
        thrown away, after a last call with ``stopping`` unless it was fenced.
        """
        if self._output_in_doubt:
            raise OutputUnknownError("nobody knows whether the last output is in the sink; the next engine asks it")
        timer = StepTimer()
        if self._unresolved is not None and self._resolve(self._unresolved):
            self._absorbed(())
        inputs = self._read_inputs(stopping)
        controls = plan(
            inputs,
            self._fronts,
            max_records=self.config.max_records_per_trigger,
            max_record_locks=self.config.max_record_locks,
        )
        timer.mark("plan")
        stamp = Stamp(self._epoch, batch_id)
        outcomes = self._decide_and_commit(stamp, controls, timer) if controls or self._first else ()
        self._first = False
        self._suspects_next = not any(control.suspects for control in controls.values())
        self._deliver(stamp, outcomes, timer, in_doubt=not self._suspects_next)
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
            acknowledged_by=self._pending_of,
            suspects_next=self._suspects_next,
            charged=self._charged,
            in_handler=self._in_handler,
        )

    def _decide_and_commit(
        self, stamp: Stamp, controls: Mapping[SharePartitionKey, Control], timer: StepTimer
    ) -> Sequence[Outcome]:
        self._withdraw_dead_letters()
        for _ in range(_COMMIT_ATTEMPTS):
            outcomes = self.ports.store.advance(controls, batch_id=stamp.batch_id, now_ms=self._now_ms)
            timer.mark("decide")
            _check(outcomes)
            self._announce_dead_letters(stamp, outcomes)
            if self._commit(stamp):
                timer.mark("append")
                self._absorbed(outcomes)
                self._write_dead_letters(stamp)
                timer.mark("dead letters")
                return outcomes
        raise StateError(
            f"the state log refused micro-batch {stamp.batch_id} {_COMMIT_ATTEMPTS} times: {self._refusal}"
        )

    def _absorbed(self, outcomes: Sequence[Outcome]) -> None:
        """The acknowledgements that waited are in the state. What was acquired with them has not run yet: if something
        fails before it does, no record is to blame."""
        self._charged = False
        if self._announced is not None:
            self._unwritten.append(self._announced)
            self._announced = None
        had_output = bool(self._pending) and self.ports.sink is not None
        self._pending, self._pending_of = {}, None
        self._fronts.update({outcome.key: outcome.front for outcome in outcomes})
        if had_output and self.ports.sink is not None:
            self.ports.sink.forget()

    def _commit(self, stamp: Stamp) -> bool:
        try:
            self.ports.store.commit()
            return True
        except FencedError:
            raise
        except Exception as fault:  # noqa: BLE001 - the outcome is unknown: only the log can say
            self._refusal = first_line(fault)
            _log.warning("append of micro-batch %s failed (%s); asking the log", stamp.batch_id, self._refusal)
            self._unresolved, self._charged = stamp, False
            return self._resolve(stamp)

    def _resolve(self, stamp: Stamp) -> bool:
        """Did the append happen? As long as that cannot be told, nothing may be decided on the state before it."""
        if self._happened is None:
            self._happened = self.ports.store.was_committed(stamp.batch_id)
        self._fronts = dict(self.ports.store.load())
        happened, self._happened, self._unresolved = self._happened, None, None
        return happened

    def _withdraw_dead_letters(self) -> None:
        """What was announced for a commit that has not happened must not be taken for committed once a later one is."""
        if self._announced is not None and self.ports.dead_letters is not None:
            self.ports.dead_letters.withdraw(self._announced)
            self._announced = None

    def _announce_dead_letters(self, stamp: Stamp, outcomes: Sequence[Outcome]) -> None:
        letters = [letter for outcome in outcomes for letter in self._letters_of(outcome)]
        if letters and self.ports.dead_letters is not None:
            self._announced = stamp
            self.ports.dead_letters.announce(stamp, letters)

    def _write_dead_letters(self, stamp: Stamp) -> None:
        """Those of ``stamp``, if it has any; before them those that could not be written before, as a table takes no
        lower number after a higher one. By themselves they wait for the next engine."""
        if self.ports.dead_letters is None or stamp not in self._unwritten:
            return
        while self._unwritten:
            self.ports.dead_letters.write(self._unwritten[0])
            del self._unwritten[0]

    def _letters_of(self, outcome: Outcome) -> list[DeadLetter]:
        partition = TopicPartition(outcome.front.topic, outcome.key.partition)
        return [
            DeadLetter(partition, first, last, run.delivery_count, run.reason.value, error)
            for run in outcome.archived
            if run.reason in _DEAD_LETTER_REASONS
            for first, last, error in self._errors_of(outcome.key, run)
        ]

    def _errors_of(self, key: SharePartitionKey, run: ArchivedRange) -> list[tuple[int, int, str | None]]:
        span = self._pending.get(key)
        if span is None or not is_inside(span.ranges, run.first_offset):
            return [(run.first_offset, run.last_offset, ENGINE_LOST)]
        return cut_by_error(run.first_offset, run.last_offset, span.errors)

    def _deliver(self, stamp: Stamp, outcomes: Sequence[Outcome], timer: StepTimer, *, in_doubt: bool) -> None:
        keys = {
            TopicPartition(outcome.front.topic, outcome.key.partition): outcome
            for outcome in outcomes
            if len(outcome.acquired)
        }
        if not keys:
            return
        self._charged = True
        spans = [AcquiredSpan(at, won.acquired) for at, won in keys.items()]
        answers = self.ports.delivery.deliver(spans, alone=in_doubt and _offsets_in(spans[0].ranges) == 1)
        said = {answer.partition: answer for answer in answers}
        pending = {}
        for at, outcome in keys.items():
            answer = said.get(at) or AcknowledgedSpan(at, NO_RANGES, ())
            pending[outcome.key] = answer._replace(ranges=with_gaps(outcome.acquired, answer.ranges))
        timer.mark("deliver")
        self._pending = self._commit_output(stamp, pending)
        timer.mark("output")

    def _commit_output(self, stamp: Stamp, answers: Answers) -> Answers:
        """The answers that count: all, or none where an executor died with the rows that it put out."""
        if self.ports.sink is None:
            return answers
        # A sink that refuses rows is no delivery failure: everything is given back as if it had not been tried.
        self._charged, self._output_in_doubt = False, True
        try:
            self.ports.sink.commit(stamp, self.ports.store.member_id, answers)
        except OutputUnknownError:
            raise
        except (SinkError, StateError):
            self._output_in_doubt = False
            raise
        except OutputLostError as fault:
            _log.warning("%s; its records are delivered again", fault)
            answers = {key: all_lost(span, str(fault)) for key, span in answers.items()}
        self._charged, self._output_in_doubt = True, False
        return answers

    def _lag(self, inputs: Inputs) -> int:
        """Offsets not finished yet: log end less SPSO, over all share-partitions."""
        return sum(
            max(0, end.end_offset - max(self._fronts[key].start_offset, end.log_start_offset))
            for key, end in inputs.ends.items()
            if key in self._fronts
        )


def all_lost(span: AcknowledgedSpan, error: str) -> AcknowledgedSpan:
    """As if nothing had been answered: the attempts were lost with their worker."""
    ranges = span.ranges.copy()
    ranges[:, 2] = LOST
    whole = [(int(first), int(last), error) for first, last, _ in ranges.tolist()]
    return span._replace(ranges=ranges, errors=whole)


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


def is_inside(ranges: Ranges, offset: int) -> bool:
    """Is ``offset`` in one of ``ranges`` (ascending, disjoint)?"""
    at = int(np.searchsorted(ranges[:, 1], offset))
    return at < len(ranges) and bool(ranges[at, 0] <= offset)


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
