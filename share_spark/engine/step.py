"""One share-partition in one micro-batch: a pure function of its state and its partition input.

The simulation runs the same function, without Spark. The order inside a micro-batch is fixed: acknowledgements;
attempts that ended without one; session ends; log truncation; lock expiry; log start; what clients ask, in the order in
which they asked; acquire. The locks of the engine itself do not end while it lives, however long a handler takes. An
expired lock of an engine belongs to one that has ended, so its records were lost in a crash (``partition.lost``); that
of a client is an attempt that has failed, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from share_spark.engine.attempts import Answered, ErrorRun
from share_spark.engine.client_requests import Responses, client_requests, decided
from share_spark.engine.ranges import (
    NONE_EARLIER,
    AcquiredRanges,
    EarlierRanges,
)
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import LogEnds, OffsetRange, SharePartitionKey
from share_spark.model.records import UNINITIALIZED_START_OFFSET, Doubt, ShareRecord
from share_spark.model.requests import (
    Acknowledge,
    Acquire,
    AnsweredRange,
    ArchivedRange,
    ExpireLocks,
    Initialize,
    LoseAttempts,
    Loss,
    MoveLogStart,
    PartitionRequest,
    PartitionResponse,
    ReleaseMember,
    RetryDelay,
    Trace,
    TruncateLog,
)
from share_spark.partition import (
    PartitionLimits,
    SharePartition,
    deadlines_ms,
    evolve,
    held_by,
    offsets_by_state,
    take_snapshot,
    unfinished_before,
    waiting,
)
from share_spark.partition.columns import as_columns, in_best_form, intersection, is_columns, total_offsets
from share_spark.partition.kafka_modes import KafkaRequest
from share_spark.partition.runs import chosen

MOST_DELAYS = 16
"""The most times of delayed records in a summary."""


class PartitionSummary(NamedTuple):
    """The driver's knowledge of a share-partition between micro-batches: a few integers, never its ranges.

    ``end_offset`` is exclusive (SPEO). ``available`` counts the offsets of the window that wait for redelivery with all
    others, ``suspected`` those of doubt LOST_TWICE, LOST_IN_PIECE and ACCUSED, ``by_state`` all of the window, in the
    order of ``DeliveryState``. ``next_deadline_ms`` and ``last_deadline_ms``: when the first and the last lock of
    another engine ends; ``next_client_deadline_ms``: the first one of a client. ``delayed``: (until when, how many
    offsets) of those that are delayed, the first ``MOST_DELAYS`` times in order; later ones are seen once these are
    past.
    """

    topic: str
    start_offset: int
    end_offset: int
    available: int
    next_deadline_ms: int | None
    last_deadline_ms: int | None = None
    suspected: tuple[int, int, int] = (0, 0, 0)
    by_state: tuple[int, ...] = (0, 0, 0, 0)
    delayed: tuple[tuple[int, int], ...] = ()
    next_client_deadline_ms: int | None = None

    def has_expired(self, now_ms: int) -> bool:
        """Return whether a lock has ended."""
        deadlines = self.next_deadline_ms, self.next_client_deadline_ms
        return any(deadline_ms is not None and deadline_ms <= now_ms for deadline_ms in deadlines)

    def lag(self, ends: LogEnds) -> int:
        """Return the number of offsets that are not finished."""
        _, _, acknowledged, archived = self.by_state
        return ends.unfinished(self.start_offset, acknowledged + archived)

    def due(self, now_ms: int) -> int:
        """Return how many delayed records may be acquired."""
        return sum(offsets for until_ms, offsets in self.delayed if until_ms <= now_ms)


class PartitionInput(NamedTuple):
    """All inputs of a share-partition in one micro-batch.

    ``end_offset`` (exclusive) bounds new records: the log end, or the target of an available-now run. ``acknowledged``:
    ascending and disjoint; a tuple, or ``Columns`` if there are many. ``delays``: those that handlers ask for, of
    ``acknowledged``. ``acknowledged_by``: the member of these acknowledgements, if not the engine itself: its output is
    committed, and it died before the state had them; they are valid only for what it still holds. ``release_member``:
    the engine is stopping, what it still holds was never entered. ``initial_offset``: SPSO of a share-partition that
    has none. ``searched``, ``suspects``, ``alone`` as in ``Acquire``. ``traces``: of members that have ended and whose
    locks may end now. ``truncated_to`` (exclusive): the log end, if it is below the SPEO. ``ordered``: records are
    delivered in order of their keys, and the delivery has to know what is not finished before
    them. ``errors``: of ``acknowledged``, for the audit; no decision looks at them. ``asked``: what clients of Kafka's
    protocol ask, in order.
    """

    topic: str
    log_start_offset: int
    end_offset: int
    initial_offset: int | None = None
    acknowledged: Sequence[AnsweredRange] = ()
    acknowledged_by: str | None = None
    release_member: bool = False
    max_records: int = 0
    searched: Doubt = Doubt.NONE
    suspects: bool = False
    alone: bool = False
    traces: tuple[Trace, ...] = ()
    truncated_to: int | None = None
    delays: Sequence[RetryDelay] = ()
    ordered: bool = False
    errors: Sequence[ErrorRun] = ()
    asked: Sequence[KafkaRequest] = ()


class PartitionOutcome(NamedTuple):
    """The result of a micro-batch for one share-partition. Record counts are offsets.

    ``archived``: with all reasons, those that make dead letters and others; the engine filters. ``earlier``: what is
    not finished before the acquired records, if they are delivered in order of keys. ``acquired`` and ``error``: of the
    engine itself. ``responses``: one for each request of a client; ``ended_by_clients``: the first offsets of archived
    ranges whose last attempt was a client's.
    """

    key: SharePartitionKey
    summary: PartitionSummary
    changed: bool
    acquired: AcquiredRanges
    archived: Sequence[ArchivedRange]
    accepted: int
    released: int
    not_entered: int
    throttled: int
    error: ErrorCode
    earlier: EarlierRanges = NONE_EARLIER
    responses: Sequence[PartitionResponse] = ()
    ended_by_clients: frozenset[int] = frozenset()


class StepResult(NamedTuple):
    """The result of ``step``. ``record`` is None if nothing changed; ``state`` is then the state that was given."""

    state: SharePartition
    record: ShareRecord | None
    outcome: PartitionOutcome
    answered: Answered


def step(
    key: SharePartitionKey,
    state: SharePartition | None,
    partition_input: PartitionInput,
    *,
    limits: PartitionLimits,
    member_id: str,
    now_ms: int,
) -> StepResult:
    """Apply one partition input. ``state`` None: the share-partition is new, and its first record is a snapshot (R75).
    So is that of a log that was truncated."""
    before = state or SharePartition(key=key)
    settling = settling_requests(before, partition_input, member_id)
    of_clients = client_requests(before, partition_input.asked, member_id)
    requests = (*settling, *of_clients, *acquire_request(before, partition_input, member_id))
    decision = decided(before, requests, limits, now_ms, has_clients=bool(partition_input.asked))
    after = evolve(before, decision.record) if decision.record else before
    record: ShareRecord | None = decision.record
    if state is None and record is not None:
        after, record = with_snapshot(after)
    responses = Responses.of(decision.responses, len(settling), len(of_clients))
    outcome = outcome_of(key, partition_input, after, record, responses, member_id)
    if partition_input.ordered:
        outcome = outcome._replace(earlier=earlier_of(after, responses.own, member_id, now_ms))
    return StepResult(after, record, outcome, tuple(zip(requests, decision.responses, strict=True)))


def with_snapshot(state: SharePartition) -> tuple[SharePartition, ShareRecord]:
    """Return the state and the snapshot that begins a segment with it (R74, R75)."""
    record = take_snapshot(state)
    return evolve(state, record), record


def settling_requests(
    state: SharePartition, partition_input: PartitionInput, member_id: str
) -> tuple[PartitionRequest, ...]:
    """Return the requests before the acquire, in the order of the micro-batch."""
    requests: list[PartitionRequest] = []
    if state.start_offset == UNINITIALIZED_START_OFFSET and partition_input.initial_offset is not None:
        requests.append(Initialize(start_offset=partition_input.initial_offset))
    # Before any request that ends attempts without an acknowledgement: no answer of a handler must be lost.
    if len(partition_input.acknowledged):
        requests += answers_of(state, partition_input, member_id)
    # The rest has no answer, so it counts as never entered.
    if partition_input.release_member:
        requests.append(ReleaseMember(member_id=member_id, charged=False))
    if partition_input.truncated_to is not None:
        requests.append(TruncateLog(end_offset=partition_input.truncated_to))
    # After the truncation: a lock on a record that the log has lost must not bring it back as Available.
    requests.append(ExpireLocks(lost=True, traces=partition_input.traces, kept_by=member_id))
    requests.append(MoveLogStart(log_start_offset=partition_input.log_start_offset, pass_finished=True))
    return tuple(requests)


def answers_of(state: SharePartition, partition_input: PartitionInput, member_id: str) -> list[PartitionRequest]:
    """Return acknowledgements, and attempts that ended without one."""
    acknowledged, acknowledged_by = partition_input.acknowledged, partition_input.acknowledged_by
    # These come from the sink's journal. The state may have absorbed them already: the engine before appended them,
    # and ended before it removed the entry.
    if acknowledged_by is not None:
        acknowledged = still_held(state, acknowledged, acknowledged_by)
        member_id = acknowledged_by
    requests: list[PartitionRequest] = []
    if batches := chosen(acknowledged, lambda found: found.answer not in LOSSES):
        requests.append(Acknowledge(member_id=member_id, batches=batches, delays=partition_input.delays))
    if lost := chosen(acknowledged, lambda found: found.answer in LOSSES):
        requests.append(LoseAttempts(member_id=member_id, ranges=lost, delays=partition_input.delays))
    return requests


LOSSES = frozenset(Loss)


def still_held(state: SharePartition, acknowledged: Sequence[AnsweredRange], member_id: str) -> Sequence[AnsweredRange]:
    """Cut ``acknowledged`` (ascending, disjoint) to what the member still holds; the rest has been absorbed.

    acknowledged   [------------]   [------]
    held              [----]  [-------]
    result            [----]  [-]   [-]
    """
    held = held_by(state, member_id)
    if not held or not acknowledged:
        return ()
    both = intersection(_answered, as_columns(acknowledged), as_columns(held))
    return in_best_form(both.recoded(AnsweredRange, [kind[:1] for kind in both.kinds]))


def _answered(first: int, last: int, answer: int, *_: object) -> AnsweredRange:
    return AnsweredRange(first, last, answer)


def acquire_request(
    state: SharePartition, partition_input: PartitionInput, member_id: str
) -> tuple[PartitionRequest, ...]:
    """Take redeliveries and new records, exactly up to the budget; the log's own batches are not known yet."""
    if partition_input.max_records <= 0:
        return ()
    window = (state.start_offset, state.end_offset)
    if partition_input.truncated_to is not None:
        # ``state`` is the one before this step, whose truncation removes all above.
        window = (min(window[0], partition_input.truncated_to), min(window[1], partition_input.truncated_to))
    first = max(window[0], partition_input.log_start_offset, partition_input.initial_offset or 0)
    last = max(window[1], partition_input.end_offset) - 1
    return (
        Acquire(
            member_id=member_id,
            max_records=partition_input.max_records,
            readable=OffsetRange(first, last),
            searched=partition_input.searched,
            suspects=partition_input.suspects,
            alone=partition_input.alone,
        ),
    )


