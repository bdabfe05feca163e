"""Attempts that end without an acknowledgement: what is charged, who is suspected, and who is archived for it."""

from __future__ import annotations

import pytest

from share_spark.model.records import Doubt
from share_spark.model.requests import AnsweredRange, LoseAttempts, Loss, ReleaseMember, Trace, TracedRange
from share_spark.partition import PartitionLimits
from tests.support.share_partition import ACCEPT, REJECT, RELEASE, Partition

pytestmark = pytest.mark.usefixtures("window_form")

LOCK_MS = 30_000


def partition(limit: int = 5) -> Partition:
    return Partition(limits=PartitionLimits(max_delivery_count=limit, max_record_locks=10**7))


def crash(leader: Partition, *traces: Trace) -> None:
    leader.advance(LOCK_MS, lost=True, traces=traces)


def doubts(leader: Partition) -> list[tuple[int, int, int, str]]:
    return [(run.first_offset, run.last_offset, run.delivery_count, run.doubt.name) for run in leader.state.in_flight]


def entered(member: str, *ranges: tuple[int, int, int, Loss]) -> Trace:
    return Trace(member, tuple(TracedRange(*found) for found in ranges))


def test_after_one_death_without_a_trace_all_come_back_together() -> None:
    leader = partition()
    leader.fetch("a", (0, 99))
    crash(leader)
    assert doubts(leader) == [(0, 99, 1, "LOST_ONCE")]
    assert leader.fetch("b", (0, 149)) == [(0, 99, 2), (100, 149, 1)]


def test_after_the_second_they_are_suspects_and_wait() -> None:
    leader = partition()
    for member in "ab":
        leader.fetch(member, (0, 99))
        crash(leader)
    assert doubts(leader) == [(0, 99, 2, "LOST_TWICE")]
    assert leader.fetch("c", (0, 149)) == [(100, 149, 1)]


def test_a_piece_that_is_lost_is_searched_and_the_others_are_acquitted_for_now() -> None:
    leader = partition()
    for member in "ab":
        leader.fetch(member, (0, 99))
        crash(leader)
    assert leader.fetch_suspects("c", Doubt.LOST_TWICE, 20) == [(0, 19, 3)]
    crash(leader)
    assert doubts(leader) == [(0, 19, 3, "LOST_IN_PIECE"), (20, 99, 2, "LOST_TWICE")]
    assert leader.fetch("d", (0, 99), searched=Doubt.LOST_IN_PIECE) == [(20, 99, 3)]
    assert doubts(leader)[1] == (20, 99, 3, "LOST_ONCE")


def test_the_last_step_is_one_record_alone_and_only_that_is_archived() -> None:
    leader = partition(limit=2)
    for member in "ab":
        leader.fetch(member, (0, 3))
        crash(leader)
    leader.fetch_suspects("c", Doubt.LOST_TWICE, 2)
    crash(leader)
    leader.fetch_suspects("d", Doubt.LOST_IN_PIECE, 2)
    crash(leader)
    assert doubts(leader) == [(0, 1, 4, "ACCUSED"), (2, 3, 2, "LOST_TWICE")]
    for count in (5, 6):
        assert leader.fetch_suspects("e", Doubt.ACCUSED, 1, alone=True) == [(0, 0, count)]
        assert doubts(leader)[0] == (0, 0, count, "ALONE")
        crash(leader)
    assert doubts(leader) == [(1, 1, 4, "ACCUSED"), (2, 3, 2, "LOST_TWICE")]


def test_an_acknowledgement_clears_all_doubt() -> None:
    leader = partition()
    leader.fetch("a", (0, 3))
    crash(leader)
    leader.fetch("b", (0, 3))
    leader.ack("b", (0, 1, RELEASE))
    assert doubts(leader) == [(0, 1, 2, "NONE"), (2, 3, 2, "LOST_ONCE")]


def test_a_trace_says_who_was_in_the_handler() -> None:
    leader = partition()
    leader.fetch("a", (0, 9))
    crash(leader, entered("a", (0, 3, 1, Loss.FINISHED), (4, 4, 1, Loss.IN_HANDLER)))
    assert doubts(leader) == [(0, 3, 1, "NONE"), (4, 4, 1, "ACCUSED"), (5, 9, 0, "NONE")]


