"""The result of ``verify``, as values and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from share_spark.model.ids import SharePartitionKey

_MOST_FAULTS = 20
"""The number of faulty share-partitions that are listed; their total is reported as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """One share-partition: how much of it was replayed, and its first fault (None: no fault)."""

    group_id: str
    topic: str
    topic_id: str
    partition: int
    segments: int
    rows: int
    fault: str | None

    @property
    def key(self) -> SharePartitionKey:
        """The key of its state."""
        return SharePartitionKey(self.group_id, self.topic_id, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The verdicts, one per share-partition, by group, topic and partition."""

    verdicts: tuple[PartitionVerdict, ...]

    @property
    def faulty(self) -> tuple[PartitionVerdict, ...]:
        """The verdicts with a fault."""
        return tuple(verdict for verdict in self.verdicts if verdict.fault is not None)

    @property
    def agrees(self) -> bool:
        """Whether no verdict has a fault."""
        return not self.faulty

    @property
    def rows(self) -> int:
        """The number of log rows replayed."""
        return sum(verdict.rows for verdict in self.verdicts)


def verify_lines(report: VerifyReport) -> Iterator[str]:
    """Yield a table of the groups, then the first faults."""
    if not report.verdicts:
        yield "no share-partition there"
        return
    yield f"{'group':24} {'share-partitions':>16} {'segments':>8} {'rows':>9} {'with a fault':>12}"
    for group_id, found in groupby(report.verdicts, key=lambda verdict: verdict.group_id):
        verdicts = list(found)
        segments, rows = max(verdict.segments for verdict in verdicts), sum(verdict.rows for verdict in verdicts)
        faults = sum(verdict.fault is not None for verdict in verdicts)
        yield f"{group_id:24} {len(verdicts):16,} {segments:8,} {rows:9,} {faults:12,}"
    for verdict in report.faulty[:_MOST_FAULTS]:
        yield f"{verdict.group_id} {verdict.topic}-{verdict.partition}: {verdict.fault}"
    if len(report.faulty) > _MOST_FAULTS:
        yield f"... and {len(report.faulty) - _MOST_FAULTS:,} share-partitions more"
    if report.agrees:
        yield "the log is self-consistent: the live state and what Kafka's share coordinator would hold agree"
