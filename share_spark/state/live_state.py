"""The live state of a group: a value on the driver. A micro-batch makes the next one from it, and the records for the
log. Pure.

Delivery goes to the executors, the decision does not: for one share-partition it takes some twenty microseconds, and
half a microsecond for each of many ranges; a Spark job takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from share_spark.coordinator.group import GroupRecord, ShareGroup, replay, snapshot
from share_spark.engine.attempts import Answered, EndedAttempt, ended_attempts
from share_spark.engine.plain_step import unaudited_step
from share_spark.engine.step import PartitionInput, PartitionOutcome, PartitionSummary, front_of, step
from share_spark.engine.step import with_snapshot as snapshot_of
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import InFlightBatch, ShareRecord
from share_spark.partition import PartitionLimits, SharePartition, held_by
from share_spark.spark.python_worker import cycles_ignored
from share_spark.state.log_rows import group_row, group_row_values
from share_spark.state.record_rows import record_array
from share_spark.state.row_values import share_values

_MOST_NOTED = 300
"""The most share-partitions, ranges and ended attempts in the note of a commit: some 30 KB."""

PartitionStates = Mapping[SharePartitionKey, tuple[str, SharePartition]]
"""(topic name, state) by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """The terms of a micro-batch, the same for all share-partitions of a group. ``snapshot_all``: a segment begins, so
    every live share-partition writes a snapshot, idle ones included. ``audit``: rows have the ended attempts."""

    group_id: str
    limits: PartitionLimits
    member_id: str
    now_ms: int
    snapshot_all: bool
    audit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The states of all share-partitions after the micro-batch ``batch_id``, which was decided at ``at_ms``; -1 and 0
    if the engine has decided none yet. ``group``: its members and epochs; None: it never had a member."""

    states: PartitionStates = field(default_factory=dict)
    group: ShareGroup | None = None
    writer_epoch: int = 0
    batch_id: int = -1
    at_ms: int = 0

    def summaries(self, member_id: str) -> dict[SharePartitionKey, PartitionSummary]:
        """Return the summaries, by which the engine of this member plans."""
        return {key: front_of(topic, state, member_id) for key, (topic, state) in self.states.items()}

    def topics(self) -> set[tuple[str, str]]:
        """Return (topic name, topic id) of every topic."""
        return {(topic, key.topic_id) for key, (topic, _) in self.states.items()}

    def held_by(self, member_id: str) -> dict[SharePartitionKey, Sequence[InFlightBatch]]:
        """Return the ranges that this member holds, by share-partition."""
        found = ((key, held_by(state, member_id)) for key, (_, state) in self.states.items())
        return {key: runs for key, runs in found if runs}

    def advance(
        self,
        partition_inputs: Mapping[SharePartitionKey, PartitionInput],
        terms: StepTerms,
        group_records: Sequence[GroupRecord] = (),
    ) -> Advance:
        """Decide one micro-batch; the value here stays as it is. ``group_records``: what else was decided in it."""
        with cycles_ignored():
            known = self.states if terms.snapshot_all else (key for key in partition_inputs if key in self.states)
            old = [_stepped(*self.states[key], partition_inputs.get(key), terms) for key in known]
            new = [_begun(key, wanted, terms) for key, wanted in partition_inputs.items() if key not in self.states]
        changed = [*old, *new]
        states = {**self.states, **{one.state.key: (one.topic, one.state) for one in changed}}
        group = replay(group_records, self.group)
        if terms.snapshot_all and group is not None:
            group_records = snapshot(group)
        return Advance(
            live=replace(self, states=states, group=group),
            changed=changed,
            group_records=group_records,
            is_snapshot=terms.snapshot_all,
        )


class SteppedPartition(NamedTuple):
    """A share-partition after a micro-batch. ``record``: for the log, None if nothing has changed. ``outcome``: None if
    it had no input. ``ended``: for the audit."""

    topic: str
    state: SharePartition
    record: ShareRecord | None
    outcome: PartitionOutcome | None
    ended: tuple[EndedAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The result of a micro-batch: the next live state, and the share-partitions that it has changed.
    ``group_records``: those for the log; ``is_snapshot``: a segment begins with this."""

    live: LiveState
    changed: Sequence[SteppedPartition]
    group_records: Sequence[GroupRecord] = ()
    is_snapshot: bool = False

    @property
    def outcomes(self) -> list[PartitionOutcome]:
        """The outcomes of the share-partitions that had an input."""
        return [one.outcome for one in self.changed if one.outcome is not None]

    @property
    def ranges(self) -> int:
        """The number of ranges in the records."""
        return sum(len(one.record.batches) for one in self.changed if one.record is not None)

    def records(self) -> pa.StructArray:
        """Return the records for the log (RECORD_TYPE)."""
        written = [one for one in self.changed if one.record is not None]
        pairs = [(one.topic, one.record) for one in written if one.record is not None]
        return rows_of(pairs, self.group_records, [one.ended for one in written], is_snapshot=self.is_snapshot)

    @property
    def fits_into_note(self) -> bool:
        """Whether the records are few, and no segment begins with them: that is always a file."""
        ended = sum(len(one.ended) for one in self.changed)
        return not self.is_snapshot and len(self.changed) + self.ranges + ended <= _MOST_NOTED

    def values(self) -> list[dict[str, Any]]:
        """Return the records as values, for the note of a commit."""
        found = [share_values(one.topic, one.record, one.ended) for one in self.changed if one.record is not None]
        return [*found, *([group_row_values(self.group_records, is_snapshot=False)] if self.group_records else [])]


def rows_of(
    records: Sequence[tuple[str, ShareRecord]],
    group_records: Sequence[GroupRecord],
    ended: Sequence[Sequence[EndedAttempt]] | None = None,
    *,
    is_snapshot: bool,
) -> pa.StructArray:
    """Return the rows (RECORD_TYPE) of one commit; it has some records, of share-partitions or of the group. ``ended``
    as in ``record_array``."""
    of_group = [group_row(group_records, is_snapshot=is_snapshot)] if group_records else []
    if not records and of_group:
        return of_group[0]
    found: pa.StructArray = pa.concat_arrays([record_array(records, ended), *of_group])
    return found


def _stepped(
    topic: str, state: SharePartition, partition_input: PartitionInput | None, terms: StepTerms
) -> SteppedPartition:
    """Advance a share-partition that has a state already."""
    outcome: PartitionOutcome | None = None
    record: ShareRecord | None = None
    answered: Answered = ()
    if partition_input is not None:
        # Only the audit needs the ended attempts.
        once = step if terms.audit else unaudited_step
        state, record, outcome, answered = once(
            state.key, state, partition_input, limits=terms.limits, member_id=terms.member_id, now_ms=terms.now_ms
        )
    if terms.snapshot_all:
        state, record = snapshot_of(state)
    errors = partition_input.errors if partition_input is not None else ()
    ended = tuple(ended_attempts(answered, errors)) if terms.audit else ()
    return SteppedPartition(topic, state, record, outcome, ended)


def _begun(key: SharePartitionKey, partition_input: PartitionInput, terms: StepTerms) -> SteppedPartition:
    """Begin a new share-partition."""
    state, record, outcome, _ = step(
        key, None, partition_input, limits=terms.limits, member_id=terms.member_id, now_ms=terms.now_ms
    )
    return SteppedPartition(partition_input.topic, state, record, outcome, ())
