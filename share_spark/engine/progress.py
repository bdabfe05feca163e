"""What one micro-batch did, as readable figures: counts of records and the time of each step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from share_spark.engine.step import PartitionOutcome
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import ArchiveReason


@dataclass(slots=True)
class StepTimer:
    """Seconds per named step of a micro-batch; a step that comes twice adds up."""

    steps: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def mark(self, name: str) -> None:
        """The step that ends now was ``name``."""
        now = time.perf_counter()
        self.steps[name] = self.steps.get(name, 0.0) + now - self._since
        self._since = now


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchProgress:
    """Counts are records (offsets). ``lag``: offsets not finished yet. ``deliveries``: delivery count -> acquired.
    ``not_entered``: acquired, and given back before the handler had them. ``steps``: seconds per step. ``touched``:
    share-partitions whose state changed."""

    batch_id: int
    now_ms: int
    active: int
    acquired: int
    redelivered: int
    accepted: int
    released: int
    not_entered: int
    rejected: int
    limit_reached: int
    gaps: int
    below_log_start: int
    lag: int
    deliveries: Mapping[int, int]
    steps: Mapping[str, float]
    touched: tuple[SharePartitionKey, ...]

    @property
    def archived(self) -> int:
        """Records archived, for any reason."""
        return self.rejected + self.limit_reached + self.gaps + self.below_log_start

    @property
    def idle(self) -> bool:
        """Nothing was decided: nothing was written."""
        return self.active == 0

    @classmethod
    def of(
        cls,
        batch_id: int,
        now_ms: int,
        outcomes: Sequence[PartitionOutcome],
        lag: int,
        steps: Mapping[str, float],
    ) -> MicroBatchProgress:
        """Sum up the outcomes of a micro-batch."""
        archived = _archived_by_reason(outcomes)
        deliveries = _deliveries(outcomes)
        return cls(
            batch_id=batch_id,
            now_ms=now_ms,
            active=len(outcomes),
            acquired=sum(deliveries.values()),
            redelivered=sum(outcome.redelivered for outcome in outcomes),
            accepted=sum(outcome.accepted for outcome in outcomes),
            released=sum(outcome.released for outcome in outcomes),
            not_entered=sum(outcome.not_entered for outcome in outcomes),
            rejected=archived.get(ArchiveReason.REJECTED, 0),
            limit_reached=archived.get(ArchiveReason.DELIVERY_LIMIT, 0),
            gaps=archived.get(ArchiveReason.GAP, 0),
            below_log_start=archived.get(ArchiveReason.LOG_START, 0),
            lag=lag,
            deliveries=deliveries,
            steps=steps,
            touched=tuple(outcome.key for outcome in outcomes if outcome.changed),
        )


def _archived_by_reason(outcomes: Sequence[PartitionOutcome]) -> dict[ArchiveReason, int]:
    totals: dict[ArchiveReason, int] = {}
    for outcome in outcomes:
        for run in outcome.archived:
            totals[run.reason] = totals.get(run.reason, 0) + run.last_offset - run.first_offset + 1
    return totals


def _deliveries(outcomes: Sequence[PartitionOutcome]) -> dict[int, int]:
    ranges = [outcome.acquired for outcome in outcomes if len(outcome.acquired)]
    if not ranges:
        return {}
    rows = np.concatenate(ranges)
    counts, where = np.unique(rows[:, 2], return_inverse=True)
    sizes = np.bincount(where, weights=rows[:, 1] - rows[:, 0] + 1)
    return {int(count): int(size) for count, size in zip(counts, sizes, strict=True)}
