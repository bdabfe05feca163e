"""The share coordinator against a dict of offsets, request by request; and every recovery against the live state."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from share_spark.coordinator import CoordinatorShard, answer, evolved, fresh_snapshot
from share_spark.coordinator.messages import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadStateSummary,
    ShareGroupStateRequest,
    StateRecord,
    StateRequest,
    StateResult,
    StateSnapshot,
    StateUpdate,
    WriteState,
)
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import StateBatch
from tests.support.examples import examples

GROUP, TOPICS = "g", ("topicA", "topicB")
KEYS = st.tuples(st.sampled_from(TOPICS), st.integers(0, 1))
EPOCHS = st.integers(-1, 4)
STARTS = st.just(-1) | st.integers(0, 20)


@st.composite
def state_batch(draw: st.DrawFn) -> StateBatch:
    """Mostly well formed."""
    first = draw(st.integers(-1, 20) | st.integers(0, 20))
    last = first + draw(st.integers(-1, 6) | st.integers(0, 6))
    return StateBatch(first, last, draw(st.sampled_from([0, 0, 2, 2, 4, 4, 1])), draw(st.integers(0, 3)))


@dataclass
class Known:
    """All the oracle remembers of a key: offset -> (count, state)."""

    state_epoch: int
    start: int
    leader_epoch: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)


class CoordinatorOracle:
    """The rules once more, written offset by offset and without records."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, int], Known] = {}

    def initialize(self, key: tuple[str, int], state_epoch: int, start: int) -> str:
        if state_epoch == -1:
            return "INVALID_REQUEST"
        known = self.keys.get(key)
        if known and state_epoch < known.state_epoch:
            return "FENCED_STATE_EPOCH"
        self.keys[key] = Known(state_epoch, start, known.leader_epoch if known else 0)
        return "NONE"

    def fence(self, key: tuple[str, int], leader_epoch: int) -> str:
        if key not in self.keys:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        return "FENCED_LEADER_EPOCH" if -1 < leader_epoch < self.keys[key].leader_epoch else "NONE"

    def read(self, key: tuple[str, int], leader_epoch: int) -> str:
        error = self.fence(key, leader_epoch)
        if error == "NONE":
            self.keys[key].leader_epoch = max(self.keys[key].leader_epoch, leader_epoch)
        return error

    def write(self, key: tuple[str, int], said: WriteState) -> str:
        for first, last, state, count in said.state_batches:
            if first < 0 or last < first or state == 1 or count < 0:
                return "INVALID_REQUEST"
        if key not in self.keys:
            return "UNKNOWN_TOPIC_OR_PARTITION"
        known = self.keys[key]
        if said.leader_epoch < known.leader_epoch:
            return "FENCED_LEADER_EPOCH"
        if said.state_epoch != known.state_epoch:
            return "FENCED_STATE_EPOCH"
        known.leader_epoch = max(known.leader_epoch, said.leader_epoch)
        known.start = max(known.start, said.start_offset)
        for first, last, state, count in said.state_batches:
            for offset in range(first, last + 1):
                known.offsets[offset] = max(known.offsets.get(offset, (-1, -1)), (count, state))
        known.offsets = {offset: held for offset, held in known.offsets.items() if offset >= known.start}
        return "NONE"

    def settled_start(self, key: tuple[str, int]) -> int:
        at = self.keys[key].start
        while self.keys[key].offsets.get(at, (0, 0))[1] in (2, 4):
            at += 1
        return at


def offsets_of(batches: tuple[StateBatch, ...] | None) -> dict[int, tuple[int, int]]:
    return {o: (count, state) for first, last, state, count in batches or () for o in range(first, last + 1)}


