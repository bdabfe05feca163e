"""The end of the last engine of a group, as text. Pure."""

from __future__ import annotations

from share_spark.admin.state_reader import Engine
from share_spark.maintenance.heartbeat import EndKind, EngineEnd
from share_spark.web.drawings import span, utc

UNEXPECTED = {EndKind.FAILED: "Failed", EndKind.VANISHED: "Engine gone"}
"""The words on a page for the ends that somebody has to look at."""

_SENTENCES = {
    EndKind.STOPPED: "was stopped",
    EndKind.WORKED_OFF: "had worked off everything",
    EndKind.FAILED: "failed",
    EndKind.VANISHED: "fell silent, and has not said that it ended: its last heartbeat was",
}


def engine_word(engine: Engine | None, now_ms: int) -> str:
    """Return ``running``, or how and when the engine has ended: ``vanished 5 min ago``; ``-`` if there was none."""
    if engine is None:
        return "-"
    end = engine.end
    return "running" if end is None else f"{end.kind} {_ago(end, now_ms)}"


def end_sentence(engine: Engine, end: EngineEnd, now_ms: int) -> str:
    """Return who ended, how and when, and why it failed."""
    who = f"The last one ({engine.beat.host}, process {engine.beat.pid})" if engine.beat.host else "The last one"
    error = f": {end.error}" if end.error else "."
    return f"{who} {_SENTENCES[end.kind]} {_ago(end, now_ms)}, at {utc(end.at_ms)}{error}"


def _ago(end: EngineEnd, now_ms: int) -> str:
    return f"{span(max(0, now_ms - end.at_ms))} ago"
