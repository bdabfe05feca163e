"""The judge of the crash comparison convicts each fault of its own, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scoreboard.judge import Call, Score, judge
from tests.scoreboard.records import FAILED, LIMIT, OK, is_poison, status_of

RECORDS = 120


def flawless(cuts: Sequence[int] = ()) -> Iterator[Call]:
    """Yield the calls of a system without a fault; so many of each record are cut before one of them has an answer."""
    for number in range(RECORDS):
        failures = 0
        cut = cuts[number] if number < len(cuts) else 0
        for told in range(1, cut + LIMIT + 1):
            if told <= cut:
                yield Call(number=number, told=told, status=None)
                continue
            status = status_of(number, failures)
            yield Call(number=number, told=told, status=status)
            if status == OK:
                break
            failures += 1


CALLS = list(flawless())
POISON = [number for number in range(RECORDS) if is_poison(number)]
DONE = [number for number in range(RECORDS) if not is_poison(number)]


def faults(score: Score) -> dict[str, int]:
    return {name: getattr(score, name) for name in Score.FAULTS if getattr(score, name)}


@given(st.lists(st.integers(0, 3), max_size=RECORDS))
def test_a_system_without_a_fault_has_none_however_many_calls_were_cut(cuts: list[int]) -> None:
    score = judge(RECORDS, list(flawless(cuts)), DONE, POISON)
    assert faults(score) == {}
    assert score.cut == sum(cuts)


def test_there_is_poison_and_there_are_records_that_fail_once() -> None:
    assert POISON == [13, 113]
    assert sum(call.status == FAILED for call in CALLS) == RECORDS // 20 + LIMIT * len(POISON)


@given(st.sampled_from(DONE))
def test_a_record_without_a_row_is_lost(number: int) -> None:
    assert faults(judge(RECORDS, CALLS, [one for one in DONE if one != number], POISON)) == {"lost": 1}


def test_poison_without_a_letter_is_lost() -> None:
    assert faults(judge(RECORDS, CALLS, DONE, POISON[1:])) == {"lost": 1}


@given(st.sampled_from(DONE))
def test_a_second_row_is_doubled(number: int) -> None:
    assert faults(judge(RECORDS, CALLS, [*DONE, number], POISON)) == {"doubled": 1}


def test_a_second_letter_is_doubled() -> None:
    assert faults(judge(RECORDS, CALLS, DONE, [*POISON, POISON[0]])) == {"doubled": 1}


@given(st.sampled_from(DONE))
def test_a_letter_of_a_record_that_did_not_fail_is_innocent(number: int) -> None:
    score = judge(RECORDS, CALLS, [one for one in DONE if one != number], [*POISON, number])
    assert faults(score) == {"innocent_letters": 1}


def test_a_letter_before_the_last_failure_is_innocent() -> None:
    calls = [call for call in CALLS if (call.number, call.told) != (POISON[0], LIMIT)]
    assert faults(judge(RECORDS, calls, DONE, POISON)) == {"innocent_letters": 1}


@given(st.sampled_from(DONE))
def test_a_call_for_a_record_that_is_done_was_made_again(number: int) -> None:
    told = sum(call.number == number for call in CALLS) + 1
    calls = [*CALLS, Call(number=number, told=told, status=OK)]
    assert faults(judge(RECORDS, calls, DONE, POISON)) == {"called_again": 1}


@pytest.mark.parametrize("more", [-1, 1])
@given(place=st.integers(0, len(CALLS) - 1))
def test_a_count_that_is_not_the_number_of_calls_is_wrong(more: int, place: int) -> None:
    calls = [*CALLS]
    calls[place] = replace(calls[place], told=calls[place].told + more)
    assert faults(judge(RECORDS, calls, DONE, POISON)) == {"wrong_counts": 1}
