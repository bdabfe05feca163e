"""How many calls may run after a companion was killed from outside."""

from __future__ import annotations

from share_spark.companion.calls_at_a_time import CallsAtATime


def test_without_a_death_the_setting_holds() -> None:
    calls = CallsAtATime()
    assert [calls.of(most, now_s=0.0) for most in (256, 1, 500)] == [256, 1, 500]


def test_each_death_halves_the_number_down_to_one() -> None:
    calls, found = CallsAtATime(), []
    for now_s in range(5):
        calls.killed(calls.of(10, now_s), now_s)
        found.append(calls.of(10, now_s))
    assert found == [5, 2, 1, 1, 1]


def test_each_minute_without_a_death_doubles_it_up_to_the_setting() -> None:
    calls = CallsAtATime()
    calls.killed(10, 0.0)
    calls.killed(5, 1.0)
    assert [calls.of(10, now_s) for now_s in (60.0, 61.0, 62.0, 121.0, 181.0)] == [2, 4, 4, 8, 10]


def test_a_bound_outlasts_a_time_in_which_fewer_calls_are_allowed() -> None:
    calls = CallsAtATime()
    calls.killed(100, 0.0)
    assert [calls.of(most, now_s) for now_s, most in ((1.0, 16), (2.0, 100), (3_600.0, 16), (3_601.0, 80))] == [
        16,
        50,
        16,
        80,
    ]
