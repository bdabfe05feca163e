"""A group over time as small charts in SVG. Pure.

Times are cut into columns of the same width; a column has the rate, the last or the greatest value of the micro-batches
in it, and says it on hover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from share_spark.admin.group_series import MicroBatchTotals
from share_spark.web.drawings import span, utc
from share_spark.web.pictures import SeriesPicture

_COLUMNS = 60
_LEAST_COLUMN_MS = 1_000
_COLUMN_WIDTH, _HEIGHT, _TOP = 10, 60, 4

Values = Sequence[float | None]
"""The values of the columns, None where nothing is known."""


class ChartLine(NamedTuple):
    """A line of a chart. ``style``: its class in the style sheet."""

    name: str
    style: str
    values: Values


class Chart(NamedTuple):
    """A chart. ``text``: how a value is written. ``first_ms``, ``column_ms``: when the columns begin, and how wide they
    are."""

    title: str
    lines: Sequence[ChartLine]
    first_ms: int
    column_ms: int
    text: Callable[[float], str]


def charts(series: SeriesPicture) -> list[Chart]:
    """Return the charts for which there is something to draw."""
    found: list[Chart] = []
    if len(series.micro_batches) > 1:
        found += _of_log(series.micro_batches)
    lags = [one for one in series.lags if one.lag is not None]
    if len(lags) > 1:
        columns = _Columns.over([one.at_ms for one in lags])
        values = columns.last([(one.at_ms, float(one.lag or 0)) for one in lags])
        found.append(columns.chart("Lag, since this server looks", [ChartLine("lag", "v", values)], _count))
    return found


def _of_log(found: Sequence[MicroBatchTotals]) -> Iterator[Chart]:
    columns = _Columns.over([one.at_ms for one in found])

    def rate(name: str, style: str, number: Callable[[MicroBatchTotals], int]) -> ChartLine:
        return ChartLine(name, style, columns.rate([(one.at_ms, float(number(one))) for one in found]))

    if any(one.accepted or one.released or one.archived for one in found):
        rates = [
            rate("accepted", "d", lambda one: one.accepted),
            rate("released", "v", lambda one: one.released),
            rate("archived", "x", lambda one: one.archived),
        ]
    else:
        rates = [rate("finished", "d", lambda one: one.finished), rate("acquired again", "v", lambda one: one.again)]
    yield columns.chart("Records per second", rates, _count)
    windows = [
        ChartLine("acquired", "q", columns.last([(one.at_ms, float(one.acquired)) for one in found])),
        ChartLine("available", "v", columns.last([(one.at_ms, float(one.available)) for one in found])),
    ]
    yield columns.chart("Records in the windows", windows, _count)
    took = [(one.at_ms, float(one.took_ms)) for one in found if one.took_ms is not None]
    if took:
        slowest = ChartLine("slowest", "q", columns.greatest(took))
        yield columns.chart("Time of a micro-batch", [slowest], lambda ms: f"{ms / 1_000:,.3g} s")


class _Columns(NamedTuple):
    """Columns of time: ``number`` of them, from ``first_ms`` on."""

    first_ms: int
    column_ms: int
    number: int

    @classmethod
    def over(cls, times_ms: Sequence[int]) -> _Columns:
        """Return columns from the first of ``times_ms`` to the last; they are ascending."""
        whole = times_ms[-1] - times_ms[0] + 1
        width = max(_LEAST_COLUMN_MS, -(-whole // _COLUMNS))
        return cls(times_ms[0], width, -(-whole // width))

    def chart(self, title: str, lines: Sequence[ChartLine], text: Callable[[float], str]) -> Chart:
        return Chart(title, lines, self.first_ms, self.column_ms, text)

    def rate(self, values: Sequence[tuple[int, float]]) -> Values:
        """Return the rate per second of each column, 0 in one without a micro-batch."""
        found = self._sorted_in(values)
        return [sum(found.get(at, ())) * 1_000 / self.column_ms for at in range(self.number)]

    def greatest(self, values: Sequence[tuple[int, float]]) -> Values:
        """Return the greatest value of each column, None in a column without one."""
        found = self._sorted_in(values)
        return [max(found[at]) if at in found else None for at in range(self.number)]

    def last(self, values: Sequence[tuple[int, float]]) -> Values:
        """Return the last value of each column, or of the column before it."""
        found = self._sorted_in(values)
        held: list[float | None] = []
        for at in range(self.number):
            held.append(found[at][-1] if at in found else held[-1] if held else None)
        return held

    def _sorted_in(self, values: Sequence[tuple[int, float]]) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for at_ms, value in values:
            found.setdefault((at_ms - self.first_ms) // self.column_ms, []).append(value)
        return found


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def chart_html(chart: Chart) -> str:
    """Return a chart with its title, key, scale and times."""
    most = max((value for line in chart.lines for value in line.values if value is not None), default=0.0)
    number = len(chart.lines[0].values)
    end_ms = chart.first_ms + number * chart.column_ms
    label = f"{chart.title}: at most {chart.text(most)}, from {utc(chart.first_ms)} to {utc(end_ms)}"
    lines = "".join(_points(line, most) for line in chart.lines)
    hits = "".join(_hit(chart, at) for at in range(number))
    width = number * _COLUMN_WIDTH
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)} {"".join(map(_key, chart.lines))}'
        f'<span class="most">max {chart.text(most)}</span></figcaption>'
        f'<svg viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{lines}{hits}</svg>'
        f'<p class="ends"><span>{utc(chart.first_ms)}</span><span>{span(end_ms - chart.first_ms)}</span></p></figure>'
    )


def _key(line: ChartLine) -> str:
    return f'<span class="name"><span class="key {line.style}"></span>{line.name}</span>'


def _points(line: ChartLine, most: float) -> str:
    """Return a polyline for each part that is known."""
    numbered = groupby(enumerate(line.values), key=lambda pair: pair[1] is None)
    return "".join(
        f'<polyline class="{line.style}" points="{" ".join(_point(at, value or 0.0, most) for at, value in part)}"/>'
        for is_gap, part in numbered
        if not is_gap
    )


def _point(at: int, value: float, most: float) -> str:
    """Return a point twice, as a single column is a line, too."""
    height = round(_HEIGHT - 1 - (_HEIGHT - 1 - _TOP) * (value / most if most else 0.0), 1)
    return f"{at * _COLUMN_WIDTH},{height:g} {(at + 1) * _COLUMN_WIDTH},{height:g}"


def _hit(chart: Chart, at: int) -> str:
    said = [f"{line.name}: {chart.text(value)}" for line in chart.lines if (value := line.values[at]) is not None]
    if not said:
        return ""
    text = "\n".join([utc(chart.first_ms + at * chart.column_ms), *said])
    place = f'x="{at * _COLUMN_WIDTH}" width="{_COLUMN_WIDTH}" height="{_HEIGHT}"'
    return f'<rect class="hit" {place}><title>{escape(text)}</title></rect>'
