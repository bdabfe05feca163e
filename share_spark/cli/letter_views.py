"""Dead letters as tables, as pages, and as JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from share_spark.cli.command import table

if TYPE_CHECKING:
    from share_spark.admin.letters import Letter
    from share_spark.admin.letters_by_error import LettersByError

_LONGEST_ERROR, _LONGEST_HEADER = 100, 200
_NONE = "-"


def grouped_view(found: Sequence[LettersByError], *, as_json: bool) -> str:
    """Return one line for each error."""
    from share_spark.admin.letter_text import one_line
    from share_spark.model.texts import printable

    if as_json:
        return _json([asdict(one) for one in found])
    names = ("COUNT", "REDRIVEN", "FIRST-SEEN", "LAST-SEEN", "GROUP", "EXAMPLE", "REASON", "ERROR")
    rows = [
        (
            *(one.count, one.redriven, _time(one.first_seen), _time(one.last_seen), printable(one.group_id)),
            printable(f"{one.topic}:{one.partition}:{one.offset}"),
            *(
                one_line(one.reason, _LONGEST_ERROR),
                _NONE if one.error is None else one_line(one.error, _LONGEST_ERROR),
            ),
        )
        for one in found
    ]
    return table(names, rows)


def letters_view(letters: Sequence[Letter], *, as_json: bool) -> str:
    """Return one line for each letter."""
    from share_spark.admin.letter_text import one_line
    from share_spark.model.texts import printable

    if as_json:
        return _json([_record(letter) for letter in letters])
    names = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "ARCHIVED-AT", "DELIVERIES", "REDRIVEN-AT", "REASON", "ERROR")
    rows = [
        (
            *(printable(one.group_id), printable(one.topic), one.partition, one.offset, _time(one.archived_at)),
            *(one.delivery_count, _NONE if one.redriven_at is None else _time(one.redriven_at)),
            *(
                one_line(one.reason, _LONGEST_ERROR),
                _NONE if one.error is None else one_line(one.error, _LONGEST_ERROR),
            ),
        )
        for one in letters
    ]
    return table(names, rows)


def letter_view(letter: Letter, most: int) -> str:
    """Return one letter in full; ``most`` characters of a key or value."""
    from share_spark.admin.letter_text import letter_facts
    from share_spark.model.texts import printable

    title = printable(f"group {letter.group_id}: {letter.topic}, partition {letter.partition}, offset {letter.offset}")
    facts = [
        f"  {name if at == 0 else '':<14}{line}"
        for name, text in letter_facts(letter)
        for at, line in enumerate(text.split("\n"))
    ]
    parts = [("key", letter.key), ("value", letter.value)]
    if letter.corrected_value is not None:
        parts.append(("corrected value", letter.corrected_value))
    payloads = [line for name, content in parts for line in _payload_lines(name, content, most)]
    return "\n".join([title, *facts, *_header_lines(letter), *payloads])


def letter_json(letters: Sequence[Letter], histories: Mapping[str, Sequence[str]]) -> str:
    """Return all letters as JSON; bytes in base64."""
    return _json([{**_record(one), "history": list(histories.get(one.group_id, ()))} for one in letters])


def _header_lines(letter: Letter) -> list[str]:
    from share_spark.admin.letter_text import one_line, payload_text
    from share_spark.model.texts import printable

    lines = []
    for name, value in letter.headers:
        found = payload_text(value, _LONGEST_HEADER)
        text = one_line(found.text, _LONGEST_HEADER) + ("…" if found.is_cut else "")
        lines.append(f"    {printable(name)} = {text if found.form == 'text' else f'{text} ({found.form})'}")
    return ["  headers", *lines] if lines else []


def _payload_lines(name: str, content: bytes | None, most: int) -> list[str]:
    from share_spark.admin.letter_text import payload_text

    found = payload_text(content, most)
    about = found.form if content is None else f"{found.form}, {found.size:,} bytes"
    lines = [f"    {line}" for line in found.text.splitlines()]
    cut = ["    … cut here (--most shows more)"] if found.is_cut else []
    return [f"  {name} ({about})", *lines, *cut]


def _record(letter: Letter) -> dict[str, Any]:
    """Return a letter as values that JSON has."""
    return {**asdict(letter), "headers": [{"key": name, "value": value} for name, value in letter.headers]}


def _json(found: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(found), indent=1, default=_as_text)


def _as_text(value: object) -> str:
    return _time(value) if isinstance(value, datetime) else b64encode(bytes(value)).decode()  # type: ignore[call-overload]


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