def outcome_of(
    key: SharePartitionKey,
    partition_input: PartitionInput,
    state: SharePartition,
    record: ShareRecord | None,
    responses: Responses,
    member_id: str,
) -> PartitionOutcome:
    """Sum up the responses of one share-partition."""
    ranges, to_clients = _acquired_ranges(responses.own), responses.to_clients
    both = (*responses.own, *to_clients)
    asked = len(partition_input.asked)
    return PartitionOutcome(
        key=key,
        summary=front_of(partition_input.topic, state, member_id),
        changed=record is not None,
        acquired=ranges,
        archived=_archived_below(partition_input.truncated_to, both),
        accepted=sum(response.accepted for response in both),
        released=sum(response.released for response in both),
        not_entered=sum(total_offsets(response.not_entered) for response in both if response.not_entered),
        throttled=sum(total_offsets(response.throttled) for response in both if response.throttled),
        error=next((response.error for response in responses.own if response.error), ErrorCode.NONE),
        responses=to_clients[len(to_clients) - asked :],
        ended_by_clients=frozenset(run.first_offset for response in to_clients for run in response.archived),
    )


def earlier_of(
    state: SharePartition, responses: Sequence[PartitionResponse], member_id: str, now_ms: int
) -> EarlierRanges:
    """Return what is not finished before the records that were acquired now, and how long it waits at least."""
    acquired = next((response.acquired for response in responses if response.acquired), ())
    found = unfinished_before(state, acquired, member_id) if acquired else ()
    if not found:
        return NONE_EARLIER
    runs = as_columns(found)
    waits_ms = runs.by_kind([max((run.lock_deadline_ms or 0) - now_ms, 0) for run in runs.samples], np.int64)
    return EarlierRanges(np.column_stack([runs.first, runs.last, waits_ms]))


