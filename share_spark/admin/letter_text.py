"""A dead letter as readable text: its facts, in words; its key, value and headers as JSON, text, or else hexadecimal.
Pure; the text cannot control a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from share_spark.admin.letters import Letter
from share_spark.admin.redriven_record import REDRIVE_ID, delivered_before
from share_spark.model.texts import printable

NONE = "-"
"""The text for a missing value."""

_NOT_CONTROL = frozenset("\n\t")


class PayloadText(NamedTuple):
    """A payload as text. ``form``: "JSON", "text", "hex", "empty" or "null". ``text``: cut to the requested length;
    ``size``: that of the payload, in bytes."""

    form: str
    text: str
    size: int
    is_cut: bool


def payload_text(content: bytes | None, most: int) -> PayloadText:
    """Return at most ``most`` characters of the content."""
    if not content:
        return PayloadText("null" if content is None else "empty", "", 0, is_cut=False)
    form, text = _decoded(content)
    return PayloadText(form, text[:most], len(content), is_cut=len(text) > most)


def _decoded(content: bytes) -> tuple[str, str]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "hex", content.hex(" ")
    if not all(letter.isprintable() or letter in _NOT_CONTROL for letter in text.replace("\r\n", "\n")):
        return "hex", content.hex(" ")
    if text.lstrip()[:1] in ("{", "["):
        try:
            lines = json.dumps(json.loads(text), indent=2, ensure_ascii=False).split("\n")
            return "JSON", "\n".join(map(printable, lines))
        except (ValueError, RecursionError):
            pass
    return "text", text


def one_line(text: str, most: int) -> str:
    """Return the first line, unprintable characters escaped, with ``…`` where something is left out."""
    first, _, rest = text.strip().partition("\n")
    shown = printable(first)
    return shown if len(shown) <= most and not rest else f"{shown[: most - 1].rstrip()}…"


def letter_facts(letter: Letter) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for what a letter has besides its key, value and headers. An error may have several lines."""
    before = delivered_before(letter)
    yield "archived", letter_time(letter.archived_at)
    yield "reason", printable(letter.reason)
    yield "deliveries", f"{letter.delivery_count}" + (f", and {before} before it was redriven" if before else "")
    yield "error", "\n".join(map(printable, (letter.error or NONE).splitlines() or [""]))
    yield "record time", NONE if letter.timestamp is None else letter_time(letter.timestamp)
    if from_id := dict(letter.headers).get(REDRIVE_ID):
        yield "redriven from", f"the letter with redrive id {printable(from_id.decode(errors='replace'))}"
    if letter.redriven_at is not None:
        yield "redriven", f"{letter_time(letter.redriven_at)}, redrive id {printable(str(letter.redrive_id))}"


def letter_time(moment: datetime) -> str:
    """Return the time to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
