"""``python -m tests.bench [NAME ...]``: run benchmarks, print their tables, exit 0 whether goals are met or not (they
are shown)."""

from __future__ import annotations

import sys

from share_spark import build_session
from tests.bench import (
    backoff,
    breadth,
    cold_start,
    commits,
    compaction,
    dead_letters,
    demo,
    driver_state,
    fixed_cost,
    gateway,
    history,
    kills,
    latency,
    ledger,
    listening,
    metrics,
    ordered,
    recovery,
    start_and_end,
    throughput,
    waiting,
    window,
    wire,
)
from tests.bench.harness import say
from tests.support.broker import BEST, running_broker

BENCHMARKS = {
    "throughput": throughput.run,
    "fixed_cost": fixed_cost.run,
    "latency": latency.run,
    "cold_start": cold_start.run,
    "start_and_end": start_and_end.run,
    "dead_letters": dead_letters.run,
    "demo": demo.run,
    "history": history.run,
    "breadth": breadth.run,
    "recovery": recovery.run,
    "compaction": compaction.run,
    "driver_state": driver_state.run,
    "ledger": ledger.run,
    "metrics": metrics.run,
    "window": window.run,
    "wire": wire.run,
    "commits": commits.run,
    "gateway": gateway.run,
    "listening": listening.run,
    "backoff": backoff.run,
    "ordered": ordered.run,
    "waiting": waiting.run,
    "kills": kills.run,
}


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all of them."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        say(f"unknown benchmark {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}")
        return 2
    spark = build_session("share-spark-bench", extra_conf={"spark.driver.memory": "4g"})
    with running_broker(compiler=BEST) as broker:
        met = {name: BENCHMARKS[name](spark, broker.bootstrap) for name in names or BENCHMARKS}
    spark.stop()
    say("\n" + ", ".join(f"{name}: {'goals met' if good else 'a goal was missed'}" for name, good in met.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
