"""Heartbeat files as engines leave them, written without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from share_spark.maintenance.heartbeat import ALIVE, Beat, EndKind, EngineEnd
from share_spark.state.tables import LOG_TABLE

VANISHED_MS = 300_000
"""For how long an engine is silent that has vanished."""


def write_beat(location: str | Path, group_id: str = "billing", *, silent_ms: int = 0, **said: Any) -> int:
    """An engine of the group said so ``silent_ms`` ago. Returns when that was, in milliseconds since the epoch."""
    fields = {"member_id": "spark-0123456789ab", "writer_epoch": 1, "host": "worker-7.example", "pid": 4711, **said}
    return _written(location, group_id, Beat(**fields), silent_ms)


def write_end(location: str | Path, group_id: str, kind: EndKind, error: str = "", *, silent_ms: int = 0) -> int:
    """As ``write_beat``, of an engine that has ended then."""
    beat = Beat("spark-0123456789ab", 1, "worker-7.example", 4711)
    end = EngineEnd(kind, time.time_ns() // 1_000_000 - silent_ms, error)
    return _written(location, group_id, beat.ended_by(end), silent_ms)


def _written(location: str | Path, group_id: str, beat: Beat, silent_ms: int) -> int:
    path = Path(location) / LOG_TABLE / "_share_spark" / ALIVE / quote(group_id, safe="")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(beat.to_text())
    at_ms = time.time_ns() // 1_000_000 - silent_ms
    os.utime(path, (at_ms / 1_000, at_ms / 1_000))
    return at_ms
