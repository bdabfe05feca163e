"""Commands beside a run: compact, history, verify on state that is stored, doctor on the installation. Each in a
session of its own."""

from __future__ import annotations

from collections.abc import Sequence

from share_spark.cli.arguments import parse_compaction, parsed
from share_spark.cli.command import FAILED, command_session
from share_spark.delta.location import Location
from share_spark.spark.capabilities import Verdict


def run_prepare(arguments: Sequence[str]) -> int:
    """`share-spark prepare`: what every later start needs. Raises ConfigError, EnvironmentFault."""
    from share_spark.spark.class_archive import make_archive
    from share_spark.spark.jars import jar_paths

    parsed(arguments)
    print(f"jars: {len(jar_paths())} in the cache", flush=True)
    print(f"class-data archive: {make_archive('share_spark.cli.training')}", flush=True)
    return 0


def run_compact(arguments: Sequence[str]) -> int:
    """`share-spark compact`. Raises ConfigError, StateError."""
    from share_spark.maintenance.compaction import compact, report_lines

    order = parse_compaction(arguments)
    with command_session(f"share-spark compact {order.state}") as spark:
        print("\n".join(report_lines(compact(spark, order))), flush=True)
    return 0


def run_history(arguments: Sequence[str]) -> int:
    """`share-spark history`. Raises ConfigError, StateError."""
    from share_spark.audit.history_report import history_lines
    from share_spark.cli.histories import RecordOfGroup, histories_of

    given = parsed(arguments)
    record = RecordOfGroup(given.group, given.topic, given.partition, given.offset)
    (found,) = histories_of(given.location, [record])
    print("\n".join(history_lines(found)), flush=True)
    return 0


def run_verify(arguments: Sequence[str]) -> int:
    """`share-spark verify`. 0: all of the log agrees; 1: something in it does not."""
    from share_spark.audit.verify import verify
    from share_spark.audit.verify_report import verify_lines

    given = parsed(arguments)
    place = Location.parse(given.location)
    with command_session(f"share-spark verify {given.location}") as spark:
        report = verify(spark, place, given.group, given.bucket)
    print("\n".join(verify_lines(report)), flush=True)
    return 0 if report.agrees else FAILED


def run_doctor(arguments: Sequence[str]) -> int:
    """`share-spark doctor`: a line for each use of private API, with what the fallback means where it is taken."""
    from share_spark.spark.probes import verdicts

    parsed(arguments)
    with command_session("share-spark doctor") as spark:
        found = verdicts(spark)
    print("\n".join(doctor_lines(found)), flush=True)
    return 0


def doctor_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """As readable lines."""
    width = max(len(one.capability.name) for one in verdicts)
    return [f"  {one.capability.name:<{width}}  {_meaning(one)}" for one in verdicts]


def _meaning(found: Verdict) -> str:
    if found.available:
        return f"available  {found.capability.purpose}"
    weaker = f"; weaker: {found.capability.weakens}" if found.capability.weakens else ""
    return f"fallback   {found.capability.fallback}{weaker} ({found.reason})"
