"""Answers of a delivery as arrays of ranges: filled up to what was acquired, looked up, cut by their errors. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import numpy as np

from share_spark.engine.ports import AcknowledgedSpan, AcknowledgedSpans, Delivered, ErrorRun
from share_spark.engine.step import NO_RANGES, PartitionOutcome, Ranges
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss


def answers_for(acquired: Mapping[TopicPartition, PartitionOutcome], delivered: Delivered) -> AcknowledgedSpans:
    """Answers for exactly what was acquired."""
    missing = AcknowledgeType.GAP if delivered.fault is None else Loss.NOT_ENTERED
    said = {answer.partition: answer for answer in delivered.answers}
    answers = {}
    for at, outcome in acquired.items():
        answer = said.get(at) or AcknowledgedSpan(at, NO_RANGES, ())
        answers[outcome.key] = answer._replace(ranges=filled(outcome.acquired, answer.ranges, missing))
    return answers


def output_lost(span: AcknowledgedSpan, error: str, *, is_explained: bool) -> AcknowledgedSpan:
    """What was accepted was done with, and is lost with its output. Unless a record is known to have brought the worker
    down, it may be one of these that did, by the size of its output."""
    accepted = span.ranges[:, 2] == AcknowledgeType.ACCEPT
    ranges = span.ranges.copy()
    ranges[accepted, 2] = Loss.FINISHED if is_explained else Loss.AFTER_HANDLER
    lost = [ErrorRun(first, last, error) for first, last, _ in ranges[accepted].tolist()]
    return span._replace(ranges=ranges, errors=sorted([*span.errors, *lost]))


def filled(acquired: Ranges, acknowledged: Ranges, missing: AcknowledgeType | Loss) -> Ranges:
    """Answer ``missing`` for every acquired offset that nobody reported. GAP: there is no record at it (R19, R21).

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
                holes.append((at, reported[position][0] - 1, missing))
            at = reported[position][1] + 1
            position += 1
        if at <= last:
            holes.append((at, last, missing))
    filled = np.concatenate([acknowledged, np.array(holes, dtype=np.int64).reshape(-1, 3)])
    return filled[np.argsort(filled[:, 0], kind="stable")]


def is_inside(ranges: Ranges, offset: int) -> bool:
    """Is ``offset`` in one of ``ranges`` (ascending, disjoint)?"""
    at = int(np.searchsorted(ranges[:, 1], offset))
    return at < len(ranges) and bool(ranges[at, 0] <= offset)


def cut_by_error(first: int, last: int, errors: Sequence[ErrorRun]) -> list[tuple[int, int, str | None]]:
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
