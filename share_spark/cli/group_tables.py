"""Tables in the form that Kafka's tools print."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[object]


def table(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table with columns as wide as their content."""
    lines = [[str(name) for name in names], *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(" ".join(cells).rstrip() for cells in padded)
