"""The figures of one micro-batch: counts of records and the time of each step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from share_spark.engine.delivery_port import CallsLook
from share_spark.engine.outage import Outage
from share_spark.engine.pauses import Pauses
from share_spark.engine.step import PartitionOutcome, PartitionSummary
from share_spark.model.html_table import html_facts
from share_spark.model.ids import LogEnds, SharePartitionKey
from share_spark.model.requests import ArchiveReason
from share_spark.partition.runs import offsets_by_kind


def lag_of(summaries: Mapping[SharePartitionKey, PartitionSummary], ends: Mapping[SharePartitionKey, LogEnds]) -> int:
    """Return the number of offsets that are not finished, over all share-partitions."""
    found = ((end, summaries.get(key)) for key, end in ends.items())
    return sum(summary.lag(end) for end, summary in found if summary is not None)


@dataclass(slots=True)
class StepTimer:
    """Seconds per named step of a micro-batch; a step that comes twice adds up."""

    steps: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def mark(self, name: str) -> float:
        """Add the time since the last mark to the step ``name``, and return the sum."""
        now = time.perf_counter()
        self.steps[name] = self.steps.get(name, 0.0) + now - self._since
        self._since = now
        return self.steps[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Counts of records (offsets). ``not_entered``: acquired, and given back before the handler had them.
    ``throttled``: given back uncounted as well, since a service asked the handler to wait. The last four were archived.
    """

    acquired: int = 0
    redelivered: int = 0
    accepted: int = 0
    released: int = 0
    not_entered: int = 0
    throttled: int = 0
    rejected: int = 0
    limit_reached: int = 0
    gaps: int = 0
    below_log_start: int = 0

    def __add__(self, other: RecordCounts) -> RecordCounts:
        return RecordCounts(**{name: getattr(self, name) + getattr(other, name) for name in COUNTS})

    @property
    def archived(self) -> int:
        """The number of records archived, for any reason."""
        return self.rejected + self.limit_reached + self.gaps + self.below_log_start

    @property
    def acknowledged(self) -> dict[str, int]:
        """Records by acknowledge type. Release includes those that reached the delivery limit by it, and those that a
        crash has given back. Gaps are in none."""
        return {"Accept": self.accepted, "Release": self.released + self.limit_reached, "Reject": self.rejected}

    @classmethod
    def summed(cls, outcomes: Sequence[PartitionOutcome], deliveries: Mapping[int, int]) -> RecordCounts:
        """Sum up outcomes. ``deliveries``: delivery count -> acquired."""
        archived = _archived_by_reason(outcomes)
        return cls(
            acquired=sum(deliveries.values()),
            redelivered=sum(records for count, records in deliveries.items() if count > 1),
            accepted=sum(outcome.accepted for outcome in outcomes),
            released=sum(outcome.released for outcome in outcomes),
            not_entered=sum(outcome.not_entered for outcome in outcomes),
            throttled=sum(outcome.throttled for outcome in outcomes),
            **{name: archived.get(reason, 0) for reason, name in ARCHIVED.items()},
        )


COUNTS = tuple(field.name for field in fields(RecordCounts))

