"""One share-partition in one micro-batch, as the state store keeps it: its step, its snapshot where a segment begins,
and what the log shall say. Pure; called where the state is (``buckets``: on the executors, ``driver_states``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from share_spark.engine.attempts import Answered, EndedAttempt, ended_attempts
from share_spark.engine.plain_step import unaudited_step
from share_spark.engine.step import PartitionInput, PartitionOutcome, step
from share_spark.engine.step import with_snapshot as snapshot_of
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import ShareRecord
from share_spark.partition import PartitionLimits, SharePartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """What a micro-batch is for all share-partitions of a group. ``snapshot_all``: a segment begins, so every live
    share-partition writes a snapshot, idle ones included. ``audit``: rows say which attempts ended, and how."""

    group_id: str
    limits: PartitionLimits
    member_id: str
    now_ms: int
    snapshot_all: bool
    audit: bool = False


class Advanced(NamedTuple):
    """A share-partition after a micro-batch. ``record``: to be appended, None if nothing has changed. ``outcome``: None
    if it had no input. ``ended``: for the audit."""

    topic: str
    state: SharePartition
    record: ShareRecord | None
    outcome: PartitionOutcome | None
    ended: tuple[EndedAttempt, ...]


def advanced(topic: str, state: SharePartition, partition_input: PartitionInput | None, terms: StepTerms) -> Advanced:
    """One that has a state already."""
    outcome: PartitionOutcome | None = None
    record: ShareRecord | None = None
    answered: Answered = ()
    if partition_input is not None:
        # Only the audit asks how attempts have ended.
        once = step if terms.audit else unaudited_step
        state, record, outcome, answered = once(
            state.key, state, partition_input, limits=terms.limits, member_id=terms.member_id, now_ms=terms.now_ms
        )
    if terms.snapshot_all:
        state, record = snapshot_of(state)
    errors = partition_input.errors if partition_input is not None else ()
    return Advanced(topic, state, record, outcome, tuple(ended_attempts(answered, errors)) if terms.audit else ())


def begun(key: SharePartitionKey, partition_input: PartitionInput, terms: StepTerms) -> Advanced:
    """One that is seen for the first time."""
    state, record, outcome, _ = step(
        key, None, partition_input, limits=terms.limits, member_id=terms.member_id, now_ms=terms.now_ms
    )
    return Advanced(partition_input.topic, state, record, outcome, ())
