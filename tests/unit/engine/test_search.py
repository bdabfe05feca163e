"""Which suspects run next, and how many micro-batches a search takes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.planning import IN_TURN, MOST_REST_MS, Search
from share_spark.engine.step import PartitionSummary
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.records import Doubt
from share_spark.model.requests import Loss, RetryDelay
from tests.support.answers import answered

KEYS = [SharePartitionKey("g", "t", partition) for partition in range(5)]
Fronts = dict[SharePartitionKey, PartitionSummary]


def summaries(*suspected: tuple[int, int, int]) -> Fronts:
    """Of so many suspects LOST_TWICE, LOST_IN_PIECE and ACCUSED, one share-partition each."""
    return {
        key: PartitionSummary("orders", 0, 10**6, 0, None, None, found)
        for key, found in zip(KEYS, suspected, strict=False)
    }


def test_without_suspects_there_is_nothing_to_search() -> None:
    assert Search().next_piece(summaries((0, 0, 0), (0, 0, 0)), KEYS) is None
    assert Search().next_piece({}, KEYS) is None


def test_the_deepest_doubt_is_searched_first() -> None:
    search = Search()
    for suspected, doubt in [
        ((8, 4, 1), Doubt.ACCUSED),
        ((8, 4, 0), Doubt.LOST_IN_PIECE),
        ((8, 0, 0), Doubt.LOST_TWICE),
    ]:
        piece = search.next_piece(summaries(suspected), KEYS)
        assert piece is not None
        assert piece.searched is doubt


def test_pieces_are_filled_across_share_partitions() -> None:
    """1,000 records that were lost twice: ten pieces of 100."""
    piece = Search().next_piece(summaries((30, 0, 0), (0, 0, 0), (50, 0, 0), (920, 0, 0)), KEYS)
    assert piece is not None
    assert piece.records == {KEYS[0]: 30, KEYS[2]: 50, KEYS[3]: 20}
    assert not piece.alone
    assert not piece.in_turn


def test_share_partitions_that_are_not_read_are_not_searched() -> None:
    """Of a topic that the group no longer subscribes to."""
    piece = Search().next_piece(summaries((0, 0, 7), (0, 0, 5)), KEYS[1:])
    assert piece is not None
    assert piece.records == {KEYS[1]: 5}


def test_accused_records_run_in_turn_and_where_the_dead_leave_no_traces_one_by_one() -> None:
    together = Search().next_piece(summaries((0, 0, IN_TURN + 5)), KEYS)
    assert together is not None
    assert (together.records, together.in_turn, together.alone) == ({KEYS[0]: IN_TURN}, True, False)
    single = Search(one_by_one=True).next_piece(summaries((0, 0, 7)), KEYS)
    assert single is not None
    assert (single.records, single.in_turn, single.alone) == ({KEYS[0]: 1}, True, True)


@pytest.mark.parametrize(
    ("suspected", "is_alone"), [((1, 0, 0), False), ((0, 1, 0), False), ((0, 0, 1), True), ((0, 0, 2), False)]
)
def test_only_an_accused_record_is_alone(suspected: tuple[int, int, int], is_alone: bool) -> None:
    """One that two engines have died with, among whatever, must not be archived for the third death."""
    piece = Search().next_piece(summaries(suspected), KEYS)
    assert piece is not None
    assert piece.alone is is_alone


def test_pieces_keep_their_size_while_a_search_goes_on_and_the_next_search_finds_its_own() -> None:
    search = Search()
    assert [searched(search, left) for left in (1_000, 900, 700, 100)] == [100, 100, 100, 100]
    search.next_piece(summaries((0, 0, 0)), KEYS)
    assert searched(search, 27) == 9


def searched(search: Search, left: int) -> int:
    piece = search.next_piece(summaries((left, 0, 0)), KEYS)
    assert piece is not None
    return sum(piece.records.values())


def test_a_deeper_search_does_not_change_the_pieces_of_the_one_that_waits() -> None:
    search = Search()
    assert searched(search, 1_000) == 100
    search.next_piece(summaries((900, 100, 0)), KEYS)
    assert searched(search, 500) == 100


@settings(deadline=None)
@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=5).filter(any), st.integers(0, 10**9))
def test_one_among_n_is_found_within_three_cube_roots(sizes: list[int], guilty: int) -> None:
    """A record that is lost with whatever piece it is in: the micro-batches until it is alone."""
    total = sum(sizes)
    root = math.ceil(round(math.cbrt(total), 9))
    suspects, micro_batches = total, 0
    for doubt in (Doubt.LOST_TWICE, Doubt.LOST_IN_PIECE, Doubt.ACCUSED):
        search, left, at = Search(one_by_one=True), suspects, guilty % suspects
        while True:
            piece = search.next_piece(summaries(*split(sizes, left, doubt)), KEYS)
            assert piece is not None
            assert piece.searched is doubt
            taken = sum(piece.records.values())
            micro_batches += 1
            if at < taken:
                break
            at, left = at - taken, left - taken
        suspects = taken
    assert suspects == 1
    assert micro_batches <= 3 * root + 3


def split(sizes: list[int], left: int, doubt: Doubt) -> list[tuple[int, int, int]]:
    """So many suspects of this doubt, spread over the share-partitions."""
    found = []
    for size in [*sizes[1:], 10**9]:
        here = [0, 0, 0]
        here[doubt - Doubt.LOST_TWICE] = min(size, left)
        left -= min(size, left)
        found.append((here[0], here[1], here[2]))
    return found


@pytest.mark.parametrize("total", [1, 2, 7, 8, 9, 27, 28, 999, 1_000, 1_001, 10**6, 2 * 10**6])
def test_a_piece_is_a_cube_root_of_what_is_searched(total: int) -> None:
    """As many pieces as the lowest number whose cube is not below the total."""
    size = searched(Search(), total)
    pieces = -(-total // size)
    assert (pieces - 1) ** 3 < total
    assert size <= math.ceil(total / math.cbrt(total) + 1e-6)


def throttled(*delays_ms: int) -> list[AcknowledgedSpan]:
    rows = [(offset, offset, int(Loss.THROTTLED)) for offset in range(len(delays_ms))]
    delays = [RetryDelay(offset, offset, delay_ms) for offset, delay_ms in enumerate(delays_ms)]
    return [AcknowledgedSpan(TopicPartition("orders", 0), answered([*rows, (50, 50, 1)]), (), delays)]


@pytest.mark.parametrize(("delays_ms", "rest_ms"), [((), 0), ((500, 7_000), 7_000), ((3_600_000,), MOST_REST_MS)])
def test_a_search_rests_while_a_service_asks_for_it(delays_ms: tuple[int, ...], rest_ms: int) -> None:
    search = Search(comes_next=False)
    search.after(throttled(*delays_ms), 100)
    assert (search.rests_until_ms, search.turn) == (100 + rest_ms, 0)


def test_throttled_records_of_others_do_not_keep_a_search_waiting() -> None:
    search = Search(comes_next=True, rests_until_ms=50)
    search.after(throttled(7_000), 100)
    assert (search.rests_until_ms, search.turn) == (50, 0)
