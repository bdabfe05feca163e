"""Requests in, one record and the answers out. Nothing here, or below, changes its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from share_spark.model.records import ShareRecord
from share_spark.model.requests import (
    Acknowledge,
    Acquire,
    ExpireLocks,
    Initialize,
    LoseAttempts,
    MoveLogStart,
    PartitionRequest,
    PartitionResponse,
    ReleaseMember,
    TruncateLog,
)
from share_spark.partition.acknowledge import acknowledge
from share_spark.partition.acquire import acquire
from share_spark.partition.draft import Draft
from share_spark.partition.state import PartitionLimits, SharePartition
from share_spark.partition.unacknowledged import (
    expire_locks,
    lose_attempts,
    move_log_start,
    release_member,
    truncate_log,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDecision:
    """The outcome of requests. ``record``: the sum of all changes, None if there were none; a snapshot if the log was
    truncated (R61, R74). ``responses``: one per request, in order."""

    record: ShareRecord | None
    responses: tuple[PartitionResponse, ...]


def initialize(draft: Draft, request: Initialize, _limits: PartitionLimits, _now_ms: int) -> PartitionResponse:
    """Choose the first SPSO (R26). An SPSO that was chosen before is kept."""
    assert request.start_offset >= 0, request
    if not draft.initialized:
        draft.start = request.start_offset
    return PartitionResponse()


RequestHandler = Callable[[Draft, Any, PartitionLimits, int], PartitionResponse]

HANDLERS: dict[type, RequestHandler] = {
    Initialize: initialize,
    Acknowledge: acknowledge,
    LoseAttempts: lose_attempts,
    ReleaseMember: release_member,
    ExpireLocks: expire_locks,
    MoveLogStart: move_log_start,
    TruncateLog: truncate_log,
    Acquire: acquire,
}


def decide(
    state: SharePartition,
    requests: Sequence[PartitionRequest],
    limits: PartitionLimits,
    now_ms: int,
) -> PartitionDecision:
    """Apply ``requests`` in order, as at ``now_ms`` (milliseconds since the epoch)."""
    draft = Draft(state)
    responses = tuple(HANDLERS[type(request)](draft, request, limits, now_ms) for request in requests)
    return PartitionDecision(record=draft.record(), responses=responses)
