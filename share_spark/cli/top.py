"""`share-spark top`: the progress of groups, in a terminal. No JVM."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from share_spark.cli.arguments import parsed
from share_spark.cli.command import FAILED, table
from share_spark.cli.groups import UNKNOWN, admin_of, warn_of_unknown_lag
from share_spark.cli.signals import asked_to_end
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.web.drawings import span
from share_spark.web.pictures import engine_word, total_lag

if TYPE_CHECKING:
    from share_spark.admin.group_details import GroupListing, PartitionOffsets
    from share_spark.admin.share_group_admin import GroupsLook

_CLEAR = "\x1b[H\x1b[J"

COLUMNS = ("GROUP", "STATE", "ENGINE", "TOPIC", "LAG", "FINISHED/S", "TO GO", "ACQUIRED", "WAITING")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTotals:
    """A topic of a group: offsets of all its partitions. ``engine``: that it runs, or how it has ended. ``finished``:
    below the SPSO, or final in a window."""

    state: str
    engine: str
    lag: int | None
    finished: int
    acquired: int
    available: int


Totals = Mapping[tuple[str, str], TopicTotals]
"""The totals by group and topic."""


class TotalsLook(NamedTuple):
    """The totals of one look. ``faults``: why the lag of some groups is not known, each once."""

    totals: Totals
    faults: Sequence[str]


def run_top(arguments: Sequence[str]) -> int:
    """Show the totals until Ctrl-C or SIGTERM, or for the given count; return 1 if the last look did not know the lag
    of a group. Raises ConfigError, StateError."""
    given = parsed(arguments)
    admin = admin_of(given)
    before, began = totals_of(admin.look(), given.group), time.monotonic()
    with asked_to_end() as over:
        shown = 0
        while shown != given.count and not over.wait(given.interval):
            now, ended = totals_of(admin.look(), given.group), time.monotonic()
            text = table(COLUMNS, rows_of(before.totals, now.totals, ended - began))
            print(f"{_CLEAR if sys.stdout.isatty() else ''}{text}\n", flush=True)
            warn_of_unknown_lag(now.faults)
            before, began, shown = now, ended, shown + 1
    return FAILED if before.faults else 0


def totals_of(look: GroupsLook, groups: Sequence[str]) -> TotalsLook:
    """Return the totals of these groups, or of all. Raises StateError."""
    found: dict[tuple[str, str], TopicTotals] = {}
    faults: dict[str, None] = {}
    for name in groups or [one.group_id for one in look.list_groups()]:
        group = look.describe_group(name)
        rows, fault = look.known_offsets(name)
        faults |= dict.fromkeys([fault] if fault else [])
        by_topic: dict[str, list[PartitionOffsets]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        # A group without topics has a row as well: its engine may have died before the first commit.
        found |= {(name, topic): _totals(group, some) for topic, some in (by_topic or {UNKNOWN: []}).items()}
    return TotalsLook(found, list(faults))


def _totals(group: GroupListing, rows: Sequence[PartitionOffsets]) -> TopicTotals:
    begun = [row for row in rows if row.start_offset >= 0]
    return TopicTotals(
        state=group.phase.value,
        engine=engine_word(group.engine, wall_clock_ms()),
        lag=total_lag(begun) if rows else None,
        finished=sum(row.start_offset + row.acknowledged + row.archived for row in begun),
        acquired=sum(row.acquired for row in begun),
        available=sum(row.available for row in begun),
    )


def rows_of(before: Totals, now: Totals, seconds: float) -> list[Sequence[object]]:
    """Return COLUMNS of each topic, by what has changed in ``seconds``."""
    return [
        (
            group,
            one.state,
            one.engine,
            topic,
            _text(one.lag),
            f"{rate:,.0f}",
            to_go(one.lag, rate),
            one.acquired,
            one.available,
        )
        for (group, topic), one in now.items()
        for rate in [max(0, one.finished - before.get((group, topic), one).finished) / max(seconds, 1e-3)]
    ]


def _text(lag: int | None) -> str:
    return UNKNOWN if lag is None else f"{lag:,}"


def to_go(lag: int | None, rate: float) -> str:
    """Return the time until the lag is 0 at this rate, if no record comes in."""
    if lag == 0:
        return span(0)
    return UNKNOWN if lag is None or not rate else span(round(1_000 * lag / rate))