def test_a_trace_of_an_earlier_attempt_says_nothing() -> None:
    leader = partition()
    leader.fetch("a", (0, 1))
    leader.ack("a", (0, 1, RELEASE))
    leader.fetch("a", (0, 1))
    crash(leader, entered("a", (0, 1, 1, Loss.IN_HANDLER)))
    assert doubts(leader) == [(0, 1, 1, "NONE")]


def test_a_trace_is_of_its_member() -> None:
    leader = partition()
    leader.fetch("a", (0, 1))
    leader.fetch("b", (2, 3))
    crash(leader, entered("b"))
    assert doubts(leader) == [(0, 1, 1, "LOST_ONCE"), (2, 3, 0, "NONE")]


def test_what_was_never_entered_is_no_attempt_however_often() -> None:
    leader = partition(limit=2)
    for _ in range(10):
        assert leader.fetch("a", (0, 3)) == [(0, 3, 1)]
        crash(leader, entered("a"))
    assert leader.window == "0-4: 0-3 V0"


def test_what_was_throttled_is_no_attempt_however_often() -> None:
    leader = partition(limit=2)
    for _ in range(10):
        assert leader.fetch("a", (0, 3)) == [(0, 3, 1)]
        crash(leader, entered("a", (0, 3, 1, Loss.THROTTLED)))
    assert leader.window == "0-4: 0-3 V0"


def test_what_was_throttled_is_as_suspect_as_before() -> None:
    leader = partition()
    leader.fetch("a", (0, 1))
    crash(leader, entered("a", (0, 0, 1, Loss.IN_HANDLER)))
    leader.fetch_suspects("b", Doubt.ACCUSED, 1, alone=True)
    leader.ask(LoseAttempts(member_id="b", ranges=((0, 0, Loss.THROTTLED),)))
    assert doubts(leader) == [(0, 0, 1, "ACCUSED"), (1, 1, 0, "NONE")]


@pytest.mark.parametrize("loss", [Loss.FINISHED, Loss.AMONG_OTHERS, Loss.UNKNOWN, Loss.AFTER_HANDLER])
def test_no_innocent_is_archived_whatever_its_count(loss: Loss) -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 3))
    leader.ack("a", (0, 3, RELEASE))
    leader.fetch("a", (0, 3))
    leader.ask(LoseAttempts(member_id="a", ranges=((0, 3, loss),)))
    assert leader.window == "0-4: 0-3 V2"


def test_the_only_one_in_a_handler_is_archived_at_the_limit() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 3))
    crash(leader, entered("a", (1, 1, 1, Loss.IN_HANDLER)))
    for count in (2, 3):
        assert leader.fetch_suspects("b", Doubt.ACCUSED, 100) == [(1, 1, count)]
        crash(leader, entered("b", (1, 1, count, Loss.IN_HANDLER)))
    assert leader.window == "0-4: 0 V0, 1 X3, 2-3 V0"


def test_one_that_is_not_accused_is_not_archived_for_one_death_whatever_its_count() -> None:
    """Two engines were done with it and died in others."""
    leader = partition(limit=2)
    for count in (1, 2):
        leader.fetch("a", (0, 1))
        crash(leader, entered("a", (0, 1, count, Loss.FINISHED)))
    leader.fetch("a", (0, 1))
    crash(leader, entered("a", (0, 0, 3, Loss.FINISHED), (1, 1, 3, Loss.IN_HANDLER)))
    assert doubts(leader) == [(0, 0, 3, "NONE"), (1, 1, 3, "ACCUSED")]


def finished(leader: Partition, times: int) -> None:
    """Engines were done with record 0 so often, and died in another."""
    for _ in range(times):
        [(_, _, count)] = leader.fetch("a", (0, 0))
        crash(leader, entered("a", (0, 0, count, Loss.FINISHED)))
    assert leader.window == f"0-1: 0 V{times}"


