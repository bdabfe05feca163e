"""The finished calls of an engine that has ended, taken over by the next one: what its handlers have answered counts,
and what they have put out is committed, although no state row has it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from share_spark.engine.attempts import AnsweredAttempt, ErrorRun, FinishedCalls, MemberTrace
from share_spark.engine.delivery_port import AcknowledgedSpan, AcknowledgedSpans, Delivery
from share_spark.engine.pending import NOTHING_PENDING, PendingAcknowledgements
from share_spark.engine.step import PartitionSummary
from share_spark.engine.world import Ports
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.records import InFlightBatch
from share_spark.model.requests import AnsweredRange, RetryDelay
from share_spark.partition.columns import Row, as_columns, in_best_form, intersection, merged, outside

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class EarlierLocks:
    """The locks that were there at the start, of engines before. ``_until_ms``: the end of the last one, None once all
    have ended."""

    delivery: Delivery
    _until_ms: int | None

    @classmethod
    def of(cls, summaries: Iterable[PartitionSummary], delivery: Delivery) -> EarlierLocks:
        """Return those of the state that an engine starts with."""
        deadlines = [summary.last_deadline_ms for summary in summaries if summary.last_deadline_ms]
        return cls(delivery=delivery, _until_ms=max(deadlines, default=0))

    def traces(self, now_ms: int, deadlines: Iterable[int | None]) -> Sequence[MemberTrace] | None:
        """Return the traces of their members if a lock has ended that may be one of these, else None."""
        if self._until_ms is None or all(deadline is None or deadline > now_ms for deadline in deadlines):
            return None
        return self.delivery.traces()

    def forget(self, now_ms: int, next_deadline_ms: int | None) -> None:
        """Forget the traces once all these locks have ended, also those of topics out of reach."""
        until_ms = self._until_ms
        if until_ms is None or now_ms < until_ms or (next_deadline_ms is not None and next_deadline_ms <= until_ms):
            return
        self._until_ms = None
        self.delivery.forget_traces()


class TakenOver(NamedTuple):
    """Acknowledgements for the first micro-batch. ``with_rows``: the same, and those that count once the output rows
    that the delivery holds are in the sink as well; nothing if there are no such rows."""

    pending: PendingAcknowledgements
    with_rows: PendingAcknowledgements


def taken_over(
    ports: Ports,
    summaries: Mapping[SharePartitionKey, PartitionSummary],
    in_sink: PendingAcknowledgements,
    *,
    decides: bool,
) -> TakenOver:
    """Return what handlers of the engine before have answered, and the state does not have. ``in_sink``: those of which
    the sink has the rows, which are valid; they are in all that is returned, as the sink's next commit has to say them
    again. ``decides``: rows decide whether an answer is valid."""
    topics = {key: summary.topic for key, summary in summaries.items()}
    for calls in ports.delivery.finished_calls():
        if in_sink and calls.member_id != in_sink.member_id:
            continue
        found = unabsorbed(calls, _without(ports.store.held_by(calls.member_id), in_sink.spans), topics)
        if not found.answers and not found.put_out:
            continue
        _log.info("finished calls of %s are taken over", calls.member_id)
        pending = PendingAcknowledgements(spans=_both(in_sink.spans, found.answers), member_id=calls.member_id)
        has_rows = bool(found.put_out) and decides and ports.delivery.hold_rows(found.put_out.values())
        with_rows = replace(pending, spans=_both(pending.spans, found.put_out)) if has_rows else NOTHING_PENDING
        return TakenOver(pending, with_rows)
    return TakenOver(in_sink, NOTHING_PENDING)


class Unabsorbed(NamedTuple):
    """Answers of another member that the state does not have. ``put_out``: acceptances that count with the output rows
    that were kept."""

    answers: AcknowledgedSpans
    put_out: AcknowledgedSpans


_Held = Mapping[SharePartitionKey, Sequence[InFlightBatch]]


def unabsorbed(calls: FinishedCalls, held: _Held, topics: Mapping[SharePartitionKey, str]) -> Unabsorbed:
    """Return the answers to attempts that their member still ``held``: those with the same delivery count. The state
    has absorbed the others. ``topics``: names by share-partition. An attempt after a throttled one has the same count,
    and is taken back if its engine has died before the handler was entered again: that is right for both."""
    runs = {key: (TopicPartition(topics[key], key.partition), found) for key, found in held.items()}
    return Unabsorbed(_spans(calls, calls.answered, runs), _spans(calls, calls.put_out, runs))


def _without(held: _Held, answered: AcknowledgedSpans) -> _Held:
    """Return what is held and not answered."""
    return {
        key: outside(as_columns(runs), as_columns(answered[key].ranges)) if runs and key in answered else runs
        for key, runs in held.items()
    }


def _both(some: AcknowledgedSpans, others: AcknowledgedSpans) -> AcknowledgedSpans:
    """Return all answers, of which no two are for the same offset."""
    in_both = {key: _joined(some[key], others[key]) for key in some if key in others}
    return {**some, **others, **in_both}


def _joined(one: AcknowledgedSpan, other: AcknowledgedSpan) -> AcknowledgedSpan:
    return AcknowledgedSpan(
        one.partition,
        in_best_form(merged(as_columns(one.ranges), as_columns(other.ranges))),
        sorted([*one.errors, *other.errors]),
        sorted([*one.delays, *other.delays]),
    )


def _spans(
    calls: FinishedCalls,
    answered: Mapping[TopicPartition, Sequence[AnsweredAttempt]],
    held: Mapping[SharePartitionKey, tuple[TopicPartition, Sequence[InFlightBatch]]],
) -> AcknowledgedSpans:
    spans = {}
    for key, (at, runs) in held.items():
        ranges = _unabsorbed(answered.get(at, ()), runs)
        if ranges:
            errors, delays = calls.errors.get(at, ()), calls.delays.get(at, ())
            spans[key] = AcknowledgedSpan(
                at, ranges, _inside(ErrorRun, errors, ranges), _inside(RetryDelay, delays, ranges)
            )
    return spans


def _unabsorbed(answered: Sequence[AnsweredAttempt], runs: Sequence[InFlightBatch]) -> Sequence[AnsweredRange]:
    """Cut the answers to the runs, where the delivery counts agree.

    answered    [ACCEPT, 1----][RELEASE, 2]
    runs           [count 1-------------]
    returned       [ACCEPT----]
    """
    if not answered or not runs:
        return ()
    both = intersection(_row, as_columns(answered), as_columns(runs))
    kinds = [(answer,) if count == run_count else None for count, answer, _, run_count, *_ in both.kinds]
    return in_best_form(both.recoded(AnsweredRange, kinds))


def _row(first: int, last: int, *fields: Any) -> tuple[Any, ...]:
    return first, last, *fields


def _inside(row: Callable[..., Row], some: Sequence[Row], ranges: Sequence[AnsweredRange]) -> Sequence[Row]:
    """Cut ``some``, ascending and disjoint (first, last, value), to ``ranges``."""
    if not some:
        return ()
    both = intersection(_row, as_columns(some), as_columns(ranges))
    return tuple(both.recoded(row, [kind[:1] for kind in both.kinds]))
