"""The requests of clients in one step of a share-partition, and the responses to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from share_spark.model.ids import is_client
from share_spark.model.requests import ExpireLocks, PartitionRequest, PartitionResponse
from share_spark.partition import PartitionDecision, PartitionLimits, SharePartition, decide, kafka_modes
from share_spark.partition.kafka_modes import KafkaLimits, KafkaPartition, KafkaRequest
from share_spark.partition.runs import samples


class Responses(NamedTuple):
    """The responses of a step: ``own``, to the engine's requests; ``to_clients``, to those that are made for clients
    and by them."""

    own: tuple[PartitionResponse, ...]
    to_clients: tuple[PartitionResponse, ...]

    @classmethod
    def of(cls, responses: tuple[PartitionResponse, ...], first: int, clients: int) -> Responses:
        """Part the responses: those to so many ``clients`` requests begin at ``first``."""
        return cls(responses[:first] + responses[first + clients :], responses[first : first + clients])


def client_requests(state: SharePartition, asked: Sequence[KafkaRequest], member_id: str) -> tuple[KafkaRequest, ...]:
    """Return the end of the locks of clients, if there are some, and what clients ask. ``member_id``: of the engine."""
    are_clients = (run.member_id is not None and is_client(run.member_id) for run in samples(state.in_flight))
    return (*([ExpireLocks(kept_by=member_id)] if any(are_clients) else ()), *asked)


def decided(
    state: SharePartition, requests: Sequence[KafkaRequest], limits: PartitionLimits, now_ms: int, *, has_clients: bool
) -> PartitionDecision:
    """Decide in the core, or where clients ask as they see it. What was fetched together is not remembered from one
    micro-batch to the next: the window counts as one batch that is tracked by offset."""
    if not has_clients:
        return decide(state, cast("Sequence[PartitionRequest]", requests), limits, now_ms)
    return kafka_modes.decide(KafkaPartition(state=state), requests, KafkaLimits.beside(limits), now_ms)
