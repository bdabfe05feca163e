"""What a failure inside Spark says in one line, for readable errors."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The message without the stack, and without py4j's own line before it; with what it all began with, where that is
    something else ("Task failed while writing rows" began with "No space left on device")."""
    said = _own_line(error)
    began = _root_cause(error)
    return said if not began or began in said else f"{said} ({began})"


def _root_cause(error: BaseException) -> str:
    """The innermost Java exception of a chain, in one line; empty for a chain of one."""
    at = getattr(error, "java_exception", None)
    if at is None or at.getCause() is None:
        return ""
    while at.getCause() is not None:
        at = at.getCause()
    lines = [line for line in str(at.getMessage() or "").splitlines() if line.strip()]
    return lines[0].strip() if lines else ""


def _own_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    return lines[0].lstrip(": ").strip() if lines else type(error).__name__
