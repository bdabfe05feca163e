"""Which share-partitions have something to do in a micro-batch, and how much each may take. Pure.

A share-partition is active when it has acknowledgements waiting, new records, redeliveries, a lock that has run
out, a log start that moved past it, a log end that went back below its SPEO, or no state yet. All others get no
input and cost nothing but a look at two integers.

Suspects (``engine.search``) are acquired in micro-batches of their own, so that nothing else can be lost with them; as
long as there is other work, every second micro-batch is for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from share_spark.engine.ports import NO_TRACE, MemberTrace
from share_spark.engine.ranges import ANSWER, NOT_ACKNOWLEDGED, AcknowledgedRanges, offsets_in
from share_spark.engine.search import Piece
from share_spark.engine.step import MemberTraces, PartitionInput, PartitionSummary
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.offsets import LogEnds
from share_spark.model.records import Doubt
from share_spark.model.requests import AcknowledgeType


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything a micro-batch reads before it decides; each read once.

    ``topics``: topic id -> name. ``ends``: log ends per key. ``initial_offsets``: for keys without state.
    ``targets``: exclusive end offsets of an available-now run, None when the run is endless. ``acknowledged_by`` as in
    ``PartitionInput``.
    ``suspects``: what of the suspects is next, None if there are none; ``suspects_next``: it is their turn.
    ``traces``: what dead members have left, by topic-partition.
    """

    now_ms: int
    topics: Mapping[str, str]
    ends: Mapping[SharePartitionKey, LogEnds]
    initial_offsets: Mapping[SharePartitionKey, int]
    acknowledged: Mapping[SharePartitionKey, AcknowledgedRanges]
    targets: Mapping[SharePartitionKey, int] | None = None
    stopping: bool = False
    acknowledged_by: str | None = None
    suspects: Piece | None = None
    suspects_next: bool = True
    traces: Sequence[MemberTrace] = ()


def plan(
    inputs: Inputs, summaries: Mapping[SharePartitionKey, PartitionSummary], *, max_records: int, max_record_locks: int
) -> dict[SharePartitionKey, PartitionInput]:
    """Inputs of the active share-partitions; ``max_records`` is shared out among those that want records."""
    wanted = {key: _demand(key, inputs, summaries, max_record_locks) for key in inputs.ends}
    piece = None if inputs.stopping else inputs.suspects
    # In a micro-batch of suspects the others settle as well (acknowledgements, locks), but acquire nothing: a record
    # that is in flight beside a suspect would be lost with it.
    if piece is not None and (inputs.suspects_next or not any(wanted.values())):
        active = [key for key in inputs.ends if key in piece.records or _must_settle(key, inputs, summaries)]
        partition_inputs = {
            key: _input_of(key, inputs, summaries, piece.records.get(key, 0), suspects=True) for key in active
        }
    else:
        active = [key for key in inputs.ends if wanted[key] or _must_settle(key, inputs, summaries)]
        shares = share_out([wanted[key] for key in active], 0 if inputs.stopping else max_records)
        partition_inputs = {
            key: _input_of(key, inputs, summaries, share) for key, share in zip(active, shares, strict=True)
        }
    return partition_inputs | _no_longer_read(inputs, summaries)


def _no_longer_read(
    inputs: Inputs, summaries: Mapping[SharePartitionKey, PartitionSummary]
) -> dict[SharePartitionKey, PartitionInput]:
    """Acknowledgements that the output of the engine before decided, for share-partitions that this group no longer
    subscribes to."""
    return {
        key: PartitionInput(
            topic=summaries[key].topic,
            log_start_offset=0,
            end_offset=0,
            acknowledged=ranges,
            acknowledged_by=inputs.acknowledged_by,
        )
        for key, ranges in inputs.acknowledged.items()
        if key not in inputs.ends and key in summaries
    }


def end_for(key: SharePartitionKey, inputs: Inputs) -> int:
    """Exclusive end of what may be acquired: the log end, or the target of an available-now run if that is lower."""
    end = inputs.ends[key].end_offset
    return end if inputs.targets is None else min(end, inputs.targets.get(key, 0))


