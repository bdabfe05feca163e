"""Values carried from one micro-batch to the next: acknowledgements that are not committed yet, an append whose outcome
is unknown, dead letters on their way, and the size of the segment that is being written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from share_spark.engine.answers import are_held_back, are_inside
from share_spark.engine.attempts import ENGINE_LOST, ErrorRun, cut_by_error, kept_errors
from share_spark.engine.delivery_port import AcknowledgedSpan, AcknowledgedSpans
from share_spark.engine.ports import DeadLetter, DeadLetterSink, ShareStateStore
from share_spark.engine.step import PartitionOutcome, archived_below
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition
from share_spark.model.requests import AnsweredRange, ArchivedRange, ArchiveReason, RetryDelay

_DEAD_LETTER_REASONS = (ArchiveReason.REJECTED, ArchiveReason.DELIVERY_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAcknowledgements:
    """Acknowledgements that were decided in one micro-batch, and that the next one commits.

    ``member_id``: their member, if not the engine's own (``PartitionInput.acknowledged_by``). ``at_ms``: the time of
    the micro-batch that acquired these records, None if that is not known.
    """

    spans: AcknowledgedSpans
    member_id: str | None = None
    at_ms: int | None = None

    def __bool__(self) -> bool:
        return bool(self.spans)

    @property
    def ranges(self) -> Mapping[SharePartitionKey, Sequence[AnsweredRange]]:
        """The acknowledged ranges, as an input of the next micro-batch."""
        return {key: span.ranges for key, span in self.spans.items()}

    def delays_at(self, now_ms: int) -> Mapping[SharePartitionKey, Sequence[RetryDelay]]:
        """Return the delays from ``now_ms`` on: those that handlers ask for, and the rest of the wait of records that
        were held back when they were acquired."""
        passed_ms = now_ms - (now_ms if self.at_ms is None else self.at_ms)
        return {key: _left(span, passed_ms) for key, span in self.spans.items() if span.delays}

    def errors(self) -> Mapping[SharePartitionKey, Sequence[ErrorRun]]:
        """Return the errors that the log keeps for the audit."""
        return kept_errors(self.spans)

    def dead_letters(self, outcome: PartitionOutcome) -> list[DeadLetter]:
        """Return letters for what their commit archives in one share-partition, with the handler's errors."""
        if not len(outcome.archived):
            return []
        runs = [run for run in outcome.archived if run.reason in _DEAD_LETTER_REASONS]
        partition = TopicPartition(outcome.summary.topic, outcome.key.partition)
        return [
            DeadLetter(partition, first, last, run.delivery_count, run.reason.value, error)
            for run, pieces in zip(runs, self._cut_by_error(outcome, runs), strict=True)
            for first, last, error in pieces
        ]

    def _cut_by_error(
        self, outcome: PartitionOutcome, runs: Sequence[ArchivedRange]
    ) -> list[list[tuple[int, int, str | None]]]:
        """Cut each run into pieces of one error. A client of Kafka's protocol gives none, whatever a handler has said
        of the attempt before."""
        span = self.spans.get(outcome.key)
        ranges, errors = (span.ranges, span.errors) if span is not None else ((), ())
        by_clients = outcome.ended_by_clients
        are_answered = are_inside(ranges, [run.first_offset for run in runs])
        return [
            cut_by_error(run.first_offset, run.last_offset, errors)
            if is_answered and run.first_offset not in by_clients
            else [(run.first_offset, run.last_offset, None if run.first_offset in by_clients else ENGINE_LOST)]
            for run, is_answered in zip(runs, are_answered, strict=True)
        ]


def _left(span: AcknowledgedSpan, passed_ms: int) -> Sequence[RetryDelay]:
    held_back = are_held_back(span.ranges, span.delays)
    if not any(held_back):
        return span.delays
    shorter = (
        delay._replace(delay_ms=delay.delay_ms - passed_ms) if is_held_back else delay
        for delay, is_held_back in zip(span.delays, held_back, strict=True)
    )
    return [delay for delay in shorter if delay.delay_ms >= 0]


NOTHING_PENDING = PendingAcknowledgements(spans={})


