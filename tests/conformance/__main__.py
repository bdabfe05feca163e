"""Conformance with Apache Kafka 4.2.0: ``python -m tests.conformance [--scenarios F] [--vectors F]``.

The golden files hold what the released classes of Kafka 4.2.0 answered. Scenarios are replayed against the pure
share-partition leader, vectors against ``combine_batches``. Exit code 1 when a scenario without a flag fails level 1,
or a vector fails; 2 when a file cannot be read; else 0.

Levels: (1) results, SPSO, next fetch offset, in-flight states; (2) also owners and deadlines, can_acquire, end offset,
delivery complete count; (3) also what no client sees: the store's content, writes, cached batches.

Excepted are the scenarios whose persister fails or holds its answer back (features ``persister_failure``,
``async_persister``). A micro-batch has no half-written state: its one append commits, or it does not. Their outcomes
map to ours so:

* A write answered with an error: Kafka rolls back acknowledgements and session ends, and the client gets the error.
  Ours: the append did not commit, so the record never happened; nothing is answered before the commit. The replay
  drops the record. (Renewals and "tracked by offset" live in Kafka's memory only, and outlive a failed write there.)
* A write of a lock timeout that fails: Kafka releases the records anyway. Ours: not committed, so still Acquired
  past their deadline, and released by the next micro-batch that commits. The replay commits without writing.
* A write that stays pending (``hold``): its records can meanwhile be neither acknowledged nor acquired. Ours: the
  next micro-batch begins after the commit, so no request meets a pending record, and a lock that ends meanwhile ends
  after it. Not replayed from there on.
* After FENCED_*: Kafka drops the share-partition and loads it again. Ours: the engine stops, its successor loads
  the log.

Not copied, on purpose: where Kafka throws (``kafka_internal_exception``), ours answers INVALID_RECORD_STATE to an
acknowledgement and gives nothing to a fetch; and where a lock ends below a log start that has passed all in-flight
records, Kafka moves the SPSO *back* to the end of those records, ours never moves it back.

Level 3 differs by design in ``below_start``: what is finished below the SPSO is not kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.compare import run_scenario
from tests.conformance.golden import GoldenFileError, read_scenarios, read_vectors
from tests.conformance.report import failing_vectors, print_outcomes

DATA = Path(__file__).parent / "data"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        scenarios, vectors = read_scenarios(options.scenarios), read_vectors(options.vectors)
    except GoldenFileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    failing = failing_vectors(vectors)
    print(f"vectors: {len(vectors) - len(failing)} of {len(vectors)} pass")
    for name in failing:
        print(f"vector differs: {name}")
    outcomes = [run_scenario(scenario) for scenario in scenarios]
    print_outcomes(outcomes, verbose=options.verbose)
    lost = [outcome for outcome in outcomes if outcome.required and not outcome.passes(1)]
    return 1 if failing or lost else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--scenarios", type=Path, default=DATA / "share_partition.jsonl.gz")
    parser.add_argument("--vectors", type=Path, default=DATA / "combiner.jsonl")
    parser.add_argument("--verbose", action="store_true", help="every difference, in full")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
