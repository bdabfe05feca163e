"""The frequent case of a step, in a tenth of the time: all that the engine held was accepted, and new records follow.

    window before    [A1 mine-----]                  one run, or none
    acknowledged     [accept------]                  all of it
    window after                   [A1 mine------]   one run, or none

If thousands of share-partitions are active, each with a few records, nearly all of them are of this case. The general
way through requests, draft and responses takes a hundred microseconds for each. All other cases take that way. The
results are the same: the property tests compare them.
"""

from __future__ import annotations

import numpy as np

from share_spark.engine.ranges import AcquiredRanges
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary, StepResult, step
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import UNCHANGED, DeliveryState, InFlightBatch, ShareUpdate
from share_spark.model.requests import AcknowledgeType
from share_spark.partition import PartitionLimits, SharePartition

_ACQUIRED = DeliveryState.ACQUIRED
_ACCEPT = int(AcknowledgeType.ACCEPT)
_NONE_ACQUIRED = AcquiredRanges(np.empty((0, 3), np.int64))


def unaudited_step(
    key: SharePartitionKey,
    state: SharePartition | None,
    partition_input: PartitionInput,
    *,
    limits: PartitionLimits,
    member_id: str,
    now_ms: int,
) -> StepResult:
    """Do as ``step``; the result may be without the answers."""
    if state is not None and _is_plain(partition_input):
        result = _plain_step(key, state, partition_input, limits, member_id, now_ms)
        if result is not None:
            return result
    return step(key, state, partition_input, limits=limits, member_id=member_id, now_ms=now_ms)


def _is_plain(asked: PartitionInput) -> bool:
    """Return whether the input has only acknowledgements and an acquisition."""
    return not (
        asked.release_member
        or asked.suspects
        or asked.ordered
        or asked.truncated_to is not None
        or asked.initial_offset is not None
        or asked.acknowledged_by is not None
        or len(asked.acknowledged) > 1
        or asked.asked
    )


def _plain_step(
    key: SharePartitionKey,
    state: SharePartition,
    asked: PartitionInput,
    limits: PartitionLimits,
    member_id: str,
    now_ms: int,
) -> StepResult | None:
    """Return the result, None if it is another case."""
    finished_to = _finished_to(state, asked, member_id)
    if finished_to is None:
        return None
    start = max(finished_to, asked.log_start_offset)
    deadline_ms = now_ms + limits.lock_duration_ms
    # As in ``acquire_request``: beyond the window as it was before this step if the log does not reach further.
    last = max(state.end_offset, asked.end_offset) - 1
    last = min(last, start + limits.max_record_locks - 1, start + asked.max_records - 1)
    runs = (InFlightBatch(start, last, _ACQUIRED, 1, member_id, deadline_ms),) if last >= start else ()
    if not runs and start == state.start_offset:
        return None
    record = ShareUpdate(
        key=state.key,
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=start if start != state.start_offset else UNCHANGED,
        batches=runs,
    )
    after = SharePartition(
        key=state.key,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        snapshot_epoch=state.snapshot_epoch,
        start_offset=start,
        in_flight=runs,
    )
    accepted = finished_to - state.in_flight[0].first_offset if state.in_flight else 0
    return StepResult(after, record, _outcome(key, asked.topic, start, runs, accepted), ())


def _finished_to(state: SharePartition, asked: PartitionInput, member_id: str) -> int | None:
    """Return the end (exclusive) of the window if these acknowledgements finish all of it, else None."""
    runs = state.in_flight
    if len(runs) != len(asked.acknowledged) or state.start_offset < 0:
        return None
    if not runs:
        return state.start_offset
    run = runs[0]
    if run.member_id != member_id or run.first_offset < state.start_offset:
        return None
    is_whole = asked.acknowledged[0] == (run.first_offset, run.last_offset, _ACCEPT)
    return run.last_offset + 1 if is_whole else None


def _outcome(
    key: SharePartitionKey, topic: str, start: int, runs: tuple[InFlightBatch, ...], accepted: int
) -> PartitionOutcome:
    """Return the outcome of a step after which ``runs``, at most one, are the whole window. Fields are given by
    position: by name it takes twice as long."""
    if not runs:
        summary = PartitionSummary(topic, start, start, 0, None)
        return PartitionOutcome(key, summary, True, _NONE_ACQUIRED, (), accepted, 0, 0, 0, ErrorCode.NONE)
    first, last, _, count, *_ = runs[0]
    by_state = (0, last - first + 1, 0, 0)
    summary = PartitionSummary(topic, start, last + 1, 0, None, None, (0, 0, 0), by_state)
    acquired = AcquiredRanges(np.array([(first, last, count)], np.int64))
    return PartitionOutcome(key, summary, True, acquired, (), accepted, 0, 0, 0, ErrorCode.NONE)
