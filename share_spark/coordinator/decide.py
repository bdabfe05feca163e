"""The effect of a request on the durable state of a share-partition: at most one record, and an answer.

The answer may go out only when the record is committed (R99). Which keys exist is known from Initialize and Delete
alone; whether a topic exists is not checked here.

Where the released Kafka (4.2) answers otherwise: it calls Read and Write of an unknown key INVALID_REQUEST and its
summary no error at all (here UNKNOWN_TOPIC_OR_PARTITION, R93, O10), takes any state epoch above the known one (here
only Initialize may raise it, R95, O50), fences no Write with epoch -1 (here -1 is lower than what is known, R94, R95: a
writer that names no epoch could not be fenced at all), and does not check state batches.

Source: KIP-932, R91-R103.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from share_spark.coordinator.combine import combine_batches, settled_start
from share_spark.coordinator.evolve import evolve
from share_spark.coordinator.fault import Fault
from share_spark.coordinator.messages import (
    NOT_GIVEN,
    DeleteState,
    InitializeState,
    ReadState,
    ReadStateSummary,
    ShareState,
    StateRecord,
    StateRequest,
    StateResult,
    StateSnapshot,
    StateTombstone,
    StateUpdate,
    WriteState,
    next_snapshot_epoch,
)
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, StateBatch

UPDATES_PER_SNAPSHOT = 500
"""``share.coordinator.snapshot.update.records.per.snapshot`` by default (R77); 0: every write is a snapshot (R78)."""

ZERO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"
"""A null topic id as the wire protocol has it."""

_DURABLE_STATES = frozenset({DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED})


class CoordinatorDecision(NamedTuple):
    """A result, and the record to commit before it goes out; None if nothing has to be written."""

    record: StateRecord | None
    result: StateResult


def decide(
    key: SharePartitionKey,
    state: ShareState | None,
    request: StateRequest,
    updates_per_snapshot: int = UPDATES_PER_SNAPSHOT,
) -> CoordinatorDecision:
    """Return the record and the answer of one entry; ``state`` None: the key is unknown."""
    fault = malformed(request) or _fenced(key, state, request)
    if fault is not None:
        return refusal(request, fault)
    if isinstance(request, InitializeState):
        return CoordinatorDecision(_initial_snapshot(key, state, request), _done(request))
    if isinstance(request, DeleteState):
        return CoordinatorDecision(StateTombstone(key=key) if state else None, _done(request))
    assert state is not None, "_fenced refuses the rest"
    if isinstance(request, ReadStateSummary):
        return CoordinatorDecision(None, _summary_of(state, request))
    if isinstance(request, ReadState):
        return CoordinatorDecision(_raised_leader_epoch(state, request, updates_per_snapshot), _all_of(state, request))
    return CoordinatorDecision(_written(state, request, updates_per_snapshot), _done(request))


def refusal(request: StateRequest, fault: Fault) -> CoordinatorDecision:
    """Answer with an error, and write nothing."""
    return CoordinatorDecision(None, replace(_done(request), error=fault.code, message=fault.message))


def fresh_snapshot(state: ShareState) -> StateSnapshot:
    """Write all of ``state`` again, with the next snapshot epoch (R75), as an idle key must not block pruning (R89)."""
    return StateSnapshot(
        key=state.key,
        snapshot_epoch=next_snapshot_epoch(state.snapshot_epoch),
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        state_batches=state.state_batches,
    )


# ------------------------------------------------------------------------------------------------ checks


def malformed(request: StateRequest) -> Fault | None:
    """Return INVALID_REQUEST for what is wrong whatever the state is (R96); it comes before all other checks."""
    if not request.topic_id or request.topic_id == ZERO_UUID:
        return _invalid("the topic id is missing")
    if request.partition < 0:
        return _invalid(f"partition {request.partition} is negative")
    if isinstance(request, InitializeState) and request.state_epoch < 0:
        return _invalid(f"state epoch {request.state_epoch} is negative")
    if min(_numbers_given(request), default=0) < NOT_GIVEN:
        return _invalid("an epoch or the start offset is below -1")
    if isinstance(request, WriteState):
        return next((_invalid(f"state batch {tuple(batch)}") for batch in request.state_batches if _bad(batch)), None)
    return None


def _numbers_given(request: StateRequest) -> list[int]:
    names = ("state_epoch", "leader_epoch", "start_offset")
    return [getattr(request, name) for name in names if hasattr(request, name)]


def _bad(batch: StateBatch) -> bool:
    """Return whether a batch is empty, before the log, in a state that is never durable (R8), or has a bad count."""
    first, last, state, count = batch
    return first < 0 or last < first or state not in _DURABLE_STATES or count < 0


def _fenced(key: SharePartitionKey, state: ShareState | None, request: StateRequest) -> Fault | None:
    """Check that the key is known, then the leader epoch, then the state epoch (R93-R96). Delete has none (O11)."""
    if isinstance(request, DeleteState):
        return None
    if isinstance(request, InitializeState):
        return _older_state(request.state_epoch, state) if state else None
    if state is None:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{key} is not initialized")
    # A reader without an epoch is not a leader: the group coordinator lists offsets in this way.
    named = isinstance(request, WriteState) or request.leader_epoch != NOT_GIVEN
    if named and request.leader_epoch < state.leader_epoch:
        return Fault(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {request.leader_epoch}, known {state.leader_epoch}")
    if not isinstance(request, WriteState):
        return None
    if request.state_epoch > state.state_epoch:
        return _other_state(request.state_epoch, state)
    return _older_state(request.state_epoch, state)


def _older_state(state_epoch: int, state: ShareState) -> Fault | None:
    return _other_state(state_epoch, state) if state_epoch < state.state_epoch else None


def _other_state(state_epoch: int, state: ShareState) -> Fault:
    return Fault(ErrorCode.FENCED_STATE_EPOCH, f"state epoch {state_epoch}, known {state.state_epoch}")


def _invalid(message: str) -> Fault:
    return Fault(ErrorCode.INVALID_REQUEST, message)


# ----------------------------------------------------------------------------------------------- records


def _initial_snapshot(key: SharePartitionKey, state: ShareState | None, request: InitializeState) -> StateSnapshot:
    """Begin a state anew (R101). The leader epoch is kept: a reset does not make an older leader valid again."""
    return StateSnapshot(
        key=key,
        snapshot_epoch=next_snapshot_epoch(state.snapshot_epoch) if state else 0,
        state_epoch=request.state_epoch,
        leader_epoch=state.leader_epoch if state else 0,
        start_offset=request.start_offset,
        state_batches=(),
    )


def _raised_leader_epoch(state: ShareState, request: ReadState, updates_per_snapshot: int) -> StateRecord | None:
    """Write the epoch of a new leader, which begins with Read, as Kafka 4.2 does.

    Kept in memory only (R102), it would be forgotten with the coordinator, and the old leader could write again (R94).
    """
    taken_over = WriteState(
        topic_id=request.topic_id,
        partition=request.partition,
        state_epoch=state.state_epoch,
        leader_epoch=request.leader_epoch,
    )
    return _written(state, taken_over, updates_per_snapshot)


def _written(state: ShareState, request: WriteState, updates_per_snapshot: int) -> StateRecord | None:
    """Write an update, or a snapshot where one is due or is not larger (R77); None if all is durable already (R87)."""
    update = StateUpdate(
        key=state.key,
        snapshot_epoch=state.snapshot_epoch,
        leader_epoch=request.leader_epoch,
        start_offset=request.start_offset,
        state_batches=combine_batches((), request.state_batches, max(state.start_offset, request.start_offset)),
    )
    after = evolve(state, update)
    assert after is not None, "an update deletes nothing"
    if after == state:  # a repeated write: ``ShareState`` compares without the number of updates
        return None
    # Then a snapshot is as small as the update, and replay needs nothing before it.
    nothing_in_flight = after.start_offset > state.start_offset and not after.state_batches
    due = state.updates >= updates_per_snapshot
    return fresh_snapshot(after) if due or nothing_in_flight else update


# ----------------------------------------------------------------------------------------------- answers


def _done(request: StateRequest) -> StateResult:
    return StateResult(topic_id=request.topic_id, partition=request.partition)


def _summary_of(state: ShareState, request: ReadStateSummary) -> StateResult:
    return replace(
        _done(request),
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=settled_start(state.start_offset, state.state_batches),
    )


def _all_of(state: ShareState, request: ReadState) -> StateResult:
    return replace(
        _done(request),
        state_epoch=state.state_epoch,
        start_offset=state.start_offset,
        state_batches=state.state_batches,
    )
