"""What a failure inside Spark says in one line, for errors that people read."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The message without the stack, and without py4j's own line before it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    return lines[0].lstrip(": ").strip() if lines else type(error).__name__
