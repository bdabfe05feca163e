"""``python -m tests.simulation --seeds 10000 --first 0``: plays seeds on all cores, each without outside members and
with some; stops at the first that fails."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.play import run_seed

_BLOCK = 50


def main() -> int:
    """Exit code 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first")
    given = parser.parse_args()
    began, played = time.perf_counter(), 0
    for seeds, failures in _blocks(given.first, given.seeds):
        played += seeds
        if failures:
            print(failures[0])
            return 1
        if played % 1_000 == 0 or played == given.seeds:
            print(f"{played} seeds kept all promises, {time.perf_counter() - began:.0f} s", flush=True)
    return 0


def _blocks(first: int, seeds: int) -> Iterator[tuple[int, list[str]]]:
    starts = range(first, first + seeds, _BLOCK)
    ends = [min(start + _BLOCK, first + seeds) for start in starts]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(starts) or 1)) as pool:
        played = [pool.submit(_play, start, end) for start, end in zip(starts, ends, strict=True)]
        for start, end, block in zip(starts, ends, played, strict=True):
            failures = block.result()
            if failures:
                pool.shutdown(cancel_futures=True)
            yield end - start, failures


def _play(first: int, end: int) -> list[str]:
    """What was wrong with the first seed of the block that failed. What engines themselves log is not of interest."""
    logging.disable(logging.CRITICAL)
    plays = ((seed, has_clients) for seed in range(first, end) for has_clients in (False, True))
    return next(([found] for seed, has in plays if (found := run_seed(seed, has_clients=has))), [])


if __name__ == "__main__":
    sys.exit(main())
