"""What an engine carries from one micro-batch into the next: acknowledgements that are not committed yet, and an append
whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from share_spark.engine.answers import cut_by_error, is_inside
from share_spark.engine.ports import AcknowledgedSpans, DeadLetter
from share_spark.engine.ranges import AcknowledgedRanges
from share_spark.engine.step import PartitionOutcome
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition
from share_spark.model.requests import ArchivedRange, ArchiveReason

ENGINE_LOST = "the engine died while its handler had this record"
"""Error of a record whose last attempt, alone, ended with the engine."""

_DEAD_LETTER_REASONS = (ArchiveReason.REJECTED, ArchiveReason.DELIVERY_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAcknowledgements:
    """Acknowledgements that were decided in one micro-batch, and that the next one commits.

    ``member_id``: whose they are, if not the engine's own (``PartitionInput.acknowledged_by``).
    """

    spans: AcknowledgedSpans
    member_id: str | None = None

    def __bool__(self) -> bool:
        return bool(self.spans)

    @property
    def ranges(self) -> Mapping[SharePartitionKey, AcknowledgedRanges]:
        """As an input of the next micro-batch."""
        return {key: span.ranges for key, span in self.spans.items()}

    def dead_letters(self, outcome: PartitionOutcome) -> list[DeadLetter]:
        """Of what the commit of these acknowledgements archives in one share-partition, with the handler's errors."""
        partition = TopicPartition(outcome.summary.topic, outcome.key.partition)
        return [
            DeadLetter(partition, first, last, run.delivery_count, run.reason.value, error)
            for run in outcome.archived
            if run.reason in _DEAD_LETTER_REASONS
            for first, last, error in self._errors_of(outcome.key, run)
        ]

    def _errors_of(self, key: SharePartitionKey, run: ArchivedRange) -> list[tuple[int, int, str | None]]:
        span = self.spans.get(key)
        if span is None or not is_inside(span.ranges, run.first_offset):
            return [(run.first_offset, run.last_offset, ENGINE_LOST)]
        return cut_by_error(run.first_offset, run.last_offset, span.errors)


NOTHING_PENDING = PendingAcknowledgements(spans={})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedAppend:
    """An append that failed, and may have happened. ``happened``: what the log said, None if it has not been asked."""

    stamp: BatchStamp
    happened: bool | None = None
