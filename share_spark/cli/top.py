"""`share-spark top`: how fast groups move, in a terminal. No JVM."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from share_spark.cli.arguments import parsed
from share_spark.cli.group_tables import table
from share_spark.cli.groups import UNKNOWN, admin_of
from share_spark.cli.signals import asked_to_end
from share_spark.web.drawings import span
from share_spark.web.pictures import total_lag

if TYPE_CHECKING:
    from share_spark.admin.group_details import PartitionOffsets
    from share_spark.admin.share_group_admin import GroupsLook

_CLEAR = "\x1b[H\x1b[J"

COLUMNS = ("GROUP", "STATE", "TOPIC", "LAG", "FINISHED/S", "TO GO", "ACQUIRED", "WAITING")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTotals:
    """A topic of a group: offsets of all its partitions. ``finished``: below the SPSO, or final in a window."""

    state: str
    lag: int | None
    finished: int
    acquired: int
    available: int


Totals = Mapping[tuple[str, str], TopicTotals]
"""By group and topic."""


def run_top(arguments: Sequence[str]) -> int:
    """Until Ctrl-C or SIGTERM, or as often as was said. Raises ConfigError, StateError, TopicError."""
    given = parsed(arguments)
    admin = admin_of(given)
    before, began = totals_of(admin.look(), given.group), time.monotonic()
    with asked_to_end() as over:
        shown = 0
        while shown != given.count and not over.wait(given.interval):
            now, ended = totals_of(admin.look(), given.group), time.monotonic()
            text = table(COLUMNS, rows_of(before, now, ended - began))
            print(f"{_CLEAR if sys.stdout.isatty() else ''}{text}\n", flush=True)
            before, began, shown = now, ended, shown + 1
    return 0


def totals_of(look: GroupsLook, groups: Sequence[str]) -> Totals:
    """Of these groups, or of all. Raises StateError, TopicError."""
    found: dict[tuple[str, str], TopicTotals] = {}
    for name in groups or [one.group_id for one in look.list_groups()]:
        state = look.describe_group(name).phase.value
        by_topic: dict[str, list[PartitionOffsets]] = {}
        for row in look.describe_offsets(name):
            by_topic.setdefault(row.topic, []).append(row)
        found |= {(name, topic): _totals(state, rows) for topic, rows in by_topic.items()}
    return found


def _totals(state: str, rows: Iterable[PartitionOffsets]) -> TopicTotals:
    begun = [row for row in rows if row.start_offset >= 0]
    return TopicTotals(
        state=state,
        lag=total_lag(begun),
        finished=sum(row.start_offset + row.acknowledged + row.archived for row in begun),
        acquired=sum(row.acquired for row in begun),
        available=sum(row.available for row in begun),
    )


def rows_of(before: Totals, now: Totals, seconds: float) -> list[Sequence[object]]:
    """COLUMNS of each topic, by what has changed in ``seconds``."""
    return [
        (
            group,
            one.state,
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
    """If it goes on like that, and nothing comes in."""
    if lag == 0:
        return span(0)
    return UNKNOWN if lag is None or not rate else span(round(1_000 * lag / rate))
