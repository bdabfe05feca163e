"""The forms that ask for the state at an earlier time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from share_spark.admin.state_versions import StateVersion
from share_spark.web.drawings import utc


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
