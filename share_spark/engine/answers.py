"""Answers of a delivery as arrays of ranges: filled up to what was acquired, looked up, cut by their errors. Pure."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from share_spark.engine.breaker import Attempts
from share_spark.engine.ports import AcknowledgedSpan, AcknowledgedSpans, Delivered, ErrorRun
from share_spark.engine.ranges import (
    ANSWER,
    FIRST,
    LAST,
    NOT_ACKNOWLEDGED,
    AcknowledgedRanges,
    AcquiredRanges,
    ascending,
    offsets_in,
)
from share_spark.engine.step import PartitionOutcome
from share_spark.model.errors import ErrorCode, StateError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss, RetryDelay

MOST_ERRORS = 20
"""Different ones that the progress of a micro-batch has."""


def errors_in(answers: AcknowledgedSpans) -> dict[str, int]:
    """Error -> records that failed with it, of what there is most."""
    found: Counter[str] = Counter()
    for span in answers.values():
        for first, last, error in span.errors:
            found[error] += last - first + 1
    return dict(found.most_common(MOST_ERRORS))


def refuse_errors(outcomes: Sequence[PartitionOutcome]) -> None:
    """A live engine acknowledges only what it holds; a refusal means its state is not what it believes. Raises
    StateError."""
    for outcome in outcomes:
        if outcome.error is not ErrorCode.NONE:
            raise StateError(f"{outcome.key} refused its own acknowledgements: {outcome.error.name}")


def answers_for(acquired: Mapping[TopicPartition, PartitionOutcome], delivered: Delivered) -> AcknowledgedSpans:
    """Answers for exactly what was acquired."""
    # After a fault of the delivery an offset without an answer was not reached; without one it holds no record.
    missing = AcknowledgeType.GAP if delivered.fault is None else Loss.NOT_ENTERED
    by_partition = {answer.partition: answer for answer in delivered.answers}
    answers = {}
    for at, outcome in acquired.items():
        answer = by_partition.get(at) or AcknowledgedSpan(at, NOT_ACKNOWLEDGED, ())
        answers[outcome.key] = answer._replace(ranges=filled(outcome.acquired, answer.ranges, missing))
    return answers


def output_lost(span: AcknowledgedSpan, error: str, *, is_explained: bool) -> AcknowledgedSpan:
    """What was accepted was done with, and is lost with its output. Unless a record is known to have brought the worker
    down, it may be one of these that did, by the size of its output."""
    accepted = span.ranges[:, ANSWER] == AcknowledgeType.ACCEPT
    ranges = AcknowledgedRanges(span.ranges.copy())
    ranges[accepted, ANSWER] = Loss.FINISHED if is_explained else Loss.AFTER_HANDLER
    lost = [ErrorRun(first, last, error) for first, last, _ in ranges[accepted].tolist()]
    return span._replace(ranges=ranges, errors=sorted([*span.errors, *lost]))


def attempts_in(answers: AcknowledgedSpans, at_ms: int) -> Attempts:
    """Of handlers that were entered, with how many failed. Output that was lost says nothing of the handler."""
    total = failed = 0
    for span in answers.values():
        said = span.ranges[:, ANSWER]
        failures = offsets_in(span.ranges[np.isin(said, _FAILED)])
        total += failures + offsets_in(span.ranges[np.isin(said, _DONE)])
        failed += failures
    return Attempts(at_ms, total, failed)


_FAILED = [AcknowledgeType.RELEASE, Loss.UNKNOWN, Loss.IN_HANDLER, Loss.AMONG_OTHERS]
_DONE = [AcknowledgeType.ACCEPT, AcknowledgeType.REJECT]


def filled(
    acquired: AcquiredRanges, acknowledged: AcknowledgedRanges, missing: AcknowledgeType | Loss
) -> AcknowledgedRanges:
    """``acknowledged``, and ``missing`` for each acquired offset without an answer. GAP: it holds no record (R19, R21).

        acquired       [----------------]     [--------]
        acknowledged   [2--][1-----]          [1-]  [1-]
        returned       [2--][1-----][ 0 ]     [1-][0[1-]     0: ``missing``

    ``acquired`` is disjoint, and ``acknowledged`` lies within it. Returns ranges that cover ``acquired`` exactly.
    """
    # The second lies within the first, so equal sizes mean that no offset is missing: the frequent case.
    if offsets_in(acquired) == offsets_in(acknowledged):
        return acknowledged
    holes: list[tuple[int, int, int]] = []
    reported = acknowledged[:, :2].tolist()
    position = 0
    at = -1
    for first, last in ascending(acquired)[:, :2].tolist():
        at = max(at, first)
        while position < len(reported) and reported[position][0] <= last:
            if reported[position][0] > at:
                holes.append((at, reported[position][0] - 1, missing))
            at = reported[position][1] + 1
            position += 1
        if at <= last:
            holes.append((at, last, missing))
    everything = np.concatenate([acknowledged, np.array(holes, dtype=np.int64).reshape(-1, 3)])
    return AcknowledgedRanges(ascending(everything))


def are_held_back(ranges: AcknowledgedRanges, delays: Sequence[RetryDelay]) -> list[bool]:
    """Of each delay of these answers: is it of records that were not entered, and not of released ones?"""
    if not (ranges[:, ANSWER] == Loss.NOT_ENTERED).any():
        return [False] * len(delays)
    first = np.array([delay.first_offset for delay in delays], np.int64)
    answers = ranges[np.searchsorted(ranges[:, LAST], first), ANSWER]
    return [answer < 0 for answer in answers.tolist()]


def are_inside(ranges: AcknowledgedRanges, offsets: Sequence[int]) -> list[bool]:
    """Is each of ``offsets`` in one of ``ranges`` (ascending, disjoint)?"""
    if not len(ranges):
        return [False] * len(offsets)
    wanted = np.array(offsets, np.int64)
    at = np.searchsorted(ranges[:, FIRST], wanted, side="right") - 1
    found: list[bool] = ((at >= 0) & (wanted <= ranges[at, LAST])).tolist()
    return found


def cut_by_error(first: int, last: int, errors: Sequence[ErrorRun]) -> list[tuple[int, int, str | None]]:
    """Cut ``first..last`` where the error text changes. ``errors`` ascend and are disjoint.

    first..last   [--------------------]
    errors      [ e1 ]      [ e2 ]
    returned      [e1][none][ e2 ][none]
    """
    pieces: list[tuple[int, int, str | None]] = []
    at = first
    start = bisect.bisect_left(errors, first, key=lambda entry: entry[1])
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
