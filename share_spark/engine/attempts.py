"""The outcome of the attempts in one step of a share-partition, with its reason, for the audit."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch
from share_spark.model.requests import (
    Acknowledge,
    AcknowledgeType,
    AcquiredRange,
    ArchivedRange,
    ExpireLocks,
    LoseAttempts,
    Loss,
    PartitionResponse,
    RetryDelay,
    TracedRange,
    TruncateLog,
)
from share_spark.model.texts import error_pattern
from share_spark.partition.kafka_modes import KafkaRequest

if TYPE_CHECKING:
    from share_spark.engine.delivery_port import AcknowledgedSpans


class ErrorRun(NamedTuple):
    """The error of the records ``first`` to ``last``, both included."""

    first: int
    last: int
    error: str


class EndedAttempt(NamedTuple):
    """The end of an attempt at a run of offsets, for the audit: ``accepted``, ``released``, ``lost`` (in a crash),
    ``not entered`` (the handler never had it, so the count is taken back), ``throttled`` (a service asked the handler
    to wait: likewise), ``truncated`` (the log ends below it now), or why it was archived. ``error``: why it failed or
    was throttled, if that is known."""

    first_offset: int
    last_offset: int
    delivery_count: int
    outcome: str
    error: str | None = None


class MemberTrace(NamedTuple):
    """The trace of an ended member's last delivery. ``entered``: ascending and disjoint; what the member held, and is
    not there, was not entered."""

    member_id: str
    entered: Mapping[TopicPartition, tuple[TracedRange, ...]]


class AnsweredAttempt(NamedTuple):
    """Offsets whose handler was entered with this delivery count, and its answer: an ``AcknowledgeType``, or
    ``Loss.THROTTLED``."""

    first_offset: int
    last_offset: int
    delivery_count: int
    answer: AcknowledgeType | Loss


class FinishedCalls(NamedTuple):
    """The answers that a member's handlers gave in its last delivery; its engine has ended, and may not have committed
    them. ``answered``: ascending and disjoint. ``put_out``: accepted records whose output rows were kept; they count
    with these rows. ``errors`` and ``delays``: of records that were not accepted, ascending and disjoint."""

    member_id: str
    answered: Mapping[TopicPartition, tuple[AnsweredAttempt, ...]]
    put_out: Mapping[TopicPartition, tuple[AnsweredAttempt, ...]]
    errors: Mapping[TopicPartition, Sequence[ErrorRun]]
    delays: Mapping[TopicPartition, Sequence[RetryDelay]]


ENGINE_LOST = "the engine died while its handler had this record"
"""The error of a record whose last attempt, alone, ended with the engine."""


Answered = tuple[tuple[KafkaRequest, PartitionResponse], ...]
"""The requests of a step to the share-partition, and the answers."""


def ended_attempts(answered: Answered, errors: Sequence[ErrorRun] = ()) -> list[EndedAttempt]:
    """Return all attempts that ended, in the order of the decisions, cut where ``errors`` of the answers change."""
    return [
        found
        for request, response in answered
        for archived in [tuple(response.archived)]
        for found in (
            *(EndedAttempt(*taken, "not entered") for taken in response.not_entered),
            *(piece for taken in response.throttled for piece in _throttled(taken, _said(request, errors))),
            *(piece for run in _entered(response) for piece in _ended(request, run, archived, errors)),
        )
    ]


def _throttled(taken: AcquiredRange, said: Sequence[ErrorRun]) -> Iterator[EndedAttempt]:
    for first, last, error in cut_by_error(taken.first_offset, taken.last_offset, said):
        yield EndedAttempt(first, last, taken.delivery_count, "throttled", error)


def _said(request: KafkaRequest, errors: Sequence[ErrorRun]) -> Sequence[ErrorRun]:
    """Return those of ``errors`` that may belong to the request: only answers have some."""
    return errors if isinstance(request, Acknowledge | LoseAttempts) else ()


def _entered(response: PartitionResponse) -> Iterator[InFlightBatch]:
    taken_back = {taken.first_offset for some in (response.not_entered, response.throttled) for taken in some}
    return (run for run in response.ended if run.first_offset not in taken_back)


def _ended(
    request: KafkaRequest, run: InFlightBatch, archived: Sequence[ArchivedRange], errors: Sequence[ErrorRun]
) -> Iterator[EndedAttempt]:
    text, unanswered = _outcome_text(request, run, archived), _unanswered_text(request, run)
    for first, last, error in cut_by_error(run.first_offset, run.last_offset, _said(request, errors)):
        yield EndedAttempt(first, last, run.delivery_count, text, error or unanswered)


def _unanswered_text(request: KafkaRequest, run: InFlightBatch) -> str | None:
    """Return why an attempt ended without an answer, if the state shows it; None if a handler answered."""
    was_in_handler = run.doubt >= Doubt.ACCUSED or run.delivery_state is DeliveryState.ARCHIVED
    if isinstance(request, LoseAttempts):
        return _WORKER_LOST if was_in_handler else _LOST_WITH_WORKER
    if isinstance(request, ExpireLocks) and not request.lost:
        return _LOCK_EXPIRED
    if isinstance(request, ExpireLocks):
        return ENGINE_LOST if was_in_handler else _LOST_WITH_ENGINE[run.doubt]
    return None


_LOCK_EXPIRED = "the lock ran out before the client acknowledged"

_WORKER_LOST = "a worker died while its handler had this record"

_LOST_WITH_WORKER = "the handler was done with it, and the answer was lost with a worker"

_UNEXPLAINED = "the engine was lost, and nothing shows which record was with its handler"

_LOST_WITH_ENGINE: Mapping[Doubt, str] = {
    Doubt.NONE: "the handler was done with it, and the answer was lost with the engine",
    Doubt.LOST_ONCE: _UNEXPLAINED,
    Doubt.LOST_TWICE: _UNEXPLAINED,
    Doubt.LOST_IN_PIECE: _UNEXPLAINED,
}


def _outcome_text(request: KafkaRequest, run: InFlightBatch, archived: Sequence[ArchivedRange]) -> str:
    if isinstance(request, TruncateLog):
        return "truncated"
    if run.delivery_state is DeliveryState.ACKNOWLEDGED:
        return "accepted"
    if run.delivery_state is DeliveryState.AVAILABLE:
        return "lost" if isinstance(request, ExpireLocks | LoseAttempts) else "released"
    at = bisect_right(archived, run.first_offset, key=lambda found: found.first_offset)
    return archived[at - 1].reason.value


_last = itemgetter(1)


def cut_by_error(first: int, last: int, errors: Sequence[ErrorRun]) -> list[tuple[int, int, str | None]]:
    """Cut ``first..last`` where the error text changes. ``errors`` ascend and are disjoint.

    first..last   [--------------------]
    errors      [ e1 ]      [ e2 ]
    returned      [e1][none][ e2 ][none]
    """
    pieces: list[tuple[int, int, str | None]] = []
    at = first
    start = bisect_left(errors, first, key=_last)
    for number in range(start, len(errors)):
        low, high, text = errors[number]
        if low > last:
            break
        if low > at:
            pieces.append((at, low - 1, None))
        pieces.append((max(at, low), min(high, last), text))
        at = min(high, last) + 1
    if at <= last:
        pieces.append((at, last, None))
    return pieces


MOST_TEXT = 32 * 1_024
"""The most characters of different errors in one micro-batch. The files of a segment of 500 with so many, compressed,
are about as large as what a restart reads without Spark (``state.direct_rows``)."""


def kept_errors(answers: AcknowledgedSpans) -> Mapping[SharePartitionKey, Sequence[ErrorRun]]:
    """Return the errors of each share-partition that has some, with at most MOST_TEXT characters of different texts.

    If there are more, ids and numbers in them count as ``#``, so that most are the same. If these are still too many,
    the most frequent ones are kept, and a placeholder for each other one.
    """
    errors = {key: span.errors for key, span in answers.items() if span.errors}
    found = Counter[str]()
    for runs in errors.values():
        for first, last, error in runs:
            found[error] += last - first + 1
    if _size(found) <= MOST_TEXT:
        return errors
    kept = _kept_texts(found)
    return {key: list(_joined(run._replace(error=kept[run.error]) for run in runs)) for key, runs in errors.items()}


def _kept_texts(found: Counter[str]) -> dict[str, str]:
    """Return error -> the text that is kept for it. ``found``: how many records have it."""
    pattern_of = {error: error_pattern(error) for error in found}
    patterns = Counter[str]()
    for error, records in found.items():
        patterns[pattern_of[error]] += records
    kept = set(_most_frequent(patterns))
    others = f"one of {len(patterns) - len(kept):,} more errors, of which the text is not kept"
    return {error: pattern if pattern in kept else others for error, pattern in pattern_of.items()}


def _most_frequent(found: Counter[str]) -> Iterator[str]:
    left = MOST_TEXT
    for error, _ in found.most_common():
        left -= len(error)
        if left < 0:
            return
        yield error


def _size(errors: Iterable[str]) -> int:
    return sum(map(len, errors))


def _joined(runs: Iterable[ErrorRun]) -> Iterator[ErrorRun]:
    """Join neighbouring runs of the same error. ``runs`` ascend."""
    before: ErrorRun | None = None
    for run in runs:
        if before is not None and (before.last + 1, before.error) == (run.first, run.error):
            before = before._replace(last=run.last)
            continue
        if before is not None:
            yield before
        before = run
    if before is not None:
        yield before
