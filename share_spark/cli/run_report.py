"""The figures of a run: totals of its micro-batches, as values and as lines. Pure: prints nothing, reads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log10

from share_spark.engine.progress import COUNTS, MicroBatchProgress, RecordCounts, deliveries_added
from share_spark.model.texts import error_pattern

_MOST_ERRORS = 100
"""The number of errors that a run remembers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals(RecordCounts):
    """The records (offsets) in the micro-batches of one run. ``lag``: offsets not finished after the last of them.
    ``deliveries``: n -> records that were delivered for the n-th time. ``errors``: error, without its numbers and ids
    (``error_pattern``) -> records that failed with it."""

    micro_batches: int = 0
    lag: int = 0
    deliveries: Mapping[int, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """The number of records that will not be delivered again."""
        return self.accepted + self.archived

    def plus(self, progress: MicroBatchProgress) -> RunTotals:
        """Return the totals with one more micro-batch."""
        counts = {name: getattr(self, name) + getattr(progress, name) for name in COUNTS}
        deliveries = deliveries_added([self.deliveries, progress.deliveries])
        return RunTotals(
            micro_batches=self.micro_batches + 1,
            lag=progress.lag,
            deliveries=deliveries,
            errors=_errors_added(self.errors, progress.errors),
            **counts,
        )


def _errors_added(total: Mapping[str, int], errors: Mapping[str, int]) -> dict[str, int]:
    """Return the most frequent errors, as their number has no limit."""
    found = Counter(total)
    for error, records in errors.items():
        found[error_pattern(error)] += records
    return dict(found.most_common(_MOST_ERRORS))


def progress_line(now: RunTotals, before: RunTotals, seconds: float) -> str:
    """Return one line of live progress; the rate is that of the ``seconds`` since ``before``."""
    rate = (now.acquired - before.acquired) / max(seconds, 1e-9)
    shown = {
        "acquired": now.acquired,
        "accepted": now.accepted,
        "released": now.released,
        "rejected": now.rejected,
        "archived": now.archived,
        "lag": now.lag,
    }
    return f"{rate:>9,.0f} records/s  " + "  ".join(f"{name} {count:,}" for name, count in shown.items())


def summary_lines(totals: RunTotals, seconds: float) -> list[str]:
    """Return the table at the end of a run."""
    rate = totals.acquired / max(seconds, 1e-9)
    rows: list[tuple[str, str, str]] = [
        ("acquired", f"{totals.acquired:,}", f"{totals.redelivered:,} of them again" if totals.redelivered else ""),
        ("accepted", f"{totals.accepted:,}", "done"),
        ("released", f"{totals.released:,}", "given back, to be tried again"),
        *(
            [("throttled", f"{totals.throttled:,}", "given back uncounted, to be tried again")]
            if totals.throttled
            else []
        ),
        ("rejected", f"{totals.rejected:,}", "can never succeed"),
        ("limit reached", f"{totals.limit_reached:,}", "given up after the last delivery"),
    ]
    if totals.gaps or totals.below_log_start:
        rows.append(("no record", f"{totals.gaps + totals.below_log_start:,}", "gaps in the log, or deleted from it"))
    rows.append(("lag", f"{totals.lag:,}", "not finished yet"))
    rows.append(("duration", f"{seconds:,.1f} s", f"{totals.micro_batches:,} micro-batches, {rate:,.0f} records/s"))
    return [f"  {name:<14}{value:>12}  {note}".rstrip() for name, value, note in rows]


def histogram_lines(counts: Mapping[int, int], *, width: int = 40) -> list[str]:
    """Return a bar per number of deliveries, on a logarithmic scale: no other would show a few stubborn records."""
    longest = max((_magnitude(count) for count in counts.values()), default=1.0)
    return [
        f"  {_ordinal(number):>5}  {count:>11,}  {_bar(_magnitude(count) / longest, width)}"
        for number, count in sorted(counts.items())
    ]


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if 10 <= number % 100 <= 20 else endings.get(number % 10, 'th')}"


def _magnitude(count: int) -> float:
    return log10(count) + 1 if count > 0 else 0.0


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def table_lines(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a small table as text; numbers to the right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *texts]) for i in range(len(header))]
    right = [all(isinstance(row[i], int) for row in rows) and bool(rows) for i in range(len(header))]
    lines = [list(header), ["-" * width for width in widths], *texts]
    return ["  ".join(_placed(*cell) for cell in zip(line, widths, right, strict=True)).rstrip() for line in lines]


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _placed(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
