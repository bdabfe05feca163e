"""A share-partition as clients of Kafka see it: log batches, what one fetch acquired together, renewed locks.

The core (``partition``) knows offsets and runs. A client of Kafka sees more of the leader: whole log batches are
acquired, and what was fetched together is redelivered and checked together. So this package has a state of its own,
``KafkaPartition``: that of the core, which is durable, and what one engine remembers beside it. ``decide`` takes the
requests of clients and those of the core alike, so clients and handlers can share a group. Its records are the core's.

An engine may forget what it remembers: the window then counts as one batch that is tracked by offset. One thing must
not be forgotten, the read gap of a state that was loaded as Kafka does (``load_from_kip``); ``from_kip`` of the core
makes none.
"""

from share_spark.partition.kafka_modes.decide import KafkaDecision, decide, evolve
from share_spark.partition.kafka_modes.load import load_from_kip
from share_spark.partition.kafka_modes.requests import (
    AcknowledgeOrRenew,
    AcquireBatches,
    AcquireMode,
    AcquireReadAhead,
    KafkaRequest,
    LogBatch,
    ReadAhead,
    TypedBatch,
)
from share_spark.partition.kafka_modes.state import FetchedBatch, KafkaLimits, KafkaPartition, check_invariants

__all__ = [
    "AcknowledgeOrRenew",
    "AcquireBatches",
    "AcquireMode",
    "AcquireReadAhead",
    "FetchedBatch",
    "KafkaDecision",
    "KafkaLimits",
    "KafkaPartition",
    "KafkaRequest",
    "LogBatch",
    "ReadAhead",
    "TypedBatch",
    "check_invariants",
    "decide",
    "evolve",
    "load_from_kip",
]
