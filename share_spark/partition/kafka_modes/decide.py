"""Requests in; out come a record of the core, the answers, and what is to be remembered once the record is durable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from share_spark.model.ids import OffsetRange
from share_spark.model.requests import Acquire, PartitionResponse
from share_spark.partition.acquire import acquire
from share_spark.partition.decide import HANDLERS as CORE_HANDLERS
from share_spark.partition.decide import PartitionDecision
from share_spark.partition.evolve import evolve as core_evolve
from share_spark.partition.kafka_modes.acknowledge import acknowledge_or_renew
from share_spark.partition.kafka_modes.acquire_batches import acquire_batches
from share_spark.partition.kafka_modes.acquire_read_ahead import acquire_read_ahead
from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.requests import (
    AcknowledgeOrRenew,
    AcquireBatches,
    AcquireReadAhead,
    KafkaRequest,
)
from share_spark.partition.kafka_modes.state import FetchedBatch, KafkaLimits, KafkaPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaDecision(PartitionDecision):
    """The decision of the core, and what is remembered after it, as in ``KafkaPartition``."""

    fetched: tuple[FetchedBatch, ...]
    read_gap: OffsetRange | None


def _acquire_offsets(draft: KafkaDraft, request: Acquire, limits: KafkaLimits, now_ms: int) -> PartitionResponse:
    """Acquire for a handler, by offsets: the core knows no read gap."""
    draft.close_read_gap()
    return acquire(draft, request, limits, now_ms)


HANDLERS: Mapping[type, Any] = {
    **CORE_HANDLERS,
    Acquire: _acquire_offsets,
    AcquireBatches: acquire_batches,
    AcquireReadAhead: acquire_read_ahead,
    AcknowledgeOrRenew: acknowledge_or_renew,
}


def decide(
    partition: KafkaPartition, requests: Sequence[KafkaRequest], limits: KafkaLimits, now_ms: int
) -> KafkaDecision:
    """Apply ``requests`` in order, as at ``now_ms`` (milliseconds since the epoch)."""
    draft = KafkaDraft(partition, now_ms)
    responses = tuple(HANDLERS[type(request)](draft, request, limits, now_ms) for request in requests)
    return KafkaDecision(
        record=draft.record(), responses=responses, fetched=tuple(draft.fetched), read_gap=draft.read_gap
    )


def evolve(partition: KafkaPartition, decision: KafkaDecision) -> KafkaPartition:
    """Return what ``partition`` is once the record of ``decision`` is durable."""
    record = decision.record
    state = partition.state if record is None else core_evolve(partition.state, record)
    return KafkaPartition(state=state, fetched=decision.fetched, read_gap=decision.read_gap)
