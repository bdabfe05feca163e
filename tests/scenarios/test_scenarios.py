"""Run the conversations of ``*.txt``: commands, ``----``, expected output, a blank line.

``python -m tests.scenarios.test_scenarios --rewrite`` puts the present output into the files. Commit such a change
only if you understand it and want it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.scenarios.interpreter import Interpreter

FILES = sorted(Path(__file__).parent.glob("*.txt"))
SEPARATOR = "----"


def conversation(text: str) -> str:
    """``text`` with the output of every command as it is now."""
    interpreter = Interpreter()
    out: list[str] = []
    for block in text.strip("\n").split("\n\n"):
        given = block.split(f"\n{SEPARATOR}")[0].split("\n")
        commands = [line for line in given if line and not line.startswith("#")]
        out += given
        if commands:
            out.append(SEPARATOR)
            for command in commands:
                out += interpreter.run(command)
        out.append("")
    return "\n".join(out)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    assert conversation(text).rstrip("\n") == text.rstrip("\n")


def test_there_are_scenarios() -> None:
    assert FILES


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit("usage: python -m tests.scenarios.test_scenarios --rewrite")
    for file in FILES:
        file.write_text(conversation(file.read_text()).rstrip("\n") + "\n")
