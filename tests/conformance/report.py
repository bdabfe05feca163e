"""Print how many scenarios and vectors pass, and where the failing ones fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from share_spark.coordinator import combine_batches
from share_spark.model.records import StateBatch
from tests.conformance.compare import LEVELS, ReplayOutcome
from tests.conformance.golden import Golden

SHORT = 300
SHOWN_FLAGGED = 5


def failing_vectors(vectors: Iterable[Golden]) -> list[str]:
    """Names of the vectors whose merge differs per offset (neighbours may be left unjoined in them)."""
    failing = []
    for vector in vectors:
        ours = combine_batches(
            [StateBatch(*batch) for batch in vector["existing"]],
            [StateBatch(*batch) for batch in vector["new"]],
            vector["start_offset"],
        )
        expected = [StateBatch(*batch) for batch in vector["expected"]]
        if ours != combine_batches((), expected, -1):
            failing.append(vector["name"])
    return failing


def print_outcomes(outcomes: Sequence[ReplayOutcome], *, verbose: bool) -> None:
    """The table by level, the one by flag, then the first difference of each failing scenario."""
    required = [outcome for outcome in outcomes if outcome.required]
    groups = {"required (no flag)": required, "all": list(outcomes)}
    groups["flagged, not excepted"] = [o for o in outcomes if not o.required and not o.excepted]
    for feature in ("persister_failure", "async_persister"):
        named = f"excepted: {feature}"
        groups[named] = [o for o in outcomes if feature in o.scenario["features"]]
    for flag in sorted({flag for o in outcomes for flag in o.scenario["differs_from_seed"]}):
        groups[f"flag: {flag}"] = [o for o in outcomes if flag in o.scenario["differs_from_seed"]]
    print(f"{'scenarios':42}{'of':>6}" + "".join(f"{f'level {n}':>9}" for n in LEVELS))
    for name, members in groups.items():
        passed = (sum(o.passes(level) for o in members) for level in LEVELS)
        print(f"{name:42}{len(members):6}" + "".join(f"{count:9}" for count in passed))
    _print_failing("required, level", [o for o in required if not o.passes(2)], verbose=True)
    flagged = [o for o in outcomes if not o.required and not o.passes(2)]
    _print_failing("not required, level", flagged, verbose=verbose)
    _print_reasons([o for o in outcomes if o.passes(2) and not o.passes(3)])


def _print_failing(title: str, outcomes: Sequence[ReplayOutcome], *, verbose: bool) -> None:
    shown = outcomes if verbose else outcomes[:SHOWN_FLAGGED]
    for outcome in shown:
        level = min(outcome.first)
        text = f"{title} {level}: {outcome.scenario['name']}: {outcome.first[level]}"
        print(text if verbose else text[:SHORT].replace("\n", " "))
    if len(shown) < len(outcomes):
        print(f"... and {len(outcomes) - len(shown)} more not required (--verbose shows them)")


def _print_reasons(outcomes: Sequence[ReplayOutcome]) -> None:
    """Level 3 is about what no client sees; what its first differences are in is enough."""
    reasons = Counter(outcome.first[3].what for outcome in outcomes)
    for what, count in reasons.most_common():
        print(f"level 3 only: {count} differ first in {what}")