class CoordinatorAgainstOracle(RuleBasedStateMachine):
    """Both get the same requests; answers and states must agree, and so must a replay of the log."""

    @initialize(updates=st.integers(0, 3))
    def begin(self, updates: int) -> None:
        self.empty = CoordinatorShard(state_partition=0, state_partitions=1, updates_per_snapshot=updates, loaded=True)
        self.shard = self.empty
        self.oracle = CoordinatorOracle()
        self.log: list[StateRecord] = []

    def ask(self, *entries: StateRequest) -> list[StateResult]:
        given = answer(self.shard, ShareGroupStateRequest(group_id=GROUP, entries=entries))
        self.log += given.records
        self.shard = evolved(self.shard, given.records)
        return list(given.results)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3), state_epoch=EPOCHS, start=STARTS)
    def initialize_state(self, keys: list[tuple[str, int]], state_epoch: int, start: int) -> None:
        results = self.ask(
            *(InitializeState(topic_id=t, partition=p, state_epoch=state_epoch, start_offset=start) for t, p in keys)
        )
        assert [r.error.name for r in results] == [self.oracle.initialize(key, state_epoch, start) for key in keys]

    @rule(
        writes=st.lists(
            st.tuples(KEYS, st.just(-1) | EPOCHS, EPOCHS, STARTS, st.lists(state_batch(), max_size=3)),
            min_size=1,
            max_size=3,
        ),
        times=st.integers(1, 2),
    )
    def write_state(self, writes: list[tuple[tuple[str, int], int, int, int, list[StateBatch]]], times: int) -> None:
        entries = [
            WriteState(
                topic_id=topic,
                partition=partition,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start,
                state_batches=tuple(batches),
            )
            for (topic, partition), state_epoch, leader_epoch, start, batches in writes
        ]
        for _ in range(times):
            results = self.ask(*entries)
            expected = [self.oracle.write((entry.topic_id, entry.partition), entry) for entry in entries]
            assert [r.error.name for r in results] == expected

    @rule(key=KEYS, leader_epoch=EPOCHS)
    def read_state(self, key: tuple[str, int], leader_epoch: int) -> None:
        (result,) = self.ask(ReadState(topic_id=key[0], partition=key[1], leader_epoch=leader_epoch))
        assert result.error.name == self.oracle.read(key, leader_epoch)
        if result.error.name == "NONE":
            known = self.oracle.keys[key]
            assert (result.state_epoch, result.start_offset) == (known.state_epoch, known.start)
            assert offsets_of(result.state_batches) == known.offsets

    @rule(key=KEYS, leader_epoch=EPOCHS)
    def read_summary(self, key: tuple[str, int], leader_epoch: int) -> None:
        (result,) = self.ask(ReadStateSummary(topic_id=key[0], partition=key[1], leader_epoch=leader_epoch))
        assert result.error.name == self.oracle.fence(key, leader_epoch)
        if result.error.name == "NONE":
            assert (result.state_epoch, result.start_offset) == (
                self.oracle.keys[key].state_epoch,
                self.oracle.settled_start(key),
            )

    @rule(key=KEYS)
    def delete_state(self, key: tuple[str, int]) -> None:
        (result,) = self.ask(DeleteState(topic_id=key[0], partition=key[1]))
        assert result.error.name == "NONE"
        self.oracle.keys.pop(key, None)

    @rule()
    def snapshot_and_prune(self) -> None:
        """The scheduled job (R88-R90): fresh snapshots of all keys, and nothing before them is kept."""
        self.log = [fresh_snapshot(state) for state in self.shard.states.values()]
        self.shard = evolved(self.shard, self.log)

    @rule(again=st.integers(1, 3))
    def fail_over(self, again: int) -> None:
        """A new coordinator reads the log; some of its end twice in a row, as after a lost acknowledgement (R87)."""
        loaded = self.empty
        for at, record in enumerate(self.log):
            loaded = evolved(loaded, [record] * (2 if at >= len(self.log) - again else 1))
        assert loaded == self.shard
        self.shard = evolved(self.empty, self.log)
        assert loaded == self.shard

    @invariant()
    def every_key_agrees(self) -> None:
        live = {(key.topic_id, key.partition): state for key, state in self.shard.states.items()}
        assert live.keys() == self.oracle.keys.keys()
        for key, state in live.items():
            known = self.oracle.keys[key]
            assert state.key == SharePartitionKey(GROUP, *key)
            assert offsets_of(state.state_batches) == known.offsets
            assert (state.state_epoch, state.leader_epoch, state.start_offset) == (
                known.state_epoch,
                known.leader_epoch,
                known.start,
            )

    @invariant()
    def few_updates_follow_a_snapshot(self) -> None:
        """R78; and an update always names the snapshot before it (R76)."""
        since: dict[SharePartitionKey, tuple[int, int]] = {}
        for record in self.log:
            if isinstance(record, StateSnapshot):
                since[record.key] = (record.snapshot_epoch, 0)
            elif isinstance(record, StateUpdate):
                epoch, updates = since[record.key]
                assert record.snapshot_epoch == epoch
                assert updates < self.empty.updates_per_snapshot
                since[record.key] = (epoch, updates + 1)


TestCoordinatorAgainstOracle = CoordinatorAgainstOracle.TestCase
TestCoordinatorAgainstOracle.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
