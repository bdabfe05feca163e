"""Keys, values and headers as readable text: JSON, text, or else hexadecimal. The text cannot control a terminal."""

from __future__ import annotations

import json
from typing import NamedTuple

from share_spark.model.texts import printable

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