ARCHIVED = {
    ArchiveReason.REJECTED: "rejected",
    ArchiveReason.DELIVERY_LIMIT: "limit_reached",
    ArchiveReason.GAP: "gaps",
    ArchiveReason.LOG_START: "below_log_start",
}
"""The name of the count for each reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchProgress(RecordCounts):
    """Counts are records (offsets), of all topics and, in ``topics``, of each one by its name. ``lag``: offsets not
    finished yet. ``deliveries``: delivery count -> acquired. ``share_partitions``: their number. ``steps``: seconds per
    step. ``touched``: share-partitions whose state changed. ``errors``: error -> records that failed or were throttled
    with it when they were delivered, the most frequent ones; the next micro-batch gives them back or rejects them."""

    batch_id: int
    now_ms: int
    share_partitions: int
    active: int
    lag: int
    deliveries: Mapping[int, int]
    steps: Mapping[str, float]
    touched: tuple[SharePartitionKey, ...]
    topics: Mapping[str, RecordCounts]
    errors: Mapping[str, int]

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        counts = {name: getattr(self, name) for name in (*COUNTS, "lag")}
        seconds = {f"{name}, s": seconds for name, seconds in self.steps.items()}
        return html_facts(f"Micro-batch {self.batch_id}", counts | seconds)

    @property
    def idle(self) -> bool:
        """Whether nothing was decided, and so nothing was written."""
        return self.active == 0

    @classmethod
    def of(
        cls,
        batch_id: int,
        now_ms: int,
        outcomes: Sequence[PartitionOutcome],
        share_partitions: int,
        lag: int,
        steps: Mapping[str, float],
        errors: Mapping[str, int],
    ) -> MicroBatchProgress:
        """Sum up the outcomes of a micro-batch."""
        by_topic = _by_topic(outcomes)
        deliveries = {topic: _deliveries(some) for topic, some in by_topic.items()}
        topics = {topic: RecordCounts.summed(some, deliveries[topic]) for topic, some in by_topic.items()}
        total = sum(topics.values(), RecordCounts())
        return cls(
            batch_id=batch_id,
            now_ms=now_ms,
            share_partitions=share_partitions,
            active=len(outcomes),
            lag=lag,
            deliveries=deliveries_added(deliveries.values()),
            steps=steps,
            touched=tuple(outcome.key for outcome in outcomes if outcome.changed),
            topics=topics,
            errors=errors,
            **{name: getattr(total, name) for name in COUNTS},
        )


def _by_topic(outcomes: Sequence[PartitionOutcome]) -> dict[str, list[PartitionOutcome]]:
    found: dict[str, list[PartitionOutcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.summary.topic, []).append(outcome)
    return found


def deliveries_added(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add up delivery count -> records."""
    total: dict[int, int] = {}
    for one in counts:
        for number, records in one.items():
            total[number] = total.get(number, 0) + records
    return dict(sorted(total.items()))


def _archived_by_reason(outcomes: Sequence[PartitionOutcome]) -> dict[ArchiveReason, int]:
    totals: dict[ArchiveReason, int] = {}
    for outcome in outcomes:
        for run, offsets in offsets_by_kind(outcome.archived):
            totals[run.reason] = totals.get(run.reason, 0) + offsets
    return totals


def _deliveries(outcomes: Sequence[PartitionOutcome]) -> dict[int, int]:
    """Return delivery count -> records that handlers and clients have acquired."""
    return deliveries_added([_handled(outcomes), *_fetched(outcomes)])


def _handled(outcomes: Sequence[PartitionOutcome]) -> dict[int, int]:
    ranges = [outcome.acquired for outcome in outcomes if len(outcome.acquired)]
    if not ranges:
        return {}
    rows = np.concatenate(ranges)
    counts, where = np.unique(rows[:, 2], return_inverse=True)
    sizes = np.bincount(where, weights=rows[:, 1] - rows[:, 0] + 1)
    return {int(count): int(size) for count, size in zip(counts, sizes, strict=True)}


def _fetched(outcomes: Sequence[PartitionOutcome]) -> Iterator[dict[int, int]]:
    for outcome in outcomes:
        for response in outcome.responses:
            for run, offsets in offsets_by_kind(response.acquired):
                yield {run.delivery_count: offsets}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLook:
    """A look at an engine. ``writer_epoch``: 0 before the claim. ``load_s``: seconds to load the state. ``read_at_ms``:
    when the clock was read last, at the start and by each micro-batch, idle ones too; 0 before that. ``breaker``: why
    the circuit breaker is open; empty while it is closed. ``outage``: the present one. ``calls``: those that
    outlast micro-batches, None if none does."""

    writer_epoch: int
    load_s: float
    read_at_ms: int
    summaries: Mapping[SharePartitionKey, PartitionSummary]
    ends: Mapping[SharePartitionKey, LogEnds]
    pauses: Pauses
    breaker: str
    outage: Outage | None = None
    calls: CallsLook | None = None
