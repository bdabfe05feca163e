"""Answers for single records as the engine takes them: per topic-partition, in runs of the same answer.

A companion answers some thousand records a second. So an answer is touched a few times, and no array is made for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

import pyarrow as pa

from share_spark.companion.messages import Answered, RecordAnswer
from share_spark.delivery.arrow_stream import table_in
from share_spark.engine.attempts import ErrorRun
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import ANSWERS, AcknowledgeType, AnsweredRange, Loss, RetryDelay
from share_spark.partition.columns import in_best_form

_Value = TypeVar("_Value")

_UNTRIED = {int(AcknowledgeType.GAP), int(Loss.NOT_ENTERED)}
"""The answers for offsets that no call was made for."""


def was_entered(answer: RecordAnswer) -> bool:
    """Return whether a call was made for these offsets."""
    return answer.answer not in _UNTRIED


def entered_in(answers: Iterable[RecordAnswer]) -> int:
    """Return how many records a call was made for."""
    return sum(one.last_offset - one.first_offset + 1 for one in answers if was_entered(one))


def rows_of(message: Answered, found: Sequence[RecordAnswer]) -> Iterator[pa.Table]:
    """Yield the output rows in a message, if there are any. ``found``: those of its answers that are of interest."""
    if not message.rows or not found:
        return
    rows = table_in(message.rows)
    if len(found) < len(message.answers):
        wanted = {one[:3] for one in found}
        rows = rows.filter(pa.array([message.answers[owner][:3] in wanted for owner in message.owners]))
    yield rows


def spans_of(answers: Iterable[RecordAnswer]) -> list[AcknowledgedSpan]:
    """Return the answers by topic-partition. No offset may be answered twice."""
    by_place: dict[TopicPartition, list[RecordAnswer]] = {}
    for one in answers:
        by_place.setdefault(one.at, []).append(one)
    return [_span(at, sorted(some, key=_first)) for at, some in by_place.items()]


_first = attrgetter("first_offset")


def _span(at: TopicPartition, rows: list[RecordAnswer]) -> AcknowledgedSpan:
    ranges = _joined((row.first_offset, row.last_offset, ANSWERS[row.answer]) for row in rows)
    errors = _joined((row.first_offset, row.last_offset, row.error) for row in rows if row.error is not None)
    delays = _joined(
        (row.first_offset, row.last_offset, (row.delay_ms, row.answer)) for row in rows if row.delay_ms is not None
    )
    return AcknowledgedSpan(
        at,
        in_best_form([AnsweredRange(*run) for run in ranges]),
        tuple(ErrorRun(*run) for run in errors),
        tuple(RetryDelay(first, last, delay_ms) for first, last, (delay_ms, _) in delays),
    )


def _joined(runs: Iterable[tuple[int, int, _Value]]) -> Iterator[tuple[int, int, _Value]]:
    """Join neighbouring runs of the same value. ``runs`` ascend."""
    begin, end, value = 0, -1, None
    for first, last, found in runs:
        if value is not None and first == end + 1 and found == value:
            end = last
            continue
        if value is not None:
            yield begin, end, value
        begin, end, value = first, last, found
    if value is not None:
        yield begin, end, value
