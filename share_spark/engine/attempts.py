"""How attempts ended in one step of a share-partition, for the audit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import (
    ArchivedRange,
    ExpireLocks,
    LoseAttempts,
    PartitionRequest,
    PartitionResponse,
    TruncateLog,
)


class EndedAttempt(NamedTuple):
    """How the attempt of a run of offsets ended, for the audit: ``accepted``, ``released``, ``lost`` (in a crash),
    ``not entered`` (the handler never had it, so the count is taken back), ``truncated`` (the log ends below it now),
    or why it was archived."""

    first_offset: int
    last_offset: int
    delivery_count: int
    outcome: str


Answered = tuple[tuple[PartitionRequest, PartitionResponse], ...]
"""The requests of a step to the share-partition, and the answers."""


def ended_attempts(answered: Answered) -> list[EndedAttempt]:
    """All that ended, in the order in which it was decided."""
    return [
        found
        for request, response in answered
        for archived in [tuple(response.archived)]
        for found in (
            *(EndedAttempt(*taken, "not entered") for taken in response.not_entered),
            *(_ended(request, run, archived) for run in _entered(response)),
        )
    ]


def _entered(response: PartitionResponse) -> Iterator[InFlightBatch]:
    taken_back = {taken.first_offset for taken in response.not_entered}
    return (run for run in response.ended if run.first_offset not in taken_back)


def _ended(request: PartitionRequest, run: InFlightBatch, archived: Sequence[ArchivedRange]) -> EndedAttempt:
    text = _outcome_text(request, run, archived)
    return EndedAttempt(run.first_offset, run.last_offset, run.delivery_count, text)


def _outcome_text(request: PartitionRequest, run: InFlightBatch, archived: Sequence[ArchivedRange]) -> str:
    if isinstance(request, TruncateLog):
        return "truncated"
    if run.delivery_state is DeliveryState.ACKNOWLEDGED:
        return "accepted"
    if run.delivery_state is DeliveryState.AVAILABLE:
        return "lost" if isinstance(request, ExpireLocks | LoseAttempts) else "released"
    at = bisect_right(archived, run.first_offset, key=lambda found: found.first_offset)
    return archived[at - 1].reason.value