@pytest.mark.parametrize("times", [1, 3, 30])
def test_attempts_that_finished_leave_a_record_as_many_deaths_of_its_own(times: int) -> None:
    """The first of them only accuses it."""
    leader = partition(limit=3)
    finished(leader, times)
    leader.fetch("a", (0, 0))
    crash(leader, entered("a", (0, 0, times + 1, Loss.IN_HANDLER)))
    for count in range(times + 2, times + 5):
        assert leader.window == f"0-1: 0 V{count - 1}"
        assert leader.fetch_suspects("b", Doubt.ACCUSED, 1) == [(0, 0, count)]
        outcome = leader.advance(LOCK_MS, lost=True, traces=(entered("b", (0, 0, count, Loss.IN_HANDLER)),))
    assert [tuple(found)[:3] for found in outcome.archived] == [(0, 0, times + 4)]


@pytest.mark.parametrize("loss", [Loss.FINISHED, Loss.AMONG_OTHERS, Loss.IN_HANDLER, Loss.UNKNOWN, Loss.AFTER_HANDLER])
def test_a_record_that_was_in_flight_as_engines_died_may_fail_as_often_as_any_other(loss: Loss) -> None:
    """A death and a failure are one failure; the delivery count goes on."""
    leader = partition(limit=2)
    for window in ("0-1: 0 V2", "1-1"):
        leader.fetch("a", (0, 0))
        leader.ask(LoseAttempts(member_id="a", ranges=(AnsweredRange(0, 0, loss),)))
        (run,) = leader.state.in_flight
        leader.fetch_suspects("a", run.doubt, 1)
        leader.ack("a", (0, 0, RELEASE))
        assert leader.window == window


def test_what_is_taken_back_leaves_both_counts_as_they_were() -> None:
    leader = partition()
    finished(leader, 2)
    for loss in (Loss.NOT_ENTERED, Loss.THROTTLED):
        leader.fetch("a", (0, 0))
        leader.ask(LoseAttempts(member_id="a", ranges=(AnsweredRange(0, 0, loss),)))
        (run,) = leader.state.in_flight
        assert (run.delivery_count, run.excused) == (2, 2)


def test_what_is_finished_has_nothing_excused() -> None:
    """So it joins with its neighbours."""
    leader = partition()
    finished(leader, 1)
    leader.fetch("a", (0, 2))
    leader.ack("a", (2, 2, RELEASE))
    leader.fetch("a", (0, 2))
    leader.ack("a", (0, 0, REJECT))
    assert leader.state.start_offset == 1
    leader.fetch("b", (3, 3))
    leader.ask(LoseAttempts(member_id="a", ranges=(AnsweredRange(2, 2, Loss.FINISHED),)))
    leader.fetch("a", (2, 2))
    leader.ack("a", (2, 2, ACCEPT))
    assert [run.excused for run in leader.state.in_flight] == [0, 0, 0]


def test_one_whose_engine_died_after_the_handler_is_acquitted_up_to_twice_the_limit() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 0))
    crash(leader, entered("a", (0, 0, 1, Loss.IN_HANDLER)))
    for count in (2, 3, 4):
        assert leader.fetch_suspects("b", Doubt.ACCUSED, 1, alone=True) == [(0, 0, count)]
        crash(leader, entered("b", (0, 0, count, Loss.AFTER_HANDLER)))
    assert leader.window == "1-1"


def test_a_worker_takes_only_what_its_member_holds() -> None:
    leader = partition()
    leader.fetch("a", (0, 4))
    leader.fetch("b", (5, 9))
    leader.ask(LoseAttempts(member_id="a", ranges=((3, 6, Loss.AMONG_OTHERS),)))
    assert leader.window == "0-10: 0-2 Q1, 3-4 V1, 5-9 Q1"


def test_the_log_start_may_have_moved_into_what_is_lost() -> None:
    leader = partition()
    leader.fetch("a", (0, 4))
    leader.log_start(2)
    leader.ask(LoseAttempts(member_id="a", ranges=((0, 4, Loss.FINISHED),)))
    assert leader.window == "2-5: 2-4 V1"


def test_what_is_given_back_uncharged_may_be_tried_as_often_as_before() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 1))
    leader.ask(ReleaseMember(member_id="a", charged=False))
    assert leader.window == "0-2: 0-1 V0"
