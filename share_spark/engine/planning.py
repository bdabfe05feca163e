"""The plan of a micro-batch: the share-partitions that have something to do, and how much each may take. Pure.

A share-partition is active when it has acknowledgements waiting, new records, redeliveries that are not delayed, an
expired lock, a log start that moved past it, a log end that went back below its SPEO, or no state yet. All others get
no input and cost nothing but a comparison of two integers.

The total number of records (``Pace``) follows the rate of the handlers, measured while they run, so that they finish
within the budget of time. It does not slow down a fast handler; after a slow one hardly anything has to be given back.

Suspects (``partition.lost``) are acquired in micro-batches of their own, so that nothing else can be lost with them.
While there is other work, these are every second micro-batch. The ``Search`` looks for a record that brings engines
down, over all share-partitions at once. The deepest doubt is searched first, in pieces of a fixed size: of N records
that were lost twice N^(2/3) at a time, then √ of the piece that was lost again, then those that are accused. These run
in turn, in one task, so that a trace shows which one it was; where engines end without leaving a trace, each has a
micro-batch to itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from share_spark.engine.answers import longest_throttle_ms, released_by_key
from share_spark.engine.attempts import ErrorRun, MemberTrace
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.step import PartitionInput, PartitionSummary
from share_spark.model.ids import LogEnds, SharePartitionKey, TopicPartition
from share_spark.model.records import DeliveryState, Doubt
from share_spark.model.requests import AnsweredRange, Loss, RetryDelay, Trace
from share_spark.partition.kafka_modes import KafkaRequest
from share_spark.partition.runs import samples


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Everything a micro-batch reads before it decides; each read once.

    ``topics``: topic id -> name. ``ends``: log ends per key, of those that may have something to do.
    ``initial_offsets``: for keys without state. ``delays``: those that handlers ask for, for records of
    ``acknowledged``; ``errors``: those of the same records, if the audit keeps them. ``has_backoff``: other released
    records are delayed as well. ``paused``: nothing is acquired of these. ``targets``: exclusive end offsets of an
    available-now run, None when the run is endless. ``acknowledged_by`` as in ``PartitionInput``. ``suspects``: the
    next piece of the suspects, None if there are none; ``suspects_next``: it is their turn; ``suspects_rest``: it is
    not, whatever else there is. ``traces``: what dead members have left, by topic-partition. ``ordered``: records are
    delivered in order of their keys; ``turn``: how many deliveries have entered nothing. ``asked``: what clients of
    Kafka's protocol ask, of share-partitions in ``ends``.
    """

    now_ms: int
    topics: Mapping[str, str]
    ends: Mapping[SharePartitionKey, LogEnds]
    initial_offsets: Mapping[SharePartitionKey, int]
    acknowledged: Mapping[SharePartitionKey, Sequence[AnsweredRange]]
    delays: Mapping[SharePartitionKey, Sequence[RetryDelay]] = field(default_factory=dict)
    errors: Mapping[SharePartitionKey, Sequence[ErrorRun]] = field(default_factory=dict)
    has_backoff: bool = False
    paused: Collection[SharePartitionKey] = ()
    targets: Mapping[SharePartitionKey, int] | None = None
    stopping: bool = False
    acknowledged_by: str | None = None
    suspects: SuspectPiece | None = None
    suspects_next: bool = True
    suspects_rest: bool = False
    traces: Sequence[MemberTrace] = ()
    ordered: bool = False
    turn: int = 0
    asked: Mapping[SharePartitionKey, Sequence[KafkaRequest]] = field(default_factory=dict)


