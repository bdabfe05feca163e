"""The parts of every page: its head, its policy, the cells of its tables; and where pages are. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from urllib.parse import quote

from share_spark.admin.state_versions import StateVersion
from share_spark.web.drawings import span, utc

REFRESH_MS = 3_000
"""The time after which a live page is fetched again."""


def group_path(group_id: str) -> str:
    """Return the path of a group's page on the server."""
    return f"/groups/{quote(group_id, safe='')}"


def way_back(group_id: str | None = None, query: str = "") -> str:
    """Return links to the pages above this one: all groups, and a group. ``query``: behind their paths."""
    group = "" if group_id is None else f' › <a id="group" href="{group_path(group_id)}{query}">{escape(group_id)}</a>'
    return f'<p class="note"><a id="all" href="/{query}">All groups</a>{group}</p>'


def place_and_time(location: str, at_ms: int, version: StateVersion | None = None) -> str:
    """Return which state is shown, and as of when: now, or an earlier ``version``."""
    when = utc(at_ms) if version is None else version_text(version)
    return f'<p class="note">{escape(location)}, as of {when}</p>'


def fault_page(title: str, text: str) -> str:
    """Return a page for the place of another live page that cannot be made."""
    return document(title, "", f'<p class="fault" role="alert">{escape(text)}</p>', live=True)


def policy(live: bool) -> str:
    """Return the Content-Security-Policy: our own style and script, and no request but for pages of the same server."""
    rules = ["default-src 'none'", f"style-src '{_digest(_asset('page.css'))}'", "img-src data:", "base-uri 'none'"]
    if live:
        rules += [f"script-src '{_digest(_asset('page.js'))}'", "connect-src 'self'"]
    return "; ".join([*rules, f"form-action '{'self' if live else 'none'}'"])


@cache
def _asset(name: str) -> str:
    return files("share_spark.web").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def document(title: str, head: str, main: str, *, live: bool, changes: bool = True) -> str:
    """Return a page; ``head`` and ``main`` are HTML. Live: it has a script, which fetches it again and again if it
    ``changes``."""
    changes = live and changes
    button = '<button type="button" id="pause" aria-pressed="false">Pause</button>' if changes else ""
    script = f"<script>{_asset('page.js')}</script>" if live else ""
    attributes = (' class="live"' if live else "") + (f' data-refresh-ms="{REFRESH_MS}"' if changes else "")
    policy_tag = f'<meta http-equiv="Content-Security-Policy" content="{policy(live)}">'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{policy_tag}'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head><body{attributes}>"
        f"<header><h1>Share groups</h1>{button}</header><main>{head}{main}</main>{script}</body></html>\n"
    )


def cell(label: str, content: str, *, is_number: bool = False) -> str:
    """Return a cell of a table. ``content`` is HTML. The label is shown where the columns have no heads: on a narrow
    screen."""
    return f'<td data-label="{label}"{number_class(is_number)}><span>{content}</span></td>'


def text_cell(label: str, content: str) -> str:
    """Return a ``cell`` with a text of several lines, which stands below its label on a narrow screen."""
    return f'<td data-label="{label}" class="text"><span>{content}</span></td>'


def heads(*names: str, numbers: Collection[str] = ()) -> str:
    """Return the head of a table; those of ``names`` that are in ``numbers`` stand to the right."""
    found = "".join(f"<th{number_class(name in numbers)}>{name}</th>" for name in names)
    return f"<thead><tr>{found}</tr></thead>"


def number_class(is_number: bool) -> str:
    """Return the attribute of a cell with a number, or nothing."""
    return ' class="number"' if is_number else ""


def ago(at_ms: int, now_ms: int) -> str:
    """Return how long ago ``at_ms`` was; 0: never."""
    return f"{span(max(0, now_ms - at_ms))} ago" if at_ms else "none yet"


def lag_text(lag: int | None) -> str:
    """Return a lag as text. None: the end of a log is not known."""
    return "not known" if lag is None else f"{lag:,}"


def version_text(version: StateVersion) -> str:
    """Return the number of a version, and its time."""
    return f"version {version.number}, {_time(version)}"


def version_query(version: StateVersion | None) -> str:
    """Return the query behind the path of a page. None: now."""
    return "" if version is None else f"?version={version.number}"


def time_form(path: str, shown: StateVersion | None, some: Sequence[StateVersion]) -> str:
    """Return the form to choose a version, with a slider, or a time. ``path``: that of the page; ``shown``: the version
    it shows, None for now; ``some``: some of the versions, the first and the last among them."""
    if len(some) < 2:
        return ""
    at = some[-1] if shown is None else shown
    options = "".join(f'<option value="{one.number}" label="{_time(one)}"></option>' for one in some)
    slider = (
        f'<input id="version" name="version" type="range" list="versions" min="{some[0].number}" '
        f'max="{some[-1].number}" value="{at.number}">'
    )
    now = "" if shown is None else f'<p class="note"><a id="now" href="{escape(path)}">As of now</a></p>'
    # The script leaves the card in its place: somebody may be choosing.
    return (
        f'<div class="card" id="earlier" data-keep="1"><h2>Earlier</h2>{now}'
        f'<form id="by-version" class="fields" action="{escape(path)}"><label class="wide">Version of the state log'
        f'{slider}</label><output id="version-shown" for="version">{version_text(at)}</output>'
        '<button id="show-version">Show</button></form>'
        f'<form id="by-time" class="fields" action="{escape(path)}"><label>Or at (UTC)'
        '<input id="time" name="at" type="datetime-local" step="1" required></label>'
        f'<button id="show-time">Show</button></form><datalist id="versions">{options}</datalist></div>'
    )


def _time(version: StateVersion) -> str:
    return utc(version.committed_at_ms) if version.committed_at_ms else "time not known"
