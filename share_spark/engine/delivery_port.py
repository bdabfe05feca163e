"""The engine's interface to deliveries: acquired records go out, answers come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from share_spark.engine.attempts import ErrorRun, FinishedCalls, MemberTrace
from share_spark.engine.ranges import NONE_EARLIER, AcquiredRanges, EarlierRanges
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ShareError
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.requests import AnsweredRange, RetryDelay

if TYPE_CHECKING:
    from share_spark.engine.ports import Claim


class AcquiredSpan(NamedTuple):
    """The acquired ranges of one topic-partition in a micro-batch. ``earlier``: where records are delivered in order of
    their keys, records before acquired ones that are neither finished nor acquired: they hold back their keys."""

    partition: TopicPartition
    ranges: AcquiredRanges
    earlier: EarlierRanges = NONE_EARLIER


class AcknowledgedSpan(NamedTuple):
    """The answers for one topic-partition. ``ranges``: ascending and disjoint; a tuple, or ``Columns`` if there are
    many. ``errors``: ascending; only those that have a text. ``delays``: ascending and disjoint, each of one answer: of
    released and throttled records the delay that was asked for; of records that were not entered because an earlier one
    of their key is not finished, how long that one waits at least."""

    partition: TopicPartition
    ranges: Sequence[AnsweredRange]
    errors: Sequence[ErrorRun]
    delays: Sequence[RetryDelay] = ()


AcknowledgedSpans = Mapping[SharePartitionKey, AcknowledgedSpan]
"""The acknowledgements of one micro-batch's delivery."""


class Delivered(NamedTuple):
    """The result of a delivery.

    ``answers``: per topic-partition; acquired offsets that are missing there hold no record or, if there is a
    ``fault``, were never entered. ``in_flight``: the number of offsets whose answers come with a later call, None if
    calls never outlast the delivery; if it is a number, ``answers`` are those that have come since the last call, each
    offset once, and GAP where there is no record. ``fault``: what ends the query, and is no record's failure: a handler
    that cannot be loaded or broke its contract as a whole, a topic that cannot be read. After TopicUnreachableError the
    engine goes on, and the answers are valid. ``entered`` records kept the busiest worker for ``busy_s`` seconds.
    ``is_explained``: workers have died, and it is known which records were in the handler. ``throttled``: calls of the
    present round (``DeliveryLimits``) that a service has throttled, where calls outlast the delivery. ``cost``: what
    the records have cost, in units of the user's own.
    """

    answers: Sequence[AcknowledgedSpan]
    fault: ShareError | None = None
    entered: int = 0
    busy_s: float = 0.0
    is_explained: bool = False
    in_flight: int | None = None
    throttled: int = 0
    cost: float = 0.0


class RunningCall(NamedTuple):
    """A call that runs, for so long."""

    at: TopicPartition
    offset: int
    age_s: float


class CallsLook(NamedTuple):
    """A look at calls that outlast deliveries. ``running``; ``waiting``: records that were handed over and wait for
    their call; ``limit``: the calls that may run. ``throttled``: records that a service has throttled, and that were
    not answered otherwise since."""

    running: int
    waiting: int
    limit: int
    oldest: RunningCall | None = None
    throttled: int = 0

    def __str__(self) -> str:
        """Return ``8 calls running (at most 10), 12 waiting, 3 throttled, oldest orders-0@812 for 4 s``."""
        bound = f" (at most {self.limit:,})" if self.limit else ""  # of a process that was not started yet
        text = f"{self.running:,} calls running{bound}, {self.waiting:,} waiting"
        text += f", {self.throttled:,} throttled" * (self.throttled > 0)
        at, offset, age_s = self.oldest or (None, 0, 0.0)
        return text if at is None else f"{text}, oldest {at}@{offset} for {age_s:,.0f} s"


class DeliveryLimits(NamedTuple):
    """The limits of one delivery. ``budget_ms``: a worker begins no call later than this after its first records.
    ``timeout_ms``: of a call whose handler has no limit of its own. ``most_tasks``: handlers at a time, 0 for as many
    as there are cores; ``most_calls``: the same for handlers that wait, in this round (``concurrency``)."""

    budget_ms: int
    timeout_ms: int
    most_tasks: int = 0
    most_calls: int = 1
    round_number: int = 0

    @classmethod
    def of(cls, config: GroupConfig) -> DeliveryLimits:
        """Return the limits by the settings of a group."""
        return cls(config.delivery_budget_ms, config.delivery_timeout_ms, config.max_concurrency, config.max_in_flight)


class Delivery(Protocol):
    """Takes acquired records to the handler, and its acknowledgements back. It enters the handler at most once per
    record and delivery count, and leaves a trace of that, which outlives the process where possible."""

    def start(self, claim: Claim) -> None:
        """Begin; the group is claimed. From now on a missing trace means that nothing was entered."""
        ...

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        """Deliver. ``in_turn``: one record after another, in one task, none of them with others in a batch. If calls
        may outlast the delivery, return the answers that are there, without waiting; the state has those of the call
        before. Raises unexpected errors; then nothing is known, and the records count as not entered."""
        ...

    def room(self, limits: DeliveryLimits) -> int | None:
        """Return how many records may be acquired beside those in flight; None: any number."""
        ...

    @property
    def calls(self) -> CallsLook | None:
        """The present calls, None if none outlasts its delivery. From any thread."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until an answer is there for a call that is in flight, at most so long; not if there is no call."""
        ...

    def drain(self) -> Delivered:
        """Begin no more calls, wait for those that run, and return the answers."""
        ...

    def finished_calls(self) -> Iterable[FinishedCalls]:
        """Yield the finished calls of other members, those of the last delivery first; after ``start``. Accepted
        records whose output rows are lost are left out."""
        ...

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:
        """Hold the output rows of these records of the last finished calls for the sink's next commit. Return whether
        they fit its output."""
        ...

    def traces(self) -> Sequence[MemberTrace]:
        """Return traces of members other than this one. Nothing is known of members that are missing here."""
        ...

    def forget_traces(self) -> None:
        """Forget traces: no lock is left of the members that were there at the start. A successor is none of them."""
        ...

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        """Forget the last trace: the state has absorbed it, and logs were truncated to ``ends`` (exclusive). The next
        records from there on may have the same offsets and delivery counts, and are others: answers for those in flight
        do not come."""
        ...

    def stop_waiting(self) -> None:
        """Stop waiting for records that do not come, from any thread."""
        ...

    def close(self) -> None:
        """Free what was kept for the next delivery: the engine has ended."""
        ...


class DeliveryAtOnce:
    """The part of a Delivery that is the same for all whose calls never outlast it."""

    __slots__ = ()

    def room(self, limits: DeliveryLimits) -> int | None:  # noqa: ARG002
        """Return None: the pace of the handlers bounds what is acquired."""
        return None

    @property
    def calls(self) -> CallsLook | None:
        """No calls: none is there between deliveries."""
        return None

    def wait(self, seconds: float) -> None:
        """Do nothing: no call is in flight."""

    def drain(self) -> Delivered:
        """Return nothing: no call is in flight."""
        return Delivered(())
