"""Replay one golden scenario against the pure core, and say for each operation what came out and what the state is.

The results are in the golden files' own form, so that comparing is comparing values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from share_spark.model.errors import ErrorCode, StateError
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, InFlightBatch, StateBatch
from share_spark.model.requests import ExpireLocks, MoveLogStart, PartitionResponse, ReleaseMember
from share_spark.partition import SharePartition, next_deadline_ms, restore, take_snapshot
from share_spark.partition.kafka_modes import (
    AcknowledgeOrRenew,
    AcquireBatches,
    AcquireMode,
    KafkaDecision,
    KafkaLimits,
    LogBatch,
    TypedBatch,
    check_invariants,
    decide,
    evolve,
    load_from_kip,
)
from share_spark.partition.kafka_modes.acknowledge import check_request
from share_spark.partition.kafka_modes.decide import HANDLERS
from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.requests import KafkaRequest
from tests.conformance.coordinator import Coordinator, changed_batches

KEY = SharePartitionKey("golden", "topic", 0)
STATE_NAMES = {state: state.name.capitalize() for state in DeliveryState}


class CannotReplayError(Exception):
    """The operation has no counterpart in an engine whose micro-batch commits or does not."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """What one operation gave, in golden form. ``writes``: [start offset, batches] of each write."""

    result: dict[str, Any]
    state: dict[str, Any]
    persisted: dict[str, Any]
    writes: list[list[Any]]


class Replay:
    """One share-partition, its persister and its clock."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.limits = KafkaLimits(
            max_delivery_count=config["max_delivery_count"],
            max_record_locks=config["max_in_flight"],
            lock_duration_ms=config["lock_ms"],
            delivery_throttling=True,
        )
        self.coordinator = Coordinator(config["start_offset"], config.get("persisted_batches", ()))
        self.now_ms = 0
        self.leader_epoch = self.state_epoch = 0
        self.load()

    def load(self) -> None:
        """A new leader takes over what the share coordinator holds."""
        self.partition = load_from_kip(
            key=KEY,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.coordinator.start_offset,
            batches=self.coordinator.batches,
        )

    @property
    def state(self) -> SharePartition:
        return self.partition.state

    def step(self, op: dict[str, Any]) -> ReplayStep:
        """Do one golden operation. Raises CannotReplayError where ours has none such, also for an unknown one."""
        handler = getattr(self, f"_op_{op['op']}", None)
        if handler is None:
            raise CannotReplayError(f"unknown operation {op['op']!r}")
        self.coordinator.writes = []
        result = handler(op)
        check_invariants(self.partition)
        return ReplayStep(result, self.view(), self.persisted(), self.coordinator.writes)

    # Operations. Each returns the golden form of its result.

    def _op_fetch(self, op: dict[str, Any]) -> dict[str, Any]:
        nothing = {"acquired": [], "acquired_count": 0}
        if not self.partition.can_acquire(self.limits):
            return {**nothing, "blocked": "max_in_flight"}
        request = AcquireBatches(
            member_id=op["member"],
            max_records=op["max_records"],
            mode=AcquireMode(op["mode"]),
            log_batches=tuple(log_batches(op)),
            fetch_offset=op["fetch_offset"],
            batch_size=op["batch_size"],
        )
        response = self._commit([request])
        acquired = [list(found) for found in response.acquired]
        return {"acquired": acquired, "acquired_count": sum(len_of(r) for r in acquired)}

    def _op_ack(self, op: dict[str, Any]) -> dict[str, Any]:
        batches = tuple(TypedBatch(first, last, tuple(types)) for first, last, types in op["batches"])
        request = AcknowledgeOrRenew(member_id=op["member"], batches=batches, is_renew_ack=op.get("is_renew_ack", True))
        result = self._durable(request)
        if check_request(request) is not ErrorCode.NONE:
            result["by"] = "request_validation"
        return result

    def _op_release(self, op: dict[str, Any]) -> dict[str, Any]:
        return self._durable(ReleaseMember(member_id=op["member"]))

    def _op_advance(self, op: dict[str, Any]) -> dict[str, Any]:
        """Locks end one deadline after the other; their write may fail, the records are released anyway (R55)."""
        end_ms = self.now_ms + op["ms"]
        while (due_ms := next_deadline_ms(self.state)) is not None and due_ms <= end_ms:
            self.now_ms = due_ms
            self.coordinator.write(self.state.start_offset, self._kafka_write(ExpireLocks()))
            self._commit([ExpireLocks()])
        self.now_ms = end_ms
        return {}

    def _op_log_start(self, op: dict[str, Any]) -> dict[str, Any]:
        self._commit([MoveLogStart(log_start_offset=op["offset"])])
        return {}

    def _op_failover(self, _op: dict[str, Any]) -> dict[str, Any]:
        self.leader_epoch += 1
        return self._reload()

    def _op_alter_offset(self, op: dict[str, Any]) -> dict[str, Any]:
        self.state_epoch += 1
        self.coordinator.initialize(op["offset"])
        return self._reload()

    def _op_persister(self, op: dict[str, Any]) -> dict[str, Any]:
        if op["mode"] == "hold":
            raise CannotReplayError("a write that stays pending (async_persister)")
        self.coordinator.mode = op["mode"]
        return {}

    def _op_complete_write(self, _op: dict[str, Any]) -> dict[str, Any]:
        raise CannotReplayError("a write that stays pending (async_persister)")

    # The engine's part: decide, write, evolve.

    def _reload(self) -> dict[str, Any]:
        self.coordinator.mode = "ok"
        try:
            self.load()
        except StateError:
            return {"error": "UNKNOWN_SERVER_ERROR"}
        return {"error": None}

    def _durable(self, request: KafkaRequest) -> dict[str, Any]:
        """A request whose change must be durable first: if the write fails, the record never happened."""
        decision = self._decide([request])
        error = decision.responses[-1].error
        if error is not ErrorCode.NONE:
            self._evolve(decision)
            return {"error": error.name}
        failed = self.coordinator.write(self.state.start_offset, self._kafka_write(request))
        if failed is not None:
            return {"error": failed}
        self._evolve(decision)
        return {"error": None}

    def _kafka_write(self, request: KafkaRequest) -> list[StateBatch]:
        """What a Kafka leader would write for ``request``.

        A record leaves out what its new SPSO makes obsolete; Kafka's write, sent before the SPSO moves, has it.
        """
        draft = KafkaDraft(self.partition)
        HANDLERS[type(request)](draft, request, self.limits, self.now_ms)
        return changed_batches(self.state.in_flight, draft.changes)

    def _commit(self, requests: Sequence[KafkaRequest]) -> PartitionResponse:
        decision = self._decide(requests)
        self._evolve(decision)
        return decision.responses[-1]

    def _decide(self, requests: Sequence[KafkaRequest]) -> KafkaDecision:
        return decide(self.partition, requests, self.limits, self.now_ms)

    def _evolve(self, decision: KafkaDecision) -> None:
        """Live and recovered must agree at every step, so the replay checks that as well."""
        before = take_snapshot(self.state)
        self.partition = evolve(self.partition, decision)
        if decision.record is not None:
            recovered = restore([before, replace_epoch(decision.record, before.snapshot_epoch)])
            assert recovered is not None
            assert replace_epoch(recovered, self.state.snapshot_epoch) == self.state

    # Views of the state in golden form.

    def view(self) -> dict[str, Any]:
        state = self.state
        fetched = self.partition.fetched
        holds = bool(state.in_flight or fetched)
        end = max(state.end_offset - 1, state.start_offset) if holds else state.start_offset
        return {
            "start_offset": state.start_offset,
            "end_offset": end,
            "next_fetch_offset": self.partition.next_fetch_offset,
            "can_acquire": self.partition.can_acquire(self.limits),
            "delivery_complete_count": delivery_complete_count(state),
            "in_flight": in_flight_view(state, from_start=True),
            "below_start": in_flight_view(state, from_start=False),
            "acquired": acquired_view(state),
            "cached_batches": [[b.first_offset, b.last_offset, int(b.by_offset)] for b in fetched],
        }

    def persisted(self) -> dict[str, Any]:
        held = self.coordinator
        return {"start_offset": held.start_offset, "batches": [list(b) for b in held.batches]}