def share_out(demands: Sequence[int], budget: int) -> list[int]:
    """Divide ``budget`` evenly; what one does not want goes to the others. Sum is min(budget, sum of demands).

    >>> share_out([5, 100, 100], 105)
    [5, 50, 50]
    """
    shares = [0] * len(demands)
    left = budget
    # Smallest demand first: what it leaves of its fair share is divided among those after it.
    order = sorted(range(len(demands)), key=demands.__getitem__)
    for position, index in enumerate(order):
        fair = -(-left // (len(order) - position))
        shares[index] = min(demands[index], fair)
        left -= shares[index]
    return shares


def truncated_to(summary: PartitionSummary | None, ends: LogEnds) -> int | None:
    """Where the log was cut off, exclusive, if it ends below the SPEO; all that was ever acquired was in the log once.

    The last stable offset does not show it: it is below the SPEO as well when the isolation level was raised meanwhile.
    """
    if summary is None or summary.start_offset < 0 or ends.end_offset < 0:
        return None
    return ends.log_end if ends.log_end < summary.end_offset else None


def targets_of(ends: Mapping[SharePartitionKey, LogEnds]) -> dict[SharePartitionKey, int]:
    """Where an available-now run ends that begins now."""
    return {key: end.end_offset for key, end in ends.items()}


def targets_within(
    targets: Mapping[SharePartitionKey, int] | None, ends: Mapping[SharePartitionKey, LogEnds]
) -> Mapping[SharePartitionKey, int] | None:
    """``targets`` that follow a log end which went back: records that are gone are not waited for."""
    if targets is None:
        return None
    return {key: min(target, ends[key].log_end) if key in ends else target for key, target in targets.items()}


def is_done(summaries: Mapping[SharePartitionKey, PartitionSummary], targets: Mapping[SharePartitionKey, int]) -> bool:
    """Every offset below the targets is Acknowledged or Archived: the SPSO has passed them (R15)."""
    return all(key in summaries and summaries[key].start_offset >= target for key, target in targets.items())


def _demand(
    key: SharePartitionKey,
    inputs: Inputs,
    summaries: Mapping[SharePartitionKey, PartitionSummary],
    max_record_locks: int,
) -> int:
    summary = summaries.get(key)
    end = end_for(key, inputs)
    if summary is None or summary.start_offset < 0:
        return min(max(0, end - inputs.initial_offsets.get(key, 0)), max_record_locks)
    released = _released(inputs.acknowledged.get(key, NOT_ACKNOWLEDGED))
    new = max(0, end - max(summary.end_offset, inputs.ends[key].log_start_offset))
    # Acknowledgements may empty the window, so a share-partition that has some may be able to use all of it.
    window = 0 if key in inputs.acknowledged else summary.end_offset - summary.start_offset
    # Suspects of a lesser doubt than the one that is searched now are acquired with all other records.
    not_searched = sum(summary.suspected[: inputs.suspects.searched - Doubt.LOST_TWICE]) if inputs.suspects else 0
    return summary.available + not_searched + released + min(new, max(0, max_record_locks - window))


def _released(acknowledged: AcknowledgedRanges) -> int:
    """What may be acquired at once."""
    if not len(acknowledged):
        return 0
    answers = acknowledged[:, ANSWER]
    return offsets_in(acknowledged[(answers == AcknowledgeType.RELEASE) | (answers < 0)])


def _must_settle(
    key: SharePartitionKey, inputs: Inputs, summaries: Mapping[SharePartitionKey, PartitionSummary]
) -> bool:
    summary = summaries.get(key)
    if summary is None or summary.start_offset < 0:
        return True
    if key in inputs.acknowledged or inputs.ends[key].log_start_offset > summary.start_offset:
        return True
    if truncated_to(summary, inputs.ends[key]) is not None:
        return True
    # An engine that stops gives back all that it holds, even records of which it does not know how they ended.
    return summary.next_deadline_ms is not None and (inputs.stopping or summary.next_deadline_ms <= inputs.now_ms)


def _input_of(
    key: SharePartitionKey,
    inputs: Inputs,
    summaries: Mapping[SharePartitionKey, PartitionSummary],
    share: int,
    *,
    suspects: bool = False,
) -> PartitionInput:
    piece = inputs.suspects
    return PartitionInput(
        topic=inputs.topics[key.topic_id],
        log_start_offset=inputs.ends[key].log_start_offset,
        end_offset=end_for(key, inputs),
        initial_offset=inputs.initial_offsets.get(key),
        acknowledged=inputs.acknowledged.get(key, NOT_ACKNOWLEDGED),
        acknowledged_by=inputs.acknowledged_by,
        release_member=inputs.stopping,
        max_records=share,
        searched=piece.searched if piece is not None else Doubt.NONE,
        suspects=suspects,
        alone=suspects and piece is not None and piece.alone,
        traces=traces_of(TopicPartition(inputs.topics[key.topic_id], key.partition), inputs.traces),
        truncated_to=truncated_to(summaries.get(key), inputs.ends[key]),
    )


def traces_of(at: TopicPartition, traces: Sequence[MemberTrace]) -> MemberTraces:
    """Of all members that left a trace. An empty one is information too: the member entered nothing here."""
    return tuple((trace.member_id, trace.entered.get(at, NO_TRACE)) for trace in traces)
