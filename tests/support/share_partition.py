"""A share-partition under test: it owns the clock, applies what was decided, and checks the invariants every time."""

from __future__ import annotations

from share_spark.model.errors import ErrorCode
from share_spark.model.ids import OffsetRange, SharePartitionKey
from share_spark.model.records import DeliveryState, Doubt, ShareRecord
from share_spark.model.requests import (
    Acknowledge,
    Acquire,
    AnsweredRange,
    ExpireLocks,
    Initialize,
    MoveLogStart,
    PartitionRequest,
    PartitionResponse,
    ReleaseMember,
    RetryDelay,
    Trace,
    TruncateLog,
)
from share_spark.partition import (
    PartitionLimits,
    SharePartition,
    check_invariants,
    decide,
    evolve,
    take_snapshot,
)
from share_spark.partition.kafka_modes import KafkaPartition

KEY = SharePartitionKey("g", "t", 0)
LETTERS = {"AVAILABLE": "V", "ACQUIRED": "Q", "ACKNOWLEDGED": "D", "ARCHIVED": "X"}

ACCEPT, RELEASE, REJECT, GAP = 1, 2, 3, 0


class Partition:
    """State, limits, clock, and the log of records."""

    def __init__(self, start: int | None = 0, limits: PartitionLimits | None = None) -> None:
        self.limits = limits or PartitionLimits()
        self.now_ms = 0
        self.state = SharePartition(key=KEY)
        snapshot = take_snapshot(self.state)
        self.log: list[ShareRecord] = [snapshot]
        self.state = evolve(None, snapshot)
        self.record: ShareRecord | None = None
        if start is not None:
            self.ask(Initialize(start_offset=start))

    def ask(self, *requests: PartitionRequest) -> PartitionResponse:
        """The answer to the last of ``requests``, decided together."""
        decision = decide(self.state, requests, self.limits, self.now_ms)
        self.record = decision.record
        if decision.record is not None:
            self.state = evolve(self.state, decision.record)
            self.log.append(decision.record)
        check_invariants(self.state)
        return decision.responses[-1]

    def fetch(
        self,
        member: str,
        readable: tuple[int, int] = (0, -1),
        *,
        most: int = 10**6,
        searched: Doubt = Doubt.NONE,
    ) -> list[tuple[int, int, int]]:
        """What ``member`` acquires of the offsets ``readable``."""
        request = Acquire(member_id=member, max_records=most, readable=OffsetRange(*readable), searched=searched)
        return [tuple(found) for found in self.ask(request).acquired]

    def ack(self, member: str, *batches: tuple[int, int, int], delays: tuple[RetryDelay, ...] = ()) -> ErrorCode:
        """The error of acknowledging (first, last, type)."""
        return self.answer(member, *batches, delays=delays).error

    def answer(
        self, member: str, *batches: tuple[int, int, int], delays: tuple[RetryDelay, ...] = ()
    ) -> PartitionResponse:
        acknowledged = tuple(AnsweredRange(*batch) for batch in batches)
        return self.ask(Acknowledge(member_id=member, batches=acknowledged, delays=delays))

    def release(self, member: str) -> PartitionResponse:
        return self.ask(ReleaseMember(member_id=member))

    def log_start(self, offset: int) -> PartitionResponse:
        return self.ask(MoveLogStart(log_start_offset=offset))

    def truncate(self, end: int) -> PartitionResponse:
        return self.ask(TruncateLog(end_offset=end))

    def fetch_suspects(self, member: str, searched: Doubt, most: int, *, alone: bool = False) -> list[tuple[int, ...]]:
        """Some of those that are searched for the one that brings engines down."""
        request = Acquire(
            member_id=member,
            max_records=most,
            readable=OffsetRange(0, max(0, self.state.end_offset - 1)),
            searched=searched,
            suspects=True,
            alone=alone,
        )
        return [tuple(found) for found in self.ask(request).acquired]

    def advance(self, ms: int, *, lost: bool = False, traces: tuple[Trace, ...] = ()) -> PartitionResponse:
        self.now_ms += ms
        return self.ask(ExpireLocks(lost=lost, traces=traces))

    @property
    def window(self) -> str:
        """``SPSO-SPEO: runs``, as in the worked example of the KIP: ``110-120: 110 V1, 111-119 Q1``."""
        runs = []
        for run in self.state.in_flight:
            first, last = run.first_offset, run.last_offset
            offsets = f"{first}" if first == last else f"{first}-{last}"
            letter = LETTERS[DeliveryState(run.delivery_state).name]
            runs.append(f"{offsets} {letter}{run.delivery_count}")
        return f"{self.state.start_offset}-{self.state.end_offset}: {', '.join(runs)}".strip(": ")

    @property
    def next_fetch_offset(self) -> int:
        return KafkaPartition(state=self.state).next_fetch_offset
