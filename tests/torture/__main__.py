"""``python -m tests.torture --seeds 100 --first 0``: plays seeds of the table torture; stops at one that fails."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from share_spark.spark.session import build_session
from tests.torture.table import play

STEPS = 40


def main() -> int:
    """Exit code 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": f"{directory}/warehouse"}
        spark = build_session("table torture", extra_conf=settings)
        for played, seed in enumerate(range(given.first, given.first + given.seeds), 1):
            if (fault := play(spark, Path(directory) / str(seed), seed, STEPS)) is not None:
                print(fault)
                return 1
            if played % 10 == 0 or played == given.seeds:
                print(f"{played} seeds left a right table, {time.perf_counter() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
