"""A short form of the crash comparison: the real programs, a kill or none, and the judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scoreboard.campaign import BURST, play
from tests.scoreboard.judge import Score
from tests.scoreboard.records import LIMIT, LOCK_MS, is_poison
from tests.scoreboard.systems import CONTESTANTS, Contestant, numbers_in

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CALLS = BURST + BURST // 20 + (LIMIT - 1) * BURST // 100
"""Of a system without a fault, for a burst: one of 20 records fails once, one of 100 five times."""

NONE = dict.fromkeys(Score.FAULTS, 0)


def faults(score: Score) -> dict[str, int]:
    return {name: getattr(score, name) for name in Score.FAULTS}


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda one: one.name)
def test_without_a_kill_each_system_is_flawless(contestant: Contestant, tmp_path: Path) -> None:
    if (missing := contestant.missing()) is not None:
        pytest.skip(f"needs {missing}")
    score = play(contestant, tmp_path, kills=0, seed=1, quiet_s=LOCK_MS / 1_000 + 2)
    assert faults(score) == NONE
    assert (score.records, score.calls, score.cut) == (BURST, CALLS, 0)
    assert sorted(numbers_in(tmp_path / "letters")) == list(filter(is_poison, range(BURST)))


def test_a_crash_of_share_spark_costs_what_it_cut_and_calls_of_the_last_moment(tmp_path: Path) -> None:
    """Rows reach the ledger some milliseconds after their call, so the calls of these are made again; their counts are
    right all the same."""
    score = play(CONTESTANTS[0], tmp_path, kills=1, seed=1, quiet_s=LOCK_MS / 1_000 + 2)
    assert faults(score) == {**NONE, "called_again": score.called_again}
    assert score.calls - score.cut == 2 * CALLS + score.called_again
    assert score.called_again < BURST // 10