def plan(
    inputs: PlanInputs,
    summaries: Mapping[SharePartitionKey, PartitionSummary],
    *,
    max_records: int,
    max_record_locks: int,
) -> dict[SharePartitionKey, PartitionInput]:
    """Return inputs of the active share-partitions; those that want records share ``max_records``. 0: nothing is
    acquired, not even suspects."""
    is_held = max_records == 0
    held = inputs.ends.keys() if is_held else inputs.paused
    released = released_by_key(inputs.acknowledged, inputs.delays, has_backoff=inputs.has_backoff)
    wanted = {
        key: 0 if key in held else _demand(key, inputs, summaries, max_record_locks, released.get(key, 0))
        for key in inputs.ends
    }
    piece = None if inputs.stopping or is_held or inputs.suspects_rest else inputs.suspects
    # In a micro-batch of suspects the others settle as well (acknowledgements, locks), but acquire nothing: a record
    # that is in flight together with a suspect would be lost with it.
    if piece is not None and (inputs.suspects_next or not any(wanted.values())):
        active = [key for key in inputs.ends if key in piece.records or _must_settle(key, inputs, summaries)]
        partition_inputs = {
            key: _input_of(key, inputs, summaries, piece.records.get(key, 0), suspects=True) for key in active
        }
    else:
        active = [key for key in inputs.ends if wanted[key] or _must_settle(key, inputs, summaries)]
        demands = _in_turns([wanted[key] for key in active], max_records, inputs.turn)
        shares = share_out(demands, 0 if inputs.stopping else max_records)
        partition_inputs = {
            key: _input_of(key, inputs, summaries, share) for key, share in zip(active, shares, strict=True)
        }
    return partition_inputs | _no_longer_read(inputs, summaries)


def _in_turns(demands: Sequence[int], budget: int, turn: int) -> Sequence[int]:
    """Choose other share-partitions each turn if not all can have a record, and all that was acquired was held back:
    the record that holds it back may be among them.

    >>> [_in_turns([3, 1, 5], 1, turn) for turn in range(4)]
    [[3, 1, 5], [0, 1, 0], [0, 0, 5], [3, 0, 0]]
    """
    asking = [at for at, demand in enumerate(demands) if demand]
    if not turn or budget >= len(asking):
        return demands
    first = turn % len(asking)
    chosen = set((asking[first:] + asking[:first])[:budget])
    return [demand if at in chosen else 0 for at, demand in enumerate(demands)]


def _no_longer_read(
    inputs: PlanInputs, summaries: Mapping[SharePartitionKey, PartitionSummary]
) -> dict[SharePartitionKey, PartitionInput]:
    """Return inputs with acknowledgements that the output of the engine before decided, for share-partitions that this
    group no longer subscribes to."""
    return {
        key: PartitionInput(
            topic=summaries[key].topic,
            log_start_offset=0,
            end_offset=0,
            acknowledged=ranges,
            acknowledged_by=inputs.acknowledged_by,
            delays=inputs.delays.get(key, ()),
            errors=inputs.errors.get(key, ()),
            traces=traces_of(TopicPartition(summaries[key].topic, key.partition), inputs.traces),
        )
        for key, ranges in inputs.acknowledged.items()
        if key not in inputs.ends and key in summaries
    }


def end_for(key: SharePartitionKey, inputs: PlanInputs) -> int:
    """Return the exclusive end of new records: the log end, or the lower target of an available-now run."""
    end = inputs.ends[key].end_offset
    return end if inputs.targets is None else min(end, inputs.targets.get(key, 0))


