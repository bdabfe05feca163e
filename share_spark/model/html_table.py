"""A small table as HTML, for notebooks: what a value shows of itself there (``_repr_html_``). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def html_table(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a heading row; all text is escaped, numbers stand to the right."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Return a table of names and values, one below the other."""
    rows = "".join(f"<tr><th>{escape(name)}</th>{_cell(value)}</tr>" for name, value in facts.items())
    return f"<p><b>{escape(title)}</b></p><table><tbody>{rows}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{escape(str(value))}</td>"
    text = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
    return f'<td style="text-align:right">{text}</td>'