def _acquired_ranges(responses: Sequence[PartitionResponse]) -> AcquiredRanges:
    acquired = next((response.acquired for response in responses if response.acquired), ())
    if is_columns(acquired):
        counts = acquired.by_kind([run.delivery_count for run in acquired.samples], np.int64)
        return AcquiredRanges(np.column_stack([acquired.first, acquired.last, counts]))
    return AcquiredRanges(np.array(acquired, dtype=np.int64).reshape(-1, 3))


def _archived_below(end: int | None, responses: Sequence[PartitionResponse]) -> Sequence[ArchivedRange]:
    """Return archived ranges, without truncated ones: their dead letters would get the content of other records."""
    found = [response.archived for response in responses if response.archived]
    if end is None and len(found) <= 1:
        return found[0] if found else ()
    return tuple(run for archived in found for run in archived_below(end, archived))


class _Run(Protocol):
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    def _replace(self, *, last_offset: int) -> Self: ...


Archived = TypeVar("Archived", bound=_Run)


def archived_below(end: int | None, archived: Iterable[Archived]) -> Iterator[Archived]:
    """Cut ``archived`` at ``end`` (exclusive); None: keep all.

    archived      [-------][-----]
    end                 |
    result        [----]
    """
    for run in archived:
        if end is None or run.last_offset < end:
            yield run
        elif run.first_offset < end:
            yield run._replace(last_offset=end - 1)


def front_of(topic: str, state: SharePartition, member_id: str | None = None) -> PartitionSummary:
    """Return the summary of a share-partition, for the driver. ``member_id``: of the engine, if it holds records."""
    available, suspected, delayed = waiting(state)
    deadlines = deadlines_ms(state, kept_by=member_id)
    return PartitionSummary(
        topic=topic,
        start_offset=state.start_offset,
        end_offset=state.end_offset,
        available=available,
        next_deadline_ms=deadlines.first,
        last_deadline_ms=deadlines.last,
        suspected=suspected,
        by_state=tuple(offsets_by_state(state).values()),
        delayed=delayed[:MOST_DELAYS],
        next_client_deadline_ms=deadlines.first_client,
    )
