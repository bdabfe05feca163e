"""How many records wait ahead: as many as were called lately."""

from __future__ import annotations

import pytest

from share_spark.companion.pace import Pace

CALLS, LATENCY_S = 4, 0.02
"""At a time, and how long each takes: 200 a second."""


def test_a_companion_that_called_nothing_has_no_pace() -> None:
    pace = Pace()
    pace.note(0, 5.0)
    assert pace.recent == 0


def test_the_calls_of_the_last_second_count() -> None:
    pace = Pace()
    for look in range(100):
        pace.note(20 * look, 0.1 * look)
    assert pace.recent == pytest.approx(200, abs=20)


def test_where_looks_are_rare_the_calls_since_the_one_before_the_last_count() -> None:
    pace = Pace()
    for look in range(10):
        pace.note(700 * look, 7.0 * look)
    assert pace.recent == 1_400


def test_an_old_pace_is_forgotten() -> None:
    pace = Pace()
    for look in range(100):
        pace.note(min(1_000, 20 * look), 0.1 * look)
    assert pace.recent == 0


@pytest.mark.parametrize("between_s", [0.05, 0.1, 0.7, 5.0])
def test_as_many_wait_ahead_that_short_calls_never_run_out(between_s: float) -> None:
    """A companion that gets records each ``between_s`` seconds, and calls as many meanwhile as it can."""
    pace, called, in_flight = Pace(), 0, 2 * CALLS
    looks = int(20 / between_s) + 8
    for look in range(looks):
        done = min(in_flight, int(between_s * CALLS / LATENCY_S))
        called, in_flight = called + done, in_flight - done
        pace.note(called, look * between_s)
        in_flight = max(in_flight, 2 * CALLS, pace.recent)
    assert in_flight >= between_s * CALLS / LATENCY_S