def share_out(demands: Sequence[int], budget: int) -> list[int]:
    """Divide ``budget`` evenly; a share that is not wanted goes to the others. The sum is min(budget, sum of demands).

    >>> share_out([5, 100, 100], 105)
    [5, 50, 50]
    """
    shares = [0] * len(demands)
    left = budget
    # Smallest demand first: the rest of its fair share is divided among those after it.
    order = sorted(range(len(demands)), key=demands.__getitem__)
    for position, index in enumerate(order):
        fair = -(-left // (len(order) - position))
        shares[index] = min(demands[index], fair)
        left -= shares[index]
    return shares


def truncated_to(summary: PartitionSummary | None, ends: LogEnds) -> int | None:
    """Return the exclusive log end if it is below the SPEO, so that the log was truncated, else None.

    The last stable offset does not show it: it is below the SPEO as well if the isolation level was raised meanwhile.
    """
    if summary is None or summary.start_offset < 0 or ends.end_offset < 0:
        return None
    return ends.log_end if ends.log_end < summary.end_offset else None


def truncated_logs(
    summaries: Mapping[SharePartitionKey, PartitionSummary], ends: Mapping[SharePartitionKey, LogEnds]
) -> dict[TopicPartition, int]:
    """Return the present ends, exclusive, of the logs that were truncated."""
    return {
        TopicPartition(summaries[key].topic, key.partition): cut
        for key, end in ends.items()
        if (cut := truncated_to(summaries.get(key), end)) is not None
    }


def targets_of(ends: Mapping[SharePartitionKey, LogEnds]) -> dict[SharePartitionKey, int]:
    """Return the targets of an available-now run that begins now."""
    return {key: end.end_offset for key, end in ends.items()}


def targets_within(
    targets: Mapping[SharePartitionKey, int] | None, ends: Mapping[SharePartitionKey, LogEnds]
) -> Mapping[SharePartitionKey, int] | None:
    """Lower ``targets`` to log ends that went back: records that are gone are not waited for. ``ends``: those that have
    changed."""
    if targets is None:
        return None
    lowered = {key: end.log_end for key, end in ends.items() if key in targets and end.log_end < targets[key]}
    return {**targets, **lowered} if lowered else targets


def is_done(
    summaries: Mapping[SharePartitionKey, PartitionSummary],
    targets: Mapping[SharePartitionKey, int],
    paused: Collection[SharePartitionKey] = (),
) -> bool:
    """Return whether every offset below the targets is Acknowledged or Archived: the SPSO has passed them (R15). What
    is ``paused`` is left out."""
    return all(
        key in summaries and summaries[key].start_offset >= target
        for key, target in targets.items()
        if key not in paused
    )


def _demand(
    key: SharePartitionKey,
    inputs: PlanInputs,
    summaries: Mapping[SharePartitionKey, PartitionSummary],
    max_record_locks: int,
    released: int,
) -> int:
    """Return how many records may be acquired. ``released``: how many the present acknowledgements make available."""
    summary = summaries.get(key)
    end = end_for(key, inputs)
    if summary is None or summary.start_offset < 0:
        return min(max(0, end - inputs.initial_offsets.get(key, 0)), max_record_locks)
    released += summary.due(inputs.now_ms) if summary.delayed else 0
    new = max(0, end - max(summary.end_offset, inputs.ends[key].log_start_offset))
    # Acknowledgements may empty the window, so a share-partition that has some may be able to use all of it.
    window = 0 if key in inputs.acknowledged else summary.end_offset - summary.start_offset
    # Suspects of a lesser doubt than the one that is searched are acquired with all other records.
    not_searched = sum(summary.suspected[: inputs.suspects.searched - Doubt.LOST_TWICE]) if inputs.suspects else 0
    return summary.available + not_searched + released + min(new, max(0, max_record_locks - window))


def _must_settle(
    key: SharePartitionKey, inputs: PlanInputs, summaries: Mapping[SharePartitionKey, PartitionSummary]
) -> bool:
    summary = summaries.get(key)
    if summary is None or summary.start_offset < 0:
        return True
    has_requests = key in inputs.acknowledged or key in inputs.asked
    if has_requests or inputs.ends[key].log_start_offset > summary.start_offset:
        return True
    if truncated_to(summary, inputs.ends[key]) is not None:
        return True
    # An engine that stops gives back all that it holds, even records whose outcome it does not know.
    if inputs.stopping:
        return summary.by_state[DeliveryState.ACQUIRED] > 0
    return summary.has_expired(inputs.now_ms)


def _input_of(
    key: SharePartitionKey,
    inputs: PlanInputs,
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
        acknowledged=inputs.acknowledged.get(key, ()),
        acknowledged_by=inputs.acknowledged_by,
        release_member=inputs.stopping,
        max_records=share,
        searched=piece.searched if piece is not None else Doubt.NONE,
        suspects=suspects,
        alone=suspects and piece is not None and piece.alone,
        traces=traces_of(TopicPartition(inputs.topics[key.topic_id], key.partition), inputs.traces)
        if inputs.traces
        else (),
        truncated_to=truncated_to(summaries.get(key), inputs.ends[key]),
        delays=inputs.delays.get(key, ()),
        ordered=inputs.ordered,
        errors=inputs.errors.get(key, ()),
        asked=inputs.asked.get(key, ()),
    )


def traces_of(at: TopicPartition, traces: Sequence[MemberTrace]) -> tuple[Trace, ...]:
    """Return the traces of all members that left one. An empty trace is information too: nothing was entered here."""
    return tuple(Trace(trace.member_id, trace.entered.get(at, ())) for trace in traces)


REST_MS, MOST_REST_MS = 1_000, 60_000
"""The time for which a search rests when it makes no progress, and at most, when it is throttled."""

IN_TURN = 1_000
"""The most accused records in one micro-batch: they share one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectPiece:
    """The doubt that is searched, and the records that run next, per share-partition."""

    searched: Doubt
    records: Mapping[SharePartitionKey, int]

    @property
    def alone(self) -> bool:
        """Whether it is a single, accused record. A single record that is the rest of a larger piece is not alone."""
        return self.in_turn and sum(self.records.values()) == 1

    @property
    def in_turn(self) -> bool:
        """Whether its records go to the handler one after another, by themselves."""
        return self.searched is Doubt.ACCUSED


@dataclass(slots=True, kw_only=True)
class Search:
    """The search for the record at fault. It remembers its size at the start, so that pieces keep their size.
    ``one_by_one``: the dead leave no traces here. ``comes_next``: the next micro-batch is for suspects, whatever else
    there is to do. ``rests_until_ms``: none is for them before. ``turn``: as in ``PlanInputs``."""

    one_by_one: bool = False
    comes_next: bool = True
    rests_until_ms: int = 0
    turn: int = 0
    _piece_turn: int = 0
    _sizes: dict[Doubt, int] = field(default_factory=dict)

    def next_piece(
        self, summaries: Mapping[SharePartitionKey, PartitionSummary], keys: Iterable[SharePartitionKey]
    ) -> SuspectPiece | None:
        """Return the next piece, None if there are no suspects in the share-partitions ``keys``."""
        waiting = {key: summaries[key].suspected for key in keys if key in summaries and any(summaries[key].suspected)}
        # The deepest doubt first: a small piece that was lost is searched before new pieces are lost beside it.
        for level in (2, 1, 0):
            doubt = Doubt(Doubt.LOST_TWICE + level)
            found = {key: counts[level] for key, counts in waiting.items() if counts[level]}
            if found:
                # The size at the start: otherwise pieces would become smaller and smaller, and more of them.
                self._sizes[doubt] = max(self._sizes.get(doubt, 0), sum(found.values()))
                return SuspectPiece(searched=doubt, records=_first(self._rotated(found), self._piece_size(doubt)))
            self._sizes.pop(doubt, None)
        return None

    def after(self, answers: Collection[AcknowledgedSpan], now_ms: int) -> None:
        """Take in the answers. If the order of keys held back all records, the next micro-batch would be the same until
        records before them have ended: so others have their turn, and a search rests, also if a service asks for it."""
        if any(found.answer != Loss.NOT_ENTERED for span in answers for found in samples(span.ranges)):
            if not self.comes_next:  # suspects have no delays
                self.rests_until_ms = now_ms + min(longest_throttle_ms(answers), MOST_REST_MS)
            return
        if self.comes_next:
            self.turn += 1
        else:
            self._piece_turn += 1
            self.rests_until_ms = now_ms + REST_MS

    def _rotated(self, found: Mapping[SharePartitionKey, int]) -> dict[SharePartitionKey, int]:
        keys = list(found)
        first = self._piece_turn % len(keys)
        return {key: found[key] for key in keys[first:] + keys[:first]}

    def _piece_size(self, doubt: Doubt) -> int:
        size = self._sizes[doubt]
        if doubt is Doubt.ACCUSED:
            return 1 if self.one_by_one else IN_TURN
        pieces = math.isqrt(size - 1) + 1 if doubt is Doubt.LOST_IN_PIECE else _cube_root(size)
        return -(-size // pieces)


def _cube_root(size: int) -> int:
    """Return the lowest number whose cube is not below ``size``."""
    root = round(math.cbrt(size))
    return root if root**3 >= size else root + 1


def _first(found: Mapping[SharePartitionKey, int], most: int) -> dict[SharePartitionKey, int]:
    """Return the first ``most`` records, key by key."""
    taken: dict[SharePartitionKey, int] = {}
    for key, count in found.items():
        if most <= 0:
            break
        taken[key] = min(count, most)
        most -= taken[key]
    return taken
