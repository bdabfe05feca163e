"""The share coordinator for one share-partition, rule by rule (R74-R104)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from share_spark.coordinator import decide, evolve, fresh_snapshot, replay
from share_spark.coordinator.decide import ZERO_UUID
from share_spark.coordinator.messages import (
    LAST_SNAPSHOT_EPOCH,
    DeleteState,
    InitializeState,
    ReadState,
    ReadStateSummary,
    ShareState,
    StateRecord,
    StateRequest,
    StateResult,
    StateSnapshot,
    StateTombstone,
    StateUpdate,
    WriteState,
    next_snapshot_epoch,
)
from share_spark.model.errors import ErrorCode
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import StateBatch

TOPIC = "4NDDkFljTLmMDZ9fRVJVKg"
KEY = SharePartitionKey("G1", TOPIC, 0)
V, D, X = 0, 2, 4
HERE: dict[str, Any] = {"topic_id": TOPIC, "partition": 0, "state_epoch": 3, "leader_epoch": 0}


class Coordinator:
    """One key, its records in order, and every record applied at once."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self.state: ShareState | None = None
        self.log: list[StateRecord] = []

    def __call__(self, request: StateRequest) -> StateResult:
        record, result = decide(KEY, self.state, request, self.updates_per_snapshot)
        if record is not None:
            self.log.append(record)
            self.state = evolve(self.state, record)
        return result

    def initialize(self, state_epoch: int = 0, start_offset: int = -1) -> ErrorCode:
        return self(
            InitializeState(topic_id=TOPIC, partition=0, state_epoch=state_epoch, start_offset=start_offset)
        ).error

    def write(
        self,
        start: int = -1,
        *batches: tuple[int, int, int, int],
        leader: int | None = None,
        epoch: int | None = None,
    ) -> ErrorCode:
        """By the leader that is known, unless another is given."""
        known = (self.state.leader_epoch, self.state.state_epoch) if self.state else (0, 0)
        return self(
            WriteState(
                topic_id=TOPIC,
                partition=0,
                state_epoch=known[1] if epoch is None else epoch,
                leader_epoch=known[0] if leader is None else leader,
                start_offset=start,
                state_batches=tuple(StateBatch(*batch) for batch in batches),
            )
        ).error

    def read(self, leader: int = -1) -> StateResult:
        return self(ReadState(topic_id=TOPIC, partition=0, leader_epoch=leader))

    def summary(self, leader: int = -1) -> StateResult:
        return self(ReadStateSummary(topic_id=TOPIC, partition=0, leader_epoch=leader))

    def delete(self) -> ErrorCode:
        return self(DeleteState(topic_id=TOPIC, partition=0)).error

    @property
    def kinds(self) -> str:
        """S, U, T per record."""
        return "".join(type(record).__name__[len("State")] for record in self.log)

    @property
    def batches(self) -> list[tuple[int, ...]]:
        assert self.state is not None
        return [tuple(batch) for batch in self.state.state_batches]


@pytest.fixture
def coordinator() -> Coordinator:
    """A key initialised with state epoch 3 and start offset 100."""
    made = Coordinator()
    assert made.initialize(3, 100) is ErrorCode.NONE
    return made


# ------------------------------------------------------------------------------------------- Initialize


def test_r101_initialize_writes_a_snapshot_without_batches() -> None:
    new = Coordinator()
    new.initialize(7)
    assert new.log == [
        StateSnapshot(key=KEY, snapshot_epoch=0, state_epoch=7, leader_epoch=0, start_offset=-1, state_batches=())
    ]


def test_r101_initialize_resets_what_is_known(coordinator: Coordinator) -> None:
    coordinator.write(-1, (105, 109, D, 1), leader=4)
    assert coordinator.initialize(4, 50) is ErrorCode.NONE
    assert coordinator.read() == StateResult(
        topic_id=TOPIC, partition=0, state_epoch=4, start_offset=50, state_batches=()
    )
    assert coordinator.state is not None
    assert coordinator.state.snapshot_epoch == 1


def test_r95_initialize_may_be_repeated_and_never_with_an_older_epoch(coordinator: Coordinator) -> None:
    assert coordinator.initialize(3, 100) is ErrorCode.NONE
    assert coordinator.initialize(2, 100) is ErrorCode.FENCED_STATE_EPOCH
    assert coordinator.kinds == "SS"


def test_r94_a_reset_does_not_let_an_old_leader_in_again(coordinator: Coordinator) -> None:
    coordinator.read(leader=5)
    coordinator.initialize(4)
    assert coordinator.read(leader=4).error is ErrorCode.FENCED_LEADER_EPOCH
    coordinator.state = replay(coordinator.log[-1:])[KEY]
    assert coordinator.read(leader=4).error is ErrorCode.FENCED_LEADER_EPOCH, "nor once the log was pruned (R90)"


