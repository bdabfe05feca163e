"""A share-partition under test, of which clients of Kafka read."""

from __future__ import annotations

from share_spark.model.errors import ErrorCode
from share_spark.model.records import Doubt
from share_spark.model.requests import PartitionResponse, RetryDelay
from share_spark.partition import SharePartition
from share_spark.partition.kafka_modes import (
    AcknowledgeOrRenew,
    AcquireBatches,
    AcquireMode,
    KafkaLimits,
    KafkaPartition,
    LogBatch,
    TypedBatch,
    check_invariants,
    decide,
    evolve,
)
from share_spark.partition.kafka_modes.requests import KafkaRequest
from tests.support.share_partition import Partition

WHOLE = AcquireMode.BATCH_OPTIMIZED


class ClientPartition(Partition):
    """As ``Partition``. ``remembered`` is the state and what the engine remembers beside it."""

    def __init__(self, start: int | None = 0, limits: KafkaLimits | None = None) -> None:
        super().__init__(start, limits or KafkaLimits())

    @property
    def state(self) -> SharePartition:
        return self.remembered.state

    @state.setter
    def state(self, state: SharePartition) -> None:
        """Another state, with nothing remembered."""
        self.remembered = KafkaPartition(state=state)

    def ask(self, *requests: KafkaRequest) -> PartitionResponse:
        decision = decide(self.remembered, requests, self.limits, self.now_ms)
        self.record = decision.record
        self.remembered = evolve(self.remembered, decision)
        if decision.record is not None:
            self.log.append(decision.record)
        check_invariants(self.remembered)
        return decision.responses[-1]

    def fetch(
        self,
        member: str,
        *log: tuple[int, int],
        most: int = 10**6,
        mode: AcquireMode | None = WHOLE,
        batch_size: int = 10**9,
        searched: Doubt = Doubt.NONE,
    ) -> list[tuple[int, int, int]]:
        """What ``member`` acquires of the log batches ``log``; ``mode`` None: as a handler, by offsets."""
        if mode is None:
            readable = (log[0][0], log[-1][1]) if log else (0, -1)
            return super().fetch(member, readable, most=most, searched=searched)
        request = AcquireBatches(
            member_id=member,
            max_records=most,
            mode=mode,
            log_batches=tuple(LogBatch(*batch) for batch in log),
            batch_size=batch_size,
        )
        return [tuple(found) for found in self.ask(request).acquired]

    def ack(
        self,
        member: str,
        *batches: tuple[int, int, int | tuple[int, ...]],
        delays: tuple[RetryDelay, ...] = (),
        renew: bool = True,
    ) -> ErrorCode:
        """The error of acknowledging (first, last, type or types)."""
        return self.answer(member, *batches, delays=delays, renew=renew).error

    def answer(
        self,
        member: str,
        *batches: tuple[int, int, int | tuple[int, ...]],
        delays: tuple[RetryDelay, ...] = (),
        renew: bool = True,
    ) -> PartitionResponse:
        assert not delays, "clients of Kafka cannot ask for them"
        acknowledged = tuple(
            TypedBatch(first, last, types if isinstance(types, tuple) else (types,)) for first, last, types in batches
        )
        return self.ask(AcknowledgeOrRenew(member_id=member, batches=acknowledged, is_renew_ack=renew))

    @property
    def next_fetch_offset(self) -> int:
        return self.remembered.next_fetch_offset
