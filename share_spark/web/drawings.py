"""SVG as text: the line of a share-partition, a histogram. Pure; all text is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import log10

from share_spark.model.records import DeliveryState
from share_spark.web.offset_line import OffsetLine, Slice

STATE_NAMES = tuple(state.name.capitalize() for state in DeliveryState)
STATE_CLASSES = ("v", "q", "d", "x")
"""The classes of the states in the style sheet, in the order of ``DeliveryState``."""

_WIDTH, _HEIGHT = 4000, 20
_LEAST_WIDTH, _LEAST_HEIGHT = 8, 3.0
"""The least size of a slice, so that small ones are seen, too."""


def utc(at_ms: int) -> str:
    """Return a moment as text, to the second."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(milliseconds: int) -> str:
    """Return a time as text, in the largest unit of which there are two.

    >>> [span(900), span(90_000), span(7_200_000), span(200_000_000)]
    ['1 s', '90 s', '2 h', '2 d']
    """
    seconds = milliseconds / 1_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds)} s"


def line_svg(line: OffsetLine, label: str, now_ms: int) -> str:
    """Return the drawing of a line. ``label``: its text for screen readers."""
    slices = "".join(_slice(one, line, now_ms) for one in line.slices)
    return (
        f'<svg class="line" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'data-start="{line.start_offset}" data-size="{line.size}" '
        f'aria-label="{escape(label)}"><rect class="none" width="{_WIDTH}" height="{_HEIGHT}"/>{slices}</svg>'
    )


def _slice(one: Slice, line: OffsetLine, now_ms: int) -> str:
    begin = (one.first_offset - line.start_offset) * _WIDTH // line.size
    width = max(_LEAST_WIDTH, (one.last_offset + 1 - line.start_offset) * _WIDTH // line.size - begin)
    begin = min(begin, _WIDTH - width)
    bars = "".join(
        f'<path class="{name}" d="M{begin} {top:.3g}h{width}v{height:.3g}h-{width}z"/>'
        for name, top, height in _stacked(one)
    )
    return f"<g><title>{escape(slice_title(one, now_ms))}</title>{bars}</g>"


def _stacked(one: Slice) -> Iterator[tuple[str, float, float]]:
    """Return (class, top, height) of each state that is there, one below the other."""
    size = one.last_offset - one.first_offset + 1
    parts = [(name, offsets) for name, offsets in zip(STATE_CLASSES, one.by_state, strict=True) if offsets]
    heights = [max(_LEAST_HEIGHT, offsets / size * _HEIGHT) for _, offsets in parts]
    shrink = min(1.0, _HEIGHT / sum(heights)) if heights else 1.0
    top = 0.0
    for (name, _), height in zip(parts, heights, strict=True):
        yield name, top, height * shrink
        top += height * shrink


def slice_title(one: Slice, now_ms: int) -> str:
    """Return the text that is shown on hover."""
    place = f"offset {one.first_offset}" if one.first_offset == one.last_offset else _between(one)
    if one.run is None:
        counts = zip(STATE_NAMES, one.by_state, strict=True)
        return f"{place}\n" + "\n".join(f"{offsets:,} {name}" for name, offsets in counts if offsets)
    run = one.run
    lines = [
        place,
        f"{sum(one.by_state):,} {run.delivery_state.name.capitalize()}, delivered {times(run.delivery_count)}",
    ]
    if run.member_id is not None and run.lock_deadline_ms is not None:
        lines += [
            f"held by {run.member_id}",
            f"until {utc(run.lock_deadline_ms)} ({_when(run.lock_deadline_ms, now_ms)})",
        ]
    return "\n".join(lines)


def _between(one: Slice) -> str:
    return f"offsets {one.first_offset} to {one.last_offset}"


def times(number: int) -> str:
    """Return a number of times as text."""
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _when(at_ms: int, now_ms: int) -> str:
    return f"in {span(at_ms - now_ms)}" if at_ms > now_ms else f"{span(now_ms - at_ms)} ago"


def histogram_rows(counts: Mapping[int, int]) -> Sequence[tuple[str, str, str]]:
    """Return (label, records, SVG of the bar) of each delivery count. The bars are on a logarithmic scale: a few
    stubborn records would not show on any other."""
    longest = max((_magnitude(records) for records in counts.values()), default=1.0)
    return [(times(number), f"{records:,}", _bar(_magnitude(records) / longest)) for number, records in counts.items()]


def _magnitude(records: int) -> float:
    return log10(records) + 1 if records > 0 else 0.0


def _bar(share: float) -> str:
    width = max(_LEAST_WIDTH, round(share * _WIDTH))
    return (
        f'<svg class="bar" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width}" height="{_HEIGHT}"/></svg>'
    )
