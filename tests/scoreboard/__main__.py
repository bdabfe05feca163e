"""``make scoreboard``: what crashes cost, in several systems. Prints a table, and writes build/scoreboard.json."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from tests.bench.harness import say
from tests.scoreboard.campaign import play
from tests.scoreboard.judge import Score
from tests.scoreboard.systems import CONTESTANTS, Contestant

RESULTS = Path("build/scoreboard.json")


def table(scores: Mapping[str, Score], kills: int) -> Iterator[str]:
    """Yield the lines of a table: what went wrong per 1,000 crashes."""
    names = [name.replace("_", " ") for name in Score.FAULTS]
    yield f"| per 1,000 crashes, of {kills} | {' | '.join(names)} | calls, cut |"
    yield "|---" * (len(names) + 2) + "|"
    for text, score in scores.items():
        found = " | ".join(f"{getattr(score, name) * 1_000 / kills:,.0f}" for name in Score.FAULTS)
        yield f"| {text} | {found} | {score.calls:,}, {score.cut:,} |"


def chosen(names: list[str] | None) -> Iterator[Contestant]:
    """Yield those that were asked for, all without a choice; one that is not installed is skipped with a line."""
    for contestant in CONTESTANTS:
        if names and contestant.name not in names:
            continue
        if (missing := contestant.missing()) is not None:
            say(f"{contestant.name} is left out; it needs {missing}")
            continue
        yield contestant


def main() -> int:
    """Play with each, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.scoreboard", description="what crashes cost")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[one.name for one in CONTESTANTS], action="append", help="default: all")
    given = parser.parse_args()
    scores = {}
    for contestant in chosen(given.only):
        place = Path(tempfile.mkdtemp(prefix="share-spark-scoreboard-"))
        scores[contestant.text] = play(contestant, place, kills=given.kills, seed=given.seed)
        say(f"  {scores[contestant.text]}")
        shutil.rmtree(place)
    say("\n" + "\n".join(table(scores, given.kills)))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({text: asdict(score) for text, score in scores.items()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
