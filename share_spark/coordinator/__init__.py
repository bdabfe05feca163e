"""The share coordinator, pure: what durable state of share-partitions means and how writes to it combine.

Initialize, Read, Write, Delete and ReadSummary of KIP-932. ``decide(key, state, request)`` answers for one
share-partition with at most one record, ``evolve(state, record)`` is the only function that makes a new state, live and
in recovery; ``answer`` and ``evolved`` are the same for a ``CoordinatorShard``, all keys of one state partition.

The state is the KIP's: no member, no lock, a running attempt never counts (R8). So a write is never refused for the
state that it gives an offset: the stronger of two wins (R81), and only Initialize with a new state epoch resets (R84).

Members and their assignments are in ``group``, share sessions in ``sessions``: each is a value of its own, with a
docstring that says how it works.

Not imported here: pyspark, os, time, random, threading, socket, logging, and the package ``partition``.
"""

from share_spark.coordinator.combine import combine_batches, normal_form
from share_spark.coordinator.decide import UPDATES_PER_SNAPSHOT, CoordinatorDecision, decide, fresh_snapshot
from share_spark.coordinator.evolve import evolve, replay
from share_spark.coordinator.shard import (
    STATE_PARTITIONS,
    Answer,
    CoordinatorShard,
    answer,
    evolved,
    state_partition_of,
)

__all__ = [
    "STATE_PARTITIONS",
    "UPDATES_PER_SNAPSHOT",
    "Answer",
    "CoordinatorDecision",
    "CoordinatorShard",
    "answer",
    "combine_batches",
    "decide",
    "evolve",
    "evolved",
    "fresh_snapshot",
    "normal_form",
    "replay",
    "state_partition_of",
]
