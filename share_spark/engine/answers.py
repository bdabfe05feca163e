"""Answers of a delivery as arrays of ranges, completed to all that was acquired. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import compress

import numpy as np

from share_spark.engine.attempts import ErrorRun
from share_spark.engine.breaker import Attempts
from share_spark.engine.ports import AcknowledgedSpan, AcknowledgedSpans, Delivered
from share_spark.engine.ranges import (
    ANSWER,
    FIRST,
    LAST,
    NOT_ACKNOWLEDGED,
    AcknowledgedRanges,
    AcquiredRanges,
    ascending,
    laid,
    look_up,
    offsets_in,
    offsets_in_each,
    that_have,
)
from share_spark.engine.step import PartitionOutcome
from share_spark.model.errors import ErrorCode, StateError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss, RetryDelay
from share_spark.partition.columns import total_offsets

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
    found = [by_partition.get(at) or AcknowledgedSpan(at, NOT_ACKNOWLEDGED, ()) for at in acquired]
    wanted_sizes = offsets_in_each([outcome.acquired for outcome in acquired.values()])
    sizes = offsets_in_each([answer.ranges for answer in found])
    answers = {}
    for outcome, answer, wanted, size in zip(acquired.values(), found, wanted_sizes, sizes, strict=True):
        # Answers lie within what was acquired, so equal sizes mean that no offset is missing: the frequent case.
        is_whole = wanted == size
        answers[outcome.key] = (
            answer if is_whole else answer._replace(ranges=filled(outcome.acquired, answer.ranges, missing))
        )
    return answers


def output_lost(span: AcknowledgedSpan, error: str, *, is_explained: bool) -> AcknowledgedSpan:
    """Return the answers without those that were accepted: their output is lost. Unless a record is known to have
    brought the worker down, the size of the output of one of these may have done it."""
    accepted = span.ranges[:, ANSWER] == AcknowledgeType.ACCEPT
    ranges = AcknowledgedRanges(span.ranges.copy())
    ranges[accepted, ANSWER] = Loss.FINISHED if is_explained else Loss.AFTER_HANDLER
    lost = [ErrorRun(first, last, error) for first, last, _ in ranges[accepted].tolist()]
    return span._replace(ranges=ranges, errors=sorted([*span.errors, *lost]))


def attempts_in(answers: AcknowledgedSpans, at_ms: int) -> Attempts:
    """Count attempts whose handler was entered, and failed ones. Lost output is no failure of the handler."""
    ranges = laid(span.ranges for span in answers.values())
    said = ranges[:, ANSWER]
    failed = offsets_in(ranges[np.isin(said, _FAILED)])
    return Attempts(at_ms, failed + offsets_in(ranges[np.isin(said, _DONE)]), failed)


_FAILED = [AcknowledgeType.RELEASE, Loss.UNKNOWN, Loss.IN_HANDLER, Loss.AMONG_OTHERS]
_DONE = [AcknowledgeType.ACCEPT, AcknowledgeType.REJECT]


def filled(
    acquired: AcquiredRanges, acknowledged: AcknowledgedRanges, missing: AcknowledgeType | Loss
) -> AcknowledgedRanges:
    """Add ``missing`` for each acquired offset without an answer. GAP: it holds no record (R19, R21).

        acquired       [----------------]     [--------]
        acknowledged   [2--][1-----]          [1-]  [1-]
        returned       [2--][1-----][ 0 ]     [1-][0[1-]     0: ``missing``

    ``acquired`` is disjoint, and ``acknowledged`` lies within it. The ranges returned cover ``acquired`` exactly.
    """
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
    """Return, for each delay, whether it is of records that were not entered, and not of released ones."""
    if not (ranges[:, ANSWER] == Loss.NOT_ENTERED).any():
        return [False] * len(delays)
    first = np.array([delay.first_offset for delay in delays], np.int64)
    answers = ranges[np.searchsorted(ranges[:, LAST], first), ANSWER]
    return [answer < 0 for answer in answers.tolist()]


def released_by_key(
    acknowledged: Mapping[SharePartitionKey, AcknowledgedRanges],
    delays: Mapping[SharePartitionKey, Sequence[RetryDelay]],
    *,
    has_backoff: bool,
) -> dict[SharePartitionKey, int]:
    """Return how many records may be acquired again at once, for the keys that have any. Usually all are accepted."""
    keys, ranges = list(acknowledged), list(acknowledged.values())
    some = that_have(ranges, [AcknowledgeType.RELEASE, *Loss])
    return {
        keys[number]: _released(ranges[number], delays.get(keys[number], ()), has_backoff=has_backoff)
        for number in some
    }


def _released(acknowledged: AcknowledgedRanges, delays: Sequence[RetryDelay], *, has_backoff: bool) -> int:
    answers = acknowledged[:, ANSWER]
    lost = offsets_in(acknowledged[answers < 0])
    at_once = total_offsets([delay for delay in delays if not delay.delay_ms])
    if has_backoff:
        return lost - _held_back(acknowledged, delays) + at_once
    later = total_offsets(delays) - at_once
    return lost + offsets_in(acknowledged[answers == AcknowledgeType.RELEASE]) - later


def _held_back(acknowledged: AcknowledgedRanges, delays: Sequence[RetryDelay]) -> int:
    """Return how many records were not entered, and wait for a record before them."""
    return total_offsets(list(compress(delays, are_held_back(acknowledged, delays))))


def are_inside(ranges: AcknowledgedRanges, offsets: Sequence[int]) -> list[bool]:
    """Return, for each of ``offsets``, whether it is in one of ``ranges`` (ascending, disjoint)."""
    if not len(ranges):
        return [False] * len(offsets)
    _, found = look_up(ranges[:, FIRST], ranges[:, LAST], np.array(offsets, np.int64))
    inside: list[bool] = found.tolist()
    return inside