def replace_epoch(value: Any, snapshot_epoch: int) -> Any:
    return replace(value, snapshot_epoch=snapshot_epoch)


def len_of(found: Sequence[int]) -> int:
    return found[1] - found[0] + 1


def in_flight_view(state: SharePartition, *, from_start: bool) -> list[list[Any]]:
    """[first, last, state, count], maximal runs, on one side of the SPSO."""
    out: list[list[Any]] = []
    for run in state.in_flight:
        first, last = run.first_offset, run.last_offset
        if from_start:
            first = max(first, state.start_offset)
        else:
            last = min(last, state.start_offset - 1)
        if first > last:
            continue
        row = [first, last, STATE_NAMES[run.delivery_state], run.delivery_count]
        if out and out[-1][1] + 1 == first and out[-1][2:] == row[2:]:
            out[-1][1] = last
        else:
            out.append(row)
    return out


def acquired_view(state: SharePartition) -> list[list[Any]]:
    """[first, last, member, deadline], maximal runs."""
    out: list[list[Any]] = []
    for run in state.in_flight:
        if run.delivery_state is not DeliveryState.ACQUIRED:
            continue
        row = [run.first_offset, run.last_offset, run.member_id, run.lock_deadline_ms]
        if out and out[-1][1] + 1 == row[0] and out[-1][2:] == row[2:]:
            out[-1][1] = row[1]
        else:
            out.append(row)
    return out


def delivery_complete_count(state: SharePartition) -> int:
    return sum(_len_from(run, state.start_offset) for run in state.in_flight if run[2].is_final)


def _len_from(run: InFlightBatch, start_offset: int) -> int:
    return max(0, run.last_offset - max(run.first_offset, start_offset) + 1)


def log_batches(op: dict[str, Any]) -> Iterator[LogBatch]:
    """The batches a read returned. Read committed: those of aborted transactions are marked, markers are not."""
    waiting = sorted((first, pid) for pid, first in op.get("aborted", ()))
    aborted: set[int] = set()
    for batch in op["available"]:
        if isinstance(batch, list):
            yield LogBatch(*batch)
            continue
        while waiting and waiting[0][0] <= batch["last"]:
            aborted.add(waiting.pop(0)[1])
        pid, control = batch.get("pid"), batch.get("control")
        if control == "ABORT":
            aborted.discard(pid)
        yield LogBatch(batch["base"], batch["last"], pid in aborted)
