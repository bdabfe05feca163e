"""Answers of a delivery, completed to all that was acquired. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import compress

import numpy as np

from share_spark.engine.attempts import ErrorRun
from share_spark.engine.breaker import Attempts
from share_spark.engine.delivery_port import AcknowledgedSpan, AcknowledgedSpans, Delivered
from share_spark.engine.ranges import AcquiredRanges, ascending, look_up, offsets_in_each
from share_spark.engine.step import LOSSES, PartitionOutcome
from share_spark.model.errors import ErrorCode, StateError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AcknowledgeType, AnsweredRange, Loss, RetryDelay
from share_spark.partition.columns import as_columns, in_best_form, merged, outside, total_offsets
from share_spark.partition.runs import chosen, offsets_by_kind, samples

MOST_ERRORS = 20
"""The number of different errors in the progress of a micro-batch."""


def errors_in(answers: AcknowledgedSpans) -> dict[str, int]:
    """Return error -> number of records that failed with it, the most frequent ones."""
    found: Counter[str] = Counter()
    for span in answers.values():
        for first, last, error in span.errors:
            found[error] += last - first + 1
    return dict(found.most_common(MOST_ERRORS))


def refuse_errors(outcomes: Sequence[PartitionOutcome]) -> None:
    """Raise StateError if an acknowledgement was refused: a live engine acknowledges only what it holds, so its state
    is then not what it believes."""
    for outcome in outcomes:
        if outcome.error is not ErrorCode.NONE:
            raise StateError(f"{outcome.key} refused its own acknowledgements: {outcome.error.name}")


def answers_for(acquired: Mapping[TopicPartition, PartitionOutcome], delivered: Delivered) -> AcknowledgedSpans:
    """Return answers for exactly what was acquired."""
    # After a fault of the delivery an offset without an answer was not reached; without one it holds no record.
    missing = AcknowledgeType.GAP if delivered.fault is None else Loss.NOT_ENTERED
    by_partition = {answer.partition: answer for answer in delivered.answers}
    wanted_sizes = offsets_in_each([outcome.acquired for outcome in acquired.values()])
    answers = {}
    for (at, outcome), wanted in zip(acquired.items(), wanted_sizes, strict=True):
        answer = by_partition.get(at) or AcknowledgedSpan(at, (), ())
        # Answers lie within what was acquired, so equal sizes mean that no offset is missing: the frequent case.
        if total_offsets(answer.ranges) != wanted:
            answer = answer._replace(ranges=filled(outcome.acquired, answer.ranges, missing))
        answers[outcome.key] = answer
    return answers


def output_lost(span: AcknowledgedSpan, error: str, *, is_explained: bool) -> AcknowledgedSpan:
    """Return the answers without those that were accepted: their output is lost. Unless a record is known to have
    brought the worker down, the size of the output of one of these may have done it."""
    loss = Loss.FINISHED if is_explained else Loss.AFTER_HANDLER
    lost = [ErrorRun(first, last, error) for first, last, _ in chosen(span.ranges, _is_accepted)]
    ranges = [found._replace(answer=loss) if _is_accepted(found) else found for found in span.ranges]
    return span._replace(ranges=in_best_form(ranges), errors=sorted([*span.errors, *lost]))


def output_refused(span: AcknowledgedSpan, errors: Mapping[int, str]) -> AcknowledgedSpan:
    """Return the answers with these records released: the sink refuses their output."""
    ranges = [part for found in span.ranges for part in _released_in(found, errors)]
    refused = [ErrorRun(offset, offset, error) for offset, error in errors.items()]
    return span._replace(ranges=in_best_form(ranges), errors=sorted([*span.errors, *refused]))


def _released_in(found: AnsweredRange, offsets: Iterable[int]) -> Iterator[AnsweredRange]:
    """Yield the parts of an answer; these offsets are parts of their own, and released."""
    first = found.first_offset
    for offset in sorted(offset for offset in offsets if first <= offset <= found.last_offset):
        if first < offset:
            yield found._replace(first_offset=first, last_offset=offset - 1)
        yield AnsweredRange(offset, offset, AcknowledgeType.RELEASE)
        first = offset + 1
    if first <= found.last_offset:
        yield found._replace(first_offset=first)


def _is_accepted(found: AnsweredRange) -> bool:
    return found.answer == AcknowledgeType.ACCEPT


def has_any(span: AcknowledgedSpan, answers: Container[int]) -> bool:
    """Return whether one of the ranges has one of these answers."""
    return any(found.answer in answers for found in samples(span.ranges))


def offsets_by_answer(ranges: Sequence[AnsweredRange]) -> Counter[int]:
    """Count the offsets by their answer."""
    counted: Counter[int] = Counter()
    for found, offsets in offsets_by_kind(ranges):
        counted[found.answer] += offsets
    return counted


def throttled_in(answers: Iterable[AcknowledgedSpan]) -> int:
    """Return how many records were throttled. Usually none are, and then nothing is counted."""
    return sum(offsets_by_answer(span.ranges)[Loss.THROTTLED] for span in answers if has_any(span, (Loss.THROTTLED,)))


def attempts_in(answers: AcknowledgedSpans, at_ms: int) -> Attempts:
    """Count attempts whose handler was entered, and failed ones. Lost output is no failure of the handler; what was
    throttled is no attempt."""
    counted: Counter[int] = Counter()
    for span in answers.values():
        counted.update(offsets_by_answer(span.ranges))
    failed = sum(counted[answer] for answer in _FAILED)
    return Attempts(at_ms, failed + sum(counted[answer] for answer in _DONE), failed)


_FAILED = (AcknowledgeType.RELEASE, Loss.UNKNOWN, Loss.IN_HANDLER, Loss.AMONG_OTHERS)
_DONE = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT)


def filled(
    acquired: AcquiredRanges, answered: Sequence[AnsweredRange], missing: AcknowledgeType | Loss
) -> Sequence[AnsweredRange]:
    """Add ``missing`` for each acquired offset without an answer. GAP: it holds no record (R19, R21).

        acquired    [----------------]     [--------]
        answered    [2--][1-----]          [1-]  [1-]
        returned    [2--][1-----][ 0 ]     [1-][0][1-]     0: ``missing``

    ``acquired`` is disjoint, and ``answered`` lies within it. The ranges returned cover ``acquired`` exactly.
    """
    ranges = ascending(acquired)
    unanswered = as_columns([AnsweredRange(first, last, missing) for first, last, _ in ranges.tolist()])
    if not answered:
        return in_best_form(unanswered)
    found = as_columns(answered)
    return in_best_form(merged(outside(unanswered, found), found))


def are_held_back(ranges: Sequence[AnsweredRange], delays: Sequence[RetryDelay]) -> list[bool]:
    """Return, for each delay, whether it is of records that were not entered, and not of released or throttled ones."""
    return _are_of(ranges, delays, (Loss.NOT_ENTERED,))


def _are_of(ranges: Sequence[AnsweredRange], delays: Sequence[RetryDelay], answers: Container[int]) -> list[bool]:
    """Return, for each delay, whether it is of records with one of these answers."""
    if not delays or not any(found.answer in answers for found in samples(ranges)):
        return [False] * len(delays)
    found = as_columns(ranges)
    is_wanted = found.by_kind([one.answer in answers for one in found.samples], bool)
    wanted: list[bool] = is_wanted[found.last.searchsorted([delay.first_offset for delay in delays])].tolist()
    return wanted


def longest_throttle_ms(answers: Iterable[AcknowledgedSpan]) -> int:
    """Return the longest delay of throttled records, 0 if there are none."""
    return max(
        (
            delay.delay_ms
            for span in answers
            for delay in compress(span.delays, _are_of(span.ranges, span.delays, (Loss.THROTTLED,)))
        ),
        default=0,
    )


def released_by_key(
    acknowledged: Mapping[SharePartitionKey, Sequence[AnsweredRange]],
    delays: Mapping[SharePartitionKey, Sequence[RetryDelay]],
    *,
    has_backoff: bool,
) -> dict[SharePartitionKey, int]:
    """Return how many records may be acquired again at once, for the keys that have any. Usually all are accepted."""
    found = {
        key: _released(ranges, delays.get(key, ()), has_backoff=has_backoff) for key, ranges in acknowledged.items()
    }
    return {key: released for key, released in found.items() if released}


def _released(ranges: Sequence[AnsweredRange], delays: Sequence[RetryDelay], *, has_backoff: bool) -> int:
    counted = offsets_by_answer(ranges)
    lost = sum(counted[loss] for loss in LOSSES)
    at_once = total_offsets([delay for delay in delays if not delay.delay_ms])
    if has_backoff:
        return lost - total_offsets(list(compress(delays, _are_of(ranges, delays, LOSSES)))) + at_once
    later = total_offsets(delays) - at_once
    return lost + counted[AcknowledgeType.RELEASE] - later


def are_inside(ranges: Sequence[AnsweredRange], offsets: Sequence[int]) -> list[bool]:
    """Return, for each of ``offsets``, whether it is in one of ``ranges`` (ascending, disjoint)."""
    if not ranges:
        return [False] * len(offsets)
    columns = as_columns(ranges)
    _, found = look_up(columns.first, columns.last, np.array(offsets, np.int64))
    inside: list[bool] = found.tolist()
    return inside
