"""A document that a reader follows: programs to be saved, commands to be run, and what they print.

A block of Python whose first line is ``# NAME.py`` is a program of that name. A block of ``sh`` has commands. A block
of ``text`` right after it is what the last of them prints; ``...`` in it stands for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    """``shown``: what the document says that it prints, None if it says nothing."""

    text: str
    shown: str | None = None

    def agrees(self, printed: str) -> bool:
        """Whether it has printed that. The width of columns does not count."""
        if self.shown is None:
            return True
        parts = [r"\s+".join(map(re.escape, part.split())) for part in self.shown.split("...")]
        return re.fullmatch(r"\s*" + r"\s*.*?\s*".join(parts) + r"\s*", printed, re.DOTALL) is not None


def walk(document: str, directory: Path) -> Iterator[Command]:
    """Yield the commands one by one. The programs above each are in ``directory`` by then."""
    blocks = [(found[1], found[2]) for found in _BLOCK.finditer(document)]
    for (language, text), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "python":
            (name,) = re.findall(r"\A# (\w+\.py)$", text, re.MULTILINE)
            (directory / name).write_text(text)
        if language == "sh":
            *others, last = text.replace("\\\n", " ").splitlines()
            yield from map(Command, others)
            yield Command(last, shown if following == "text" else None)
