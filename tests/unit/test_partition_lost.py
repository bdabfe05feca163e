"""What a crash takes: suspects come back in ever smaller pieces, and only one that ran alone is archived for it."""

from __future__ import annotations

import pytest

from share_spark.model.requests import LoseAttempts, ReleaseMember
from share_spark.partition import PartitionLimits
from share_spark.partition.lost import piece_size
from tests.support.share_partition import RELEASE, Partition

LOCK_MS = 30_000


def partition(limit: int = 5) -> Partition:
    return Partition(limits=PartitionLimits(max_delivery_count=limit, max_record_locks=10**7))


def crash(leader: Partition) -> None:
    leader.advance(LOCK_MS, lost=True)


def sizes(lost: int, limit: int) -> list[int]:
    found = [lost]
    while len(found) < limit:
        found.append(piece_size(found[-1], len(found), limit))
    return found


@pytest.mark.parametrize(
    ("lost", "limit", "expected"),
    [
        (1_000_000, 5, [1_000_000, 31_250, 977, 31, 1]),
        (100_000, 5, [100_000, 5_556, 309, 18, 1]),
        (100_000, 2, [100_000, 1]),
        (1, 4, [1, 1, 1, 1]),
        (5, 3, [5, 2, 1]),
    ],
)
def test_pieces_shrink_by_the_same_factor_to_one(lost: int, limit: int, expected: list[int]) -> None:
    assert sizes(lost, limit) == expected


@pytest.mark.parametrize("limit", range(2, 26))
@pytest.mark.parametrize("lost", [1, 2, 3, 7, 1_000, 12_345, 10**9])
def test_the_last_attempt_is_always_alone(lost: int, limit: int) -> None:
    found = sizes(lost, limit)
    assert found[-1] == 1
    assert found == sorted(found, reverse=True)


def test_what_was_lost_waits_for_an_attempt_of_its_own() -> None:
    leader = partition()
    leader.fetch("a", (0, 99))
    crash(leader)
    assert leader.fetch("b", (0, 149)) == [(100, 149, 1)]
    assert leader.fetch_suspects("b") == ((0, 24, 2),)
    assert leader.fetch_suspects("b") == ((25, 49, 2),)


def test_pieces_are_measured_in_records_not_ranges() -> None:
    leader = partition()
    leader.fetch("a", (0, 9))
    leader.ack("a", *[(offset, offset, 1) for offset in (1, 4, 7)])
    crash(leader)
    assert leader.fetch_suspects("b") == ((0, 0, 2), (2, 3, 2), (5, 5, 2))


def test_those_with_most_attempts_left_come_first() -> None:
    leader = partition()
    leader.fetch("a", (0, 15))
    crash(leader)
    assert leader.fetch_suspects("b") == ((0, 7, 2),)
    crash(leader)
    assert leader.fetch_suspects("c") == ((8, 15, 2),)


def test_an_answer_clears_the_suspicion() -> None:
    leader = partition()
    leader.fetch("a", (0, 3))
    crash(leader)
    leader.fetch_suspects("b")
    leader.ack("b", (0, 1, RELEASE))
    assert leader.fetch("c", (0, 3)) == [(0, 1, 3)]


def test_one_lost_beside_others_at_the_limit_gets_one_attempt_more_alone() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 2))
    leader.ack("a", (0, 2, RELEASE))
    leader.fetch("a", (0, 2))
    crash(leader)
    assert leader.window == "0-3: 0-2 V2"
    assert leader.fetch_suspects("b") == ((0, 0, 3),)
    crash(leader)
    assert leader.window == "1-3: 1-2 V2"


def test_one_that_was_lost_alone_at_the_limit_is_archived() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 1))
    crash(leader)
    leader.fetch_suspects("b")
    response = leader.ask(LoseAttempts(member_id="b", ranges=((0, 1),)))
    assert [tuple(run) for run in response.archived] == [(0, 0, 2, "delivery limit reached")]


def test_one_that_was_not_in_its_handler_is_acquitted_up_to_twice_the_limit() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 0))
    crash(leader)
    for count in (2, 3, 4):
        assert leader.fetch_suspects("b") == ((0, 0, count),)
        leader.advance(LOCK_MS, lost=True, in_handler=frozenset({"somebody else"}))
    assert leader.window == "1-1"


def test_one_that_was_in_its_handler_is_archived() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 0))
    crash(leader)
    leader.fetch_suspects("b")
    leader.advance(LOCK_MS, lost=True, in_handler=frozenset({"b"}))
    assert leader.window == "1-1"


def test_a_worker_takes_only_what_its_member_holds() -> None:
    leader = partition()
    leader.fetch("a", (0, 4))
    leader.fetch("b", (5, 9))
    leader.ask(LoseAttempts(member_id="a", ranges=((3, 6),)))
    assert leader.window == "0-10: 0-2 Q1, 3-4 V1, 5-9 Q1"


def test_what_is_given_back_uncharged_may_be_tried_as_often_as_before() -> None:
    leader = partition(limit=2)
    leader.fetch("a", (0, 1))
    leader.ask(ReleaseMember(member_id="a", charged=False))
    assert leader.window == "0-2: 0-1 V0"
    leader.fetch("a", (0, 1))
    crash(leader)
    leader.fetch_suspects("b")
    leader.ask(ReleaseMember(member_id="b", charged=False))
    assert leader.window == "0-2: 0 V1, 1 V1"
    assert leader.fetch("c", (0, 1)) == [], "still in doubt"
