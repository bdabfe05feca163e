"""Commands beside a run: compact, history, verify on stored state, doctor on the installation. They start a session of
their own only where it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from share_spark.cli.arguments import parse_compaction, parsed
from share_spark.cli.command import FAILED, command_session, spark_when_needed
from share_spark.delta.location import Location
from share_spark.spark.capabilities import Verdict

if TYPE_CHECKING:
    from share_spark.spark.installation import Finding


def run_prepare(arguments: Sequence[str]) -> int:
    """Run `share-spark prepare`: make what every later start needs. Raises ConfigError, EnvironmentFault."""
    from share_spark.spark.class_archive import make_archive
    from share_spark.spark.jars import jar_paths

    parsed(arguments)
    print(f"jars: {len(jar_paths())} in the cache", flush=True)
    print(f"class-data archive: {make_archive('share_spark.cli.training')}", flush=True)
    return 0


def run_compact(arguments: Sequence[str]) -> int:
    """Run `share-spark compact`. Raises ConfigError, StateError."""
    from share_spark.maintenance.compaction import compact, report_lines

    order = parse_compaction(arguments)
    with spark_when_needed(f"share-spark compact {order.state}") as spark:
        print("\n".join(report_lines(compact(spark, order))), flush=True)
    return 0


def run_history(arguments: Sequence[str]) -> int:
    """Run `share-spark history`. Raises ConfigError, StateError."""
    from share_spark.audit.record_events import history_lines
    from share_spark.cli.histories import RecordOfGroup, histories_of

    given = parsed(arguments)
    record = RecordOfGroup(given.group, given.topic, given.partition, given.offset)
    (found,) = histories_of(given.location, [record])
    print("\n".join(history_lines(found)), flush=True)
    return 0


def run_verify(arguments: Sequence[str]) -> int:
    """Run `share-spark verify`. Returns 0 if all of the log agrees, 1 if something in it does not."""
    from share_spark.audit.verify import verify, verify_lines

    given = parsed(arguments)
    place = Location.parse(given.location)
    with spark_when_needed(f"share-spark verify {given.location}") as spark:
        report = verify(spark, place, given.group, given.bucket)
    print("\n".join(verify_lines(report)), flush=True)
    return 0 if report.agrees else FAILED


def run_doctor(arguments: Sequence[str]) -> int:
    """Run `share-spark doctor`: print a line for each part of the installation; with `--spark` one for each use of
    private API as well, with the effect of a fallback. Returns 1 if no session can be started."""
    from share_spark.spark.installation import findings

    given = parsed(arguments)
    found = findings()
    for line in installation_lines(found):
        print(line, flush=True)
    if any(one.is_fault for one in found):
        return FAILED
    if given.spark:
        _try_private_api()
    else:
        print(NOT_TRIED, flush=True)
    return 0


NOT_TRIED = """
Not tried: Spark itself, and what is used of its private API and of Delta's. --spark starts a session and tries each,
which takes about a minute."""


def _try_private_api() -> None:
    from share_spark.spark.probes import verdicts

    with command_session("share-spark doctor") as spark:
        found = verdicts(spark)
    print("\n".join(["", *doctor_lines(found)]), flush=True)


def installation_lines(found: Sequence[Finding]) -> list[str]:
    """Return the findings as lines of text."""
    width = max(len(one.name) for one in found)
    return [f"  {one.name:<{width}}  {'FAULT  ' if one.is_fault else ''}{one.text}" for one in found]


def doctor_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the verdicts as lines of text."""
    width = max(len(one.capability.name) for one in verdicts)
    return [f"  {one.capability.name:<{width}}  {_meaning(one)}" for one in verdicts]


def _meaning(found: Verdict) -> str:
    if found.available:
        return f"available  {found.capability.purpose}"
    weaker = f"; weaker: {found.capability.weakens}" if found.capability.weakens else ""
    return f"fallback   {found.capability.fallback}{weaker} ({found.reason})"
