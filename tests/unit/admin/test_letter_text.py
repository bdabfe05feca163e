"""Payloads and errors as a terminal shows them."""

from __future__ import annotations

import pytest

from share_spark.admin.letter_text import one_line, payload_text
from share_spark.model.texts import printable

SHOWN: dict[str, tuple[bytes | None, tuple[str, str]]] = {
    "nothing": (None, ("null", "")),
    "empty": (b"", ("empty", "")),
    "text": ("Zürich\n2".encode(), ("text", "Zürich\n2")),
    "JSON": (b'{"a":[1,"\xc3\xbc"]}', ("JSON", '{\n  "a": [\n    1,\n    "ü"\n  ]\n}')),
    "no JSON after all": (b"{a}", ("text", "{a}")),
    "a number is text": (b"17", ("text", "17")),
    "not UTF-8": (b"\xff\x00\x10", ("hex", "ff 00 10")),
    "what a terminal would obey": (b"a\x1b[2J", ("hex", "61 1b 5b 32 4a")),
    "the same inside of JSON": (b'["\\u001b[2J\\u009b"]', ("JSON", '[\n  "\\u001b[2J\\x9b"\n]')),
    "half a character in JSON": (b'["\\ud800"]', ("JSON", '[\n  "\\ud800"\n]')),
    "too deep": (b"[" * 100_000, ("text", "[" * 100_000)),
}


@pytest.mark.parametrize("case", SHOWN)
def test_a_payload_in_its_form(case: str) -> None:
    content, expected = SHOWN[case]
    found = payload_text(content, 1_000_000)
    assert (found.form, found.text) == expected
    assert (found.size, found.is_cut) == (len(content or b""), False)
    found.text.encode()


def test_a_long_one_is_cut() -> None:
    found = payload_text(b"0123456789", 4)
    assert (found.text, found.size, found.is_cut) == ("0123", 10, True)
    assert not payload_text(b"0123", 4).is_cut


def test_an_error_in_one_line() -> None:
    assert one_line("ValueError: no city", 40) == "ValueError: no city"
    assert one_line("ValueError: no city\n  at line 3", 40) == "ValueError: no city…"
    assert one_line("ValueError: no city", 10) == "ValueErro…"
    assert one_line("a\x1b[31mb", 40) == "a\\x1b[31mb"
    assert printable("tab\there") == "tab\\there"
