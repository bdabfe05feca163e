"""Texts of others: errors that differ only in numbers or ids as one, and any text as one line that cannot steer a
terminal.

The rule for errors: each UUID, each hexadecimal number (``0x…``, or 8 digits and more with at least one from 0 to 9)
and each number of decimal digits counts as ``#``.
"""

from __future__ import annotations

import re

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_HEX = r"0[xX][0-9a-fA-F]+|(?<![0-9A-Za-z])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?![0-9A-Za-z])"
_VARIABLE = re.compile(rf"{_UUID}|{_HEX}|[0-9]+")


def error_pattern(error: str) -> str:
    """Return what ``error`` has in common with those that differ only in numbers and ids.

    >>> error_pattern("KeyError: 'city-17' in order 0x7f3a (0a6f3c1e-77aa-4b5d-9f00-0123456789ab, deadbeef01)")
    "KeyError: 'city-#' in order # (#, #)"
    """
    return _VARIABLE.sub("#", error)


def printable(text: str) -> str:
    """Put Python's escapes for what a terminal would obey.

    >>> printable("a\\x1b[2J")
    'a\\\\x1b[2J'
    """
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