def test_r95_a_leader_of_before_the_reset_cannot_write(coordinator: Coordinator) -> None:
    coordinator.initialize(4, 0)
    assert coordinator.write(110, epoch=3) is ErrorCode.FENCED_STATE_EPOCH
    assert coordinator.write(110, epoch=4) is ErrorCode.NONE


# ------------------------------------------------------------------------------------------------ fences


def test_r93_an_unknown_key_is_unknown_to_all_but_initialize_and_delete() -> None:
    new = Coordinator()
    errors = [new.read().error, new.summary().error, new.write(100)]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert new.delete() is ErrorCode.NONE
    assert new.log == []


def test_r94_a_leader_below_the_highest_known_is_fenced(coordinator: Coordinator) -> None:
    assert coordinator.write(-1, (100, 100, V, 1), leader=5) is ErrorCode.NONE
    assert coordinator.write(-1, (101, 101, V, 1), leader=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.read(leader=4).error is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.summary(leader=4).error is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.batches == [(100, 100, V, 1)]


def test_r94_a_successful_read_fences_older_leaders_and_outlives_the_coordinator(coordinator: Coordinator) -> None:
    coordinator.read(leader=6)
    coordinator.read(leader=6)
    assert coordinator.kinds == "SU", "the second read has nothing new to say"
    coordinator.state = replay(coordinator.log)[KEY]
    assert coordinator.write(110, leader=5) is ErrorCode.FENCED_LEADER_EPOCH


def test_r103_a_summary_writes_nothing(coordinator: Coordinator) -> None:
    assert coordinator.summary(leader=6).error is ErrorCode.NONE
    assert coordinator.write(110, leader=5) is ErrorCode.NONE


@pytest.mark.parametrize("known", [0, 5])
def test_r94_a_writer_that_names_no_leader_epoch_is_fenced(coordinator: Coordinator, known: int) -> None:
    """-1 is lower than any epoch that can be known, the first one included."""
    coordinator.write(105, leader=known)
    before = coordinator.state
    assert coordinator.write(110, (112, 113, D, 1), leader=-1) is ErrorCode.FENCED_LEADER_EPOCH
    assert (coordinator.state, coordinator.kinds[-1]) == (before, "S")


def test_r95_a_writer_that_names_no_state_epoch_is_fenced(coordinator: Coordinator) -> None:
    coordinator.initialize(4, 100)
    before = coordinator.state
    assert coordinator.write(110, (112, 113, D, 1), epoch=-1) is ErrorCode.FENCED_STATE_EPOCH
    assert coordinator.write(110, (112, 113, D, 1), leader=-1, epoch=-1) is ErrorCode.FENCED_LEADER_EPOCH
    assert (coordinator.state, coordinator.kinds) == (before, "SS")


def test_who_only_reads_need_not_name_a_leader_epoch(coordinator: Coordinator) -> None:
    coordinator.read(leader=5)
    assert [coordinator.read().error, coordinator.summary().error] == [ErrorCode.NONE] * 2
    assert coordinator.state is not None
    assert coordinator.state.leader_epoch == 5


def test_r79_a_start_offset_of_minus_one_keeps_what_is_known(coordinator: Coordinator) -> None:
    coordinator.write(105, leader=5, epoch=3)
    coordinator.write(-1, (106, 107, V, 2))
    assert coordinator.state == replace(coordinator.state, state_epoch=3, leader_epoch=5, start_offset=105)  # type: ignore[arg-type]


def test_r95_only_initialize_raises_the_state_epoch(coordinator: Coordinator) -> None:
    assert coordinator.write(110, epoch=4) is ErrorCode.FENCED_STATE_EPOCH
    assert coordinator.write(110, epoch=2) is ErrorCode.FENCED_STATE_EPOCH


def test_r96_the_leader_epoch_is_judged_before_the_state_epoch(coordinator: Coordinator) -> None:
    coordinator.read(leader=6)
    assert coordinator.write(110, leader=5, epoch=2) is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(
    "request_",
    [
        ReadState(topic_id="", partition=0),
        ReadState(topic_id=ZERO_UUID, partition=0),
        ReadStateSummary(topic_id=TOPIC, partition=-1),
        ReadState(topic_id=TOPIC, partition=0, leader_epoch=-2),
        InitializeState(topic_id=TOPIC, partition=0, state_epoch=-1),
        InitializeState(topic_id=TOPIC, partition=0, state_epoch=3, start_offset=-2),
        DeleteState(topic_id="", partition=0),
        WriteState(**HERE, start_offset=-2),
        WriteState(**HERE | {"state_epoch": -2}),
        WriteState(**HERE | {"leader_epoch": -2}),
        *(
            WriteState(**HERE, state_batches=(StateBatch(100, 101, V, 1), StateBatch(*bad)))
            for bad in [(110, 109, V, 1), (-1, 109, V, 1), (110, 119, 1, 1), (110, 119, 3, 1), (110, 119, V, -1)]
        ),
    ],
)
def test_r96_malformed_entries_change_nothing(coordinator: Coordinator, request_: StateRequest) -> None:
    result = coordinator(request_)
    assert (result.error, bool(result.message)) == (ErrorCode.INVALID_REQUEST, True)
    assert coordinator.kinds == "S"


# ------------------------------------------------------------------------------------------------ writing


def test_r61_an_update_carries_only_what_changed(coordinator: Coordinator) -> None:
    coordinator.write(-1, (100, 109, V, 1), leader=2)
    coordinator.write(-1, (105, 105, D, 2))
    assert coordinator.log[-1] == StateUpdate(
        key=KEY, snapshot_epoch=0, leader_epoch=2, start_offset=-1, state_batches=(StateBatch(105, 105, D, 2),)
    )
    assert coordinator.batches == [(100, 104, V, 1), (105, 105, D, 2), (106, 109, V, 1)]


def test_r80_what_a_write_says_below_the_start_offset_is_dropped(coordinator: Coordinator) -> None:
    coordinator.write(105, (95, 99, D, 1), (103, 106, D, 1), (108, 109, V, 1))
    assert coordinator.batches == [(105, 106, D, 1), (108, 109, V, 1)]
    (_, update) = coordinator.log
    assert isinstance(update, StateUpdate)
    assert list(map(tuple, update.state_batches)) == coordinator.batches, "it is not written either"


def test_r81_batches_of_one_write_may_overlap(coordinator: Coordinator) -> None:
    coordinator.write(-1, (100, 109, V, 1), (105, 107, D, 1))
    assert coordinator.batches == [(100, 104, V, 1), (105, 107, D, 1), (108, 109, V, 1)]


def test_r84_a_weaker_write_is_taken_without_effect(coordinator: Coordinator) -> None:
    coordinator.write(-1, (100, 109, D, 2))
    assert coordinator.write(-1, (100, 109, V, 2)) is ErrorCode.NONE
    assert coordinator.write(-1, (100, 109, X, 1)) is ErrorCode.NONE
    assert coordinator.batches == [(100, 109, D, 2)]


def test_r87_a_repeated_write_needs_no_record(coordinator: Coordinator) -> None:
    for _ in range(2):
        assert coordinator.write(105, (107, 109, D, 1), leader=2) is ErrorCode.NONE
    assert coordinator.kinds == "SU"


def test_a_late_write_does_not_move_the_start_offset_back(coordinator: Coordinator) -> None:
    coordinator.write(120)
    assert coordinator.write(100, (100, 109, V, 1)) is ErrorCode.NONE
    assert coordinator.read().start_offset == 120
    assert coordinator.batches == []


# ----------------------------------------------------------------------------------- snapshot or update


def test_r77_a_snapshot_where_the_start_moves_and_nothing_is_in_flight(coordinator: Coordinator) -> None:
    coordinator.write(110)
    coordinator.write(-1, (115, 119, D, 1))
    coordinator.write(120)
    assert coordinator.kinds == "SSUS"
    assert [record.snapshot_epoch for record in coordinator.log if not isinstance(record, StateTombstone)] == [
        0,
        1,
        1,
        2,
    ]


@pytest.mark.parametrize(("limit", "kinds"), [(0, "SSSSS"), (1, "SUSUS"), (2, "SUUSU")])
def test_r78_after_so_many_updates_comes_a_snapshot(limit: int, kinds: str) -> None:
    made = Coordinator(updates_per_snapshot=limit)
    made.initialize(0, 0)
    for count in range(1, 5):
        made.write(-1, (5, 5, V, count), (5 + count, 5 + count, D, 1))
    assert made.kinds == kinds
    assert made.batches == [(5, 5, V, 4), (6, 9, D, 1)]


def test_r79_a_snapshot_made_of_a_write_holds_everything() -> None:
    made = Coordinator(updates_per_snapshot=1)
    made.initialize(3, 100)
    made.write(-1, (105, 109, D, 1), leader=2)
    made.write(-1, (100, 100, V, 1))
    assert made.log[-1] == StateSnapshot(
        key=KEY,
        snapshot_epoch=1,
        state_epoch=3,
        leader_epoch=2,
        start_offset=100,
        state_batches=(StateBatch(100, 100, V, 1), StateBatch(105, 109, D, 1)),
    )


def test_r89_r90_a_fresh_snapshot_makes_all_before_it_redundant(coordinator: Coordinator) -> None:
    coordinator.write(103, (105, 109, D, 1), leader=2)
    assert coordinator.state is not None
    fresh = fresh_snapshot(coordinator.state)
    assert (
        replay([fresh])[KEY] == replay([*coordinator.log, fresh])[KEY] == replace(coordinator.state, snapshot_epoch=1)
    )


def test_o7_snapshot_epochs_skip_the_reserved_one() -> None:
    assert [next_snapshot_epoch(epoch) for epoch in (-1, 0, 65_533, LAST_SNAPSHOT_EPOCH, 70_000)] == [
        0,
        1,
        65_534,
        0,
        0,
    ]


# ------------------------------------------------------------------------------------------------- replay


def test_r85_updates_of_another_snapshot_epoch_and_of_no_snapshot_do_not_count(coordinator: Coordinator) -> None:
    stray = StateUpdate(
        key=KEY, snapshot_epoch=9, leader_epoch=9, start_offset=900, state_batches=(StateBatch(901, 901, D, 1),)
    )
    assert evolve(coordinator.state, stray) == coordinator.state
    assert evolve(None, stray) is None


def test_r86_replay_restores_the_highest_epochs(coordinator: Coordinator) -> None:
    coordinator.read(leader=6)
    older = StateSnapshot(key=KEY, snapshot_epoch=1, state_epoch=1, leader_epoch=2, start_offset=5, state_batches=())
    state = evolve(coordinator.state, older)
    assert state is not None
    assert (state.state_epoch, state.leader_epoch, state.start_offset) == (3, 6, 5)


# ------------------------------------------------------------------------------------- delete and summary


def test_r91_r93_delete_leaves_a_tombstone_and_can_be_repeated(coordinator: Coordinator) -> None:
    coordinator.write(-1, (105, 109, D, 1))
    assert coordinator.delete() is ErrorCode.NONE
    assert coordinator.delete() is ErrorCode.NONE
    assert coordinator.kinds == "SUT"
    assert coordinator.read().error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replay(coordinator.log) == {}
    assert coordinator.initialize(1) is ErrorCode.NONE, "a new life is not fenced by the old one"


@pytest.mark.parametrize("marker", [-1, 65_535])
def test_o5_a_snapshot_with_a_reserved_epoch_is_a_tombstone(coordinator: Coordinator, marker: int) -> None:
    record = StateSnapshot(
        key=KEY, snapshot_epoch=marker, state_epoch=3, leader_epoch=0, start_offset=0, state_batches=()
    )
    assert evolve(coordinator.state, record) is None


def test_r103_the_summary_passes_over_final_batches_at_the_front(coordinator: Coordinator) -> None:
    coordinator.write(-1, (100, 104, D, 1), (105, 105, X, 2), (107, 109, D, 1))
    assert coordinator.summary() == StateResult(
        topic_id=TOPIC, partition=0, state_epoch=3, leader_epoch=0, start_offset=106
    )
    assert coordinator.read().start_offset == 100


def test_r26_a_start_offset_that_is_not_chosen_yet_is_read_as_minus_one() -> None:
    new = Coordinator()
    new.initialize(1)
    assert (new.read().start_offset, new.summary().start_offset) == (-1, -1)
    new.write(100, epoch=1, leader=0)
    assert new.read().start_offset == 100


# -------------------------------------------------------------------------------- the KIP's worked example

WORKED = [
    # step, start offset and batches written, record, durable start and batches (R62)
    (0, 100, [], "StateSnapshot 1", 100, []),
    (2, 110, [], "StateSnapshot 2", 110, []),
    (4, -1, [(110, 110, V, 1)], "StateUpdate 2", 110, [(110, 110, V, 1)]),
    (5, -1, [(119, 119, D, 1)], "StateUpdate 2", 110, [(110, 110, V, 1), (119, 119, D, 1)]),
    (7, -1, [(111, 112, V, 1)], "StateUpdate 2", 110, [(110, 112, V, 1), (119, 119, D, 1)]),
    (8, -1, [(113, 118, D, 1)], "StateUpdate 2", 110, [(110, 112, V, 1), (113, 119, D, 1)]),
    (10, -1, [(110, 110, D, 2)], "StateUpdate 2", 110, [(110, 110, D, 2), (111, 112, V, 1), (113, 119, D, 1)]),
    (11, 120, [], "StateSnapshot 3", 120, []),
]


def test_the_worked_example_record_by_record() -> None:
    made = Coordinator()
    made.initialize(1)
    for step, start, batches, record, durable_start, durable in WORKED:
        assert made.write(start, *batches, leader=0, epoch=1) is ErrorCode.NONE
        last = made.log[-1]
        assert not isinstance(last, StateTombstone)
        assert f"{type(last).__name__} {last.snapshot_epoch}" == record, step
        assert (made.read().start_offset, made.batches) == (durable_start, durable), step
        assert replay(made.log)[KEY] == made.state, step