def letters_below(ends: Mapping[TopicPartition, int], letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Return ``letters`` without the offsets from ``ends`` on."""
    return [kept for letter in letters for kept in archived_below(ends.get(letter.partition), [letter])]


def is_committed(announced: BatchStamp, last_counted: BatchStamp, *, withdrawn: bool) -> bool:
    """Return whether the commit of this announcement has happened, as judged by an engine that starts.

    It has if its stamp has the epoch of the last valid micro-batch and is not after it: its engine withdraws what did
    not happen before it commits a later one. An announcement of an older epoch is a zombie's. Each engine recovers
    after its claim and before its first commit, so the first commit of an epoch has settled all earlier announcements.
    What is announced after that claim is never committed. The same is true of what is after the last one.
    """
    if withdrawn:
        return announced == last_counted
    return announced.writer_epoch == last_counted.writer_epoch and announced.batch_id <= last_counted.batch_id


@dataclass(slots=True, kw_only=True)
class UnresolvedAppend:
    """An append that failed, and may have happened."""

    stamp: BatchStamp
    _happened: bool | None = None

    def has_happened(self, store: ShareStateStore) -> bool:
        """Ask the log, which answers once: it goes on from what it has looked at. Raises StateError, FencedError."""
        if self._happened is None:
            self._happened = store.was_committed(self.stamp.batch_id)
        return self._happened


@dataclass(slots=True, kw_only=True)
class DeadLetterOrder:
    """Dead letters of one engine, in the order that ``DeadLetterSink`` requires: announced before the commit that
    archives them; then withdrawn, if that commit has not happened, or written after it."""

    sink: DeadLetterSink
    _announced: BatchStamp | None = None
    _unwritten: list[BatchStamp] = field(default_factory=list)

    def announce(self, stamp: BatchStamp, letters: Sequence[DeadLetter]) -> None:
        """Announce what the commit of ``stamp`` is about to archive. Raises DeadLetterError."""
        if letters:
            self._announced = stamp
            self.sink.announce(stamp, letters)

    def withdraw(self) -> None:
        """Withdraw an announcement whose commit has not happened: after a later commit it would look committed. Raises
        DeadLetterError."""
        if self._announced is not None:
            self.sink.withdraw(self._announced)
            self._announced = None

    def committed(self) -> None:
        """Note that the commit of the last announcement has happened."""
        if self._announced is not None:
            self._unwritten.append(self._announced)
            self._announced = None

    def write(self, stamp: BatchStamp) -> None:
        """Write the letters of ``stamp``, if there are any. Earlier ones that could not be written go first, as a table
        takes no lower number after a higher one; alone they wait for the next engine. Raises DeadLetterError."""
        if stamp not in self._unwritten:
            return
        while self._unwritten:
            self.sink.write(self._unwritten[0])
            del self._unwritten[0]


LEAST_RANGES = 1_000_000
"""The ranges of updates that a segment may always hold: a restart reads them in seconds."""

_GROWTH = 4
"""The most ranges of updates per range of the snapshot beyond that: snapshots are then at most a fifth of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSegment:
    """The segment that an engine writes, and when the next one begins.

    ``updates``: its commits, None before the first, which holds its snapshots. ``snapshot_ranges``: the ranges of the
    first commit; ``ranges``: those of all later ones. If only the number of commits ended a segment, it would grow with
    the size of each commit, and so would the time of a restart.
    """

    number: int = 0
    updates: int | None = None
    snapshot_ranges: int = 0
    ranges: int = 0

    @property
    def begins(self) -> bool:
        """Whether the next commit is the first one of this segment."""
        return self.updates is None

    def is_full(self, updates_per_snapshot: int, least_ranges: int = LEAST_RANGES) -> bool:
        """Return whether the next commit begins another segment."""
        if self.updates is None:
            return False
        return self.updates >= updates_per_snapshot or self.ranges > max(least_ranges, _GROWTH * self.snapshot_ranges)

    def after(self, number: int, ranges: int) -> OpenSegment:
        """Return the segment after a commit of ``ranges`` ranges to segment ``number``."""
        if self.updates is None or number != self.number:
            return OpenSegment(number=number, updates=1, snapshot_ranges=ranges)
        return replace(self, updates=self.updates + 1, ranges=self.ranges + ranges)
