"""Texts of others as one line that cannot steer a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Put Python's escapes for what a terminal would obey.

    >>> printable("a\\x1b[2J")
    'a\\\\x1b[2J'
    """
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
