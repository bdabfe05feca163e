"""The work of the micro-batches of one engine, added up since its start. Pure values: a reader in another thread sees
all of a micro-batch or nothing of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from share_spark.engine.progress import MicroBatchProgress, RecordCounts

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a histogram, in seconds."""

_COMMIT = "append"
"""The step that is the commit to the state log (``engine.micro_batch``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondsHistogram:
    """A histogram of seconds. ``counts``: of each bucket by itself, the last one for all above ``BOUNDS_S``."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0
    max_s: float = 0.0

    def plus(self, seconds: float) -> SecondsHistogram:
        """Return the histogram with one more observation."""
        at = bisect_left(BOUNDS_S, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return SecondsHistogram(counts=counts, sum_s=self.sum_s + seconds, max_s=max(self.max_s, seconds))

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


_EMPTY = SecondsHistogram()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """The totals of a group. ``topics``: records by topic. ``steps``: time by step. ``commits``: those that wrote.
    ``acknowledgements``: micro-batches that took some in. ``assignments``: how often the number of share-partitions
    changed, from 0 on. ``busy_s``: seconds of all steps."""

    topics: Mapping[str, RecordCounts] = field(default_factory=dict)
    steps: Mapping[str, SecondsHistogram] = field(default_factory=dict)
    commits: SecondsHistogram = _EMPTY
    acknowledgements: int = 0
    assignments: int = 0
    share_partitions: int = 0
    busy_s: float = 0.0

    def plus(self, progress: MicroBatchProgress) -> GroupTotals:
        """Return the totals with one more micro-batch."""
        added = {topic: self.topics.get(topic, RecordCounts()) + counts for topic, counts in progress.topics.items()}
        times = {step: self.steps.get(step, _EMPTY).plus(seconds) for step, seconds in progress.steps.items()}
        commit_s = progress.steps.get(_COMMIT) if progress.touched else None
        answered = any(any(counts.acknowledged.values()) for counts in progress.topics.values())
        return replace(
            self,
            topics={**self.topics, **added},
            steps={**self.steps, **times},
            commits=self.commits if commit_s is None else self.commits.plus(commit_s),
            acknowledgements=self.acknowledgements + answered,
            assignments=self.assignments + (progress.share_partitions != self.share_partitions),
            share_partitions=progress.share_partitions,
            busy_s=self.busy_s + sum(progress.steps.values()),
        )
