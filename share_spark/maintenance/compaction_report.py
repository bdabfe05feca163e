"""What a compaction has done, as values and as readable lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from share_spark.delta.table_maintenance import TableSize
from share_spark.maintenance.compaction_order import CompactionOrder


class Step(NamedTuple):
    """One thing that was done, or would be."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a compaction did; of a dry run: what it would do. ``sizes``: table, before, after."""

    order: CompactionOrder
    steps: Sequence[Step]
    sizes: Sequence[tuple[str, TableSize, TableSize]]


def report_lines(report: CompactionReport) -> list[str]:
    """A line for each step, then a table of sizes; of a dry run the sizes as they are."""
    dry = " (dry run: nothing was changed)" if report.order.dry_run else ""
    steps = [f"  {step.subject}: {step.text}" for step in report.steps]
    rows = [("table", "files", "bytes", "rows")]
    rows += [(name, *_changes(before, after)) for name, before, after in report.sizes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    name_width, *number_widths = widths
    table = [
        "  " + "  ".join([name.ljust(name_width), *map(str.rjust, numbers, number_widths)]) for name, *numbers in rows
    ]
    return [f"compaction of {report.order.state}{dry}", *steps, "", *table]


def _changes(before: TableSize, after: TableSize) -> tuple[str, str, str]:
    changes = (f"{old:,}" if old == new else f"{old:,} -> {new:,}" for old, new in zip(before, after, strict=True))
    files, size, rows = changes
    return files, size, rows
