"""The leader against the oracle, request by request; and recovery against the live state.

Half of the runs acknowledge as clients of Kafka do. All acquire by offsets, as handlers do.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from share_spark.model.config import BackoffPolicy
from share_spark.model.errors import ErrorCode
from share_spark.model.records import Doubt
from share_spark.model.requests import AcquiredRange, AnsweredRange, LoseAttempts, Loss, RetryDelay, Trace, TracedRange
from share_spark.partition import (
    from_kip,
    kip_batches,
    next_deadline_ms,
    restore,
    take_snapshot,
    waiting,
)
from share_spark.partition.backoff import Backoff
from share_spark.partition.kafka_modes import KafkaLimits
from tests.property.oracle import ACQUIRED, AVAILABLE, FINAL, PartitionOracle
from tests.support.examples import examples
from tests.support.kafka_partition import ClientPartition
from tests.support.share_partition import KEY, Partition
from tests.support.window_forms import ALWAYS, NEVER, columns_from

MEMBERS = st.sampled_from(["a", "b"])
OFFSETS = st.integers(0, 24)
SEARCHED = [Doubt.LOST_TWICE, Doubt.LOST_IN_PIECE, Doubt.ACCUSED]
LOSSES = st.sampled_from(list(Loss))
BACKOFFS = {
    BackoffPolicy.NONE: lambda _: 0,
    BackoffPolicy.FIXED: lambda _: 5,
    BackoffPolicy.EXPONENTIAL: lambda count: 5 if count == 1 else 8,
}
DELAYS = st.dictionaries(OFFSETS, st.sampled_from([0, 3, 20]), max_size=4)
TYPES = st.integers(-1, 5) | st.integers(1, 2)


@st.composite
def ack_batch(draw: st.DrawFn) -> tuple[int, int, tuple[int, ...]]:
    """Mostly well formed, with one type or one per offset."""
    first = draw(OFFSETS)
    last = first + draw(st.integers(-1, 6) | st.integers(0, 3))
    size = draw(st.sampled_from([1, 1, max(last - first + 1, 0), 2]))
    return first, last, tuple(draw(st.lists(TYPES, min_size=size, max_size=size)))


def offsets_of(ranges: tuple[AcquiredRange, ...]) -> list[tuple[int, int]]:
    return [(o, r.delivery_count) for r in ranges for o in range(r[0], r[1] + 1)]


class LeaderAgainstOracle(RuleBasedStateMachine):
    """Both get the same requests; after each, every offset must agree."""

    @initialize(
        limit=st.integers(1, 3),
        locks=st.integers(3, 30),
        start=st.integers(0, 5),
        columns=st.booleans(),
        policy=st.sampled_from(BackoffPolicy),
        leader=st.sampled_from([Partition, ClientPartition]),
    )
    def begin(
        self, limit: int, locks: int, start: int, columns: bool, policy: BackoffPolicy, leader: type[Partition]
    ) -> None:
        self.window_form = ExitStack()
        self.window_form.enter_context(columns_from(ALWAYS if columns else NEVER))
        limits = KafkaLimits(
            max_delivery_count=limit,
            max_record_locks=locks,
            lock_duration_ms=10,
            backoff=Backoff(policy=policy, delay_ms=5, max_delay_ms=8),
        )
        self.leader = leader(start=start, limits=limits)
        self.is_client = leader is ClientPartition
        self.oracle = PartitionOracle(limit, locks, 10, start=start, end=start, backoff=BACKOFFS[policy])
        self.finished: dict[int, int] = {}
        self.highest_start = start

    @rule(member=MEMBERS, last=OFFSETS, most=st.integers(1, 12), searched=st.sampled_from([Doubt.NONE, *SEARCHED]))
    def acquire(self, member: str, last: int, most: int, searched: Doubt) -> None:
        fetch_offset = self.oracle.next_fetch_offset()
        expected = self.oracle.acquire(member, last, most, self.leader.now_ms, searched)
        terms = {"mode": None} if self.is_client else {}
        got = self.leader.fetch(member, (fetch_offset, last), most=most, searched=searched, **terms)
        assert offsets_of(tuple(AcquiredRange(*found) for found in got)) == expected

    @rule(member=MEMBERS, batches=st.lists(ack_batch(), max_size=4), tidy=st.booleans(), asked=DELAYS)
    def acknowledge(
        self, member: str, batches: list[tuple[int, int, tuple[int, ...]]], tidy: bool, asked: dict[int, int]
    ) -> None:
        if tidy:
            batches = sorted(batches)
        if self.is_client:
            asked = {}
            error = self.leader.ack(member, *batches)
        else:
            batches = [(first, last, (sum(types),)) for first, last, types in batches]
            delays = tuple(RetryDelay(offset, offset, ms) for offset, ms in sorted(asked.items()))
            error = self.leader.ack(member, *((first, last, kind) for first, last, (kind,) in batches), delays=delays)
        plain = [(first, last, list(types)) for first, last, types in batches]
        expected = self.oracle.acknowledge(member, plain, self.leader.now_ms, asked, may_renew=self.is_client)
        assert (None if error is ErrorCode.NONE else error.name) == expected

    @rule(member=MEMBERS, data=st.data(), kind=st.integers(0, 4), asked=DELAYS)
    def acknowledge_something_held(self, member: str, data: st.DataObject, kind: int, asked: dict[int, int]) -> None:
        held = [o for o, r in self.oracle.records.items() if r.member == member]
        if held:
            first = data.draw(st.sampled_from(sorted(held)))
            last = first
            while last + 1 in held and data.draw(st.booleans()):
                last += 1
            self.acknowledge(member, [(first, last, (kind,))], True, asked)

    @rule(member=MEMBERS)
    def release(self, member: str) -> None:
        self.oracle.release(member)
        self.leader.release(member)

    @rule(member=MEMBERS, searched=st.sampled_from(SEARCHED), most=st.integers(1, 6), data=st.data())
    def acquire_suspects(self, member: str, searched: Doubt, most: int, data: st.DataObject) -> None:
        alone = data.draw(st.booleans()) if most == 1 else False
        expected = self.oracle.acquire_suspects(member, searched, most, self.leader.now_ms, alone=alone)
        got = self.leader.fetch_suspects(member, searched, most, alone=alone)
        assert offsets_of(tuple(AcquiredRange(*found) for found in got)) == expected

    @rule(member=MEMBERS, first=OFFSETS, size=st.integers(1, 12), loss=LOSSES)
    def lose(self, member: str, first: int, size: int, loss: Loss) -> None:
        held = [o for o, r in self.oracle.records.items() if r.member == member and first <= o < first + size]
        self.oracle.lose(dict.fromkeys(held, loss))
        self.leader.ask(LoseAttempts(member_id=member, ranges=(AnsweredRange(first, first + size - 1, loss),)))

    @rule(ms=st.integers(0, 12), data=st.data())
    def die_and_advance(self, ms: int, data: st.DataObject) -> None:
        """Some ended members have left a trace: of some attempts, and of earlier ones."""
        traces = {
            member: data.draw(st.dictionaries(OFFSETS, st.tuples(st.integers(1, 4), LOSSES), max_size=8))
            for member in data.draw(st.frozensets(MEMBERS))
        }
        self.oracle.expire(self.leader.now_ms + ms, lost=True, traces=traces)
        ranges = {
            member: tuple(TracedRange(o, o, count, loss) for o, (count, loss) in sorted(left.items()))
            for member, left in traces.items()
        }
        self.leader.advance(ms, lost=True, traces=tuple(Trace(member, left) for member, left in ranges.items()))

    @rule(ms=st.integers(0, 12))
    def advance(self, ms: int) -> None:
        self.oracle.expire(self.leader.now_ms + ms)
        self.leader.advance(ms)

    @rule(offset=OFFSETS)
    def move_log_start(self, offset: int) -> None:
        self.oracle.move_log_start(offset)
        self.leader.log_start(offset)

    @rule(end=OFFSETS)
    def truncate(self, end: int) -> None:
        self.oracle.truncate(end)
        self.leader.truncate(end)
        self.highest_start = min(self.highest_start, end)
        self.finished = {offset: state for offset, state in self.finished.items() if offset < end}

    @rule()
    def snapshot(self) -> None:
        record = take_snapshot(self.leader.state)
        self.leader.log.append(record)
        restored = restore([record])
        assert restored is not None
        assert restored.in_flight == self.leader.state.in_flight
        self.leader.state = restored

    @invariant()
    def every_offset_agrees(self) -> None:
        state = self.leader.state
        ours: dict[int, tuple[Any, ...]] = {
            offset: tuple(run[2:]) for run in state.in_flight for offset in range(run.first_offset, run.last_offset + 1)
        }
        theirs = {o: r.facts() for o, r in self.oracle.records.items()}
        assert ours == theirs
        assert (state.start_offset, state.end_offset) == (self.oracle.start, self.oracle.end)
        assert self.leader.next_fetch_offset == self.oracle.next_fetch_offset()
        locked = [r for r in self.oracle.records.values() if r.deadline is not None]
        assert next_deadline_ms(state) == min((r.deadline for r in locked if r.state == ACQUIRED), default=None)
        delayed = Counter(r.deadline for r in locked if r.state == AVAILABLE)
        assert waiting(state).delayed == tuple(sorted(delayed.items()))

    @invariant()
    def recovery_gives_the_live_state(self) -> None:
        assert restore(self.leader.log) == self.leader.state

    @invariant()
    def the_start_and_final_states_never_go_back(self) -> None:
        assert self.oracle.start >= self.highest_start
        self.highest_start = self.oracle.start
        for offset, record in self.oracle.records.items():
            assert self.finished.get(offset, record.state) == record.state
            if record.state in FINAL:
                self.finished[offset] = record.state

    @invariant()
    def the_kip_form_is_equivalent(self) -> None:
        """R66: same start, same state and count of what is not final; a running attempt counts as not made (R8)."""
        state = self.leader.state
        loaded = from_kip(
            key=KEY,
            state_epoch=0,
            leader_epoch=0,
            start_offset=state.start_offset,
            batches=kip_batches(state),
        )
        undone = {
            o: (AVAILABLE, r.count - 1) if r.state == ACQUIRED else (r.state, r.count)
            for o, r in self.oracle.records.items()
            if o >= state.start_offset
        }
        covered = {
            o: (int(run.delivery_state), run.delivery_count)
            for run in loaded.in_flight
            for o in range(run.first_offset, run.last_offset + 1)
        }
        for offset in range(state.start_offset, state.end_offset):
            expected = undone.get(offset, (AVAILABLE, 0))
            if offset < loaded.start_offset:
                assert expected[0] in FINAL
            else:
                assert covered.get(offset, (AVAILABLE, 0)) == expected

    def teardown(self) -> None:
        self.window_form.close()


LeaderAgainstOracle.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=30, deadline=None)
TestLeaderAgainstOracle = LeaderAgainstOracle.TestCase
