"""The share-partition leader, pure: decide what a request does, evolve the state by the record of it.

How it works. The state of a share-partition is a value (``SharePartition``): the SPSO and the in-flight window as runs
of offsets with one state, count, member and deadline each. ``decide(state, requests, limits, now_ms)`` reads it and
answers with one record of what changed; ``evolve(state, record)`` is the only function that makes a new state, for live
traffic and for recovery alike. So nothing is ever rolled back: a record that was not committed has changed nothing.

Three rules hold in this package.

* Cost follows runs of offsets, never records: every step is one sweep over sorted runs. Many runs are arrays
  (``columns``): then a rule is asked once for each kind of run, and the sweep is NumPy's.
* Which transitions are legal is data (``transitions``); a missing entry is the error (R4).
* Time is an argument (``now_ms``), and the next moment of interest a result (``next_deadline_ms``).

What only a client of Kafka sees (log batches, what was fetched together, renewed locks) is in ``kafka_modes``.

Not imported here: pyspark, os, time, random, threading, socket, logging, and the package ``coordinator``.
"""

from share_spark.partition.decide import PartitionDecision, decide
from share_spark.partition.evolve import evolve, restore, take_snapshot
from share_spark.partition.kip import from_kip, kip_batches
from share_spark.partition.order import unfinished_before
from share_spark.partition.state import (
    PartitionLimits,
    SharePartition,
    check_invariants,
    deadlines_ms,
    held_by,
    highest_delivery_count,
    next_deadline_ms,
    offsets_by_state,
    waiting,
)

__all__ = [
    "PartitionDecision",
    "PartitionLimits",
    "SharePartition",
    "check_invariants",
    "deadlines_ms",
    "decide",
    "evolve",
    "from_kip",
    "held_by",
    "highest_delivery_count",
    "kip_batches",
    "next_deadline_ms",
    "offsets_by_state",
    "restore",
    "take_snapshot",
    "unfinished_before",
    "waiting",
]
