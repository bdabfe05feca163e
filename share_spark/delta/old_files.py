"""Check for files that VACUUM or Delta's log clean-up would remove, by the names and times of a table's files.

Where it cannot be known, the answer is yes. So Spark is asked once too often, never too seldom.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import unquote

from share_spark.delta.table_log import TableLog

_LOG_RETENTION = "delta.logRetentionDuration"
_LOG_RETENTION_MS = 30 * 86_400_000
"""Delta's default."""


def has_old_files(log: TableLog, before_ms: int) -> bool:
    """Return whether a file or an empty directory was written before ``before_ms`` (since the epoch) and is not in the
    version of ``log``, which has its files: tombstones, files of dead writers, also those that VACUUM would still keep.
    """
    root = _local_directory(log)
    if root is None:
        return True
    needed = {unquote(path) for path in log.active}
    for at, directories, names in os.walk(root):
        directories[:] = [name for name in directories if not _is_hidden(name)]
        inside = Path(at)
        seen = [name for name in names if not _is_hidden(name)]
        left = [inside / name for name in seen if (inside / name).relative_to(root).as_posix() not in needed]
        if not seen and not directories and inside != root:
            left.append(inside)
        if any(_is_older(path, before_ms) for path in left):
            return True
    return False


def has_old_commits(log: TableLog, retention_ms: int | None) -> bool:
    """Return whether a file of the log is older than its table, or ``retention_ms``, wants it kept."""
    root = _local_directory(log)
    if root is None or _LOG_RETENTION in log.properties:
        return True
    kept_ms = min(_LOG_RETENTION_MS, _LOG_RETENTION_MS if retention_ms is None else retention_ms)
    before_ms = time.time_ns() // 1_000_000 - kept_ms
    return any(_is_older(path, before_ms) for path in (root / "_delta_log").iterdir())


def _local_directory(log: TableLog) -> Path | None:
    """Return the local directory; None on another storage, where listing all files takes as long as Spark does."""
    path = log.files.local_directory
    return None if path is None else Path(path)


def _is_hidden(name: str) -> bool:
    """Return whether VACUUM ignores the name; it does not ignore change data, and partition columns."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name and not name.startswith("_change_data"))


def _is_older(path: Path, before_ms: int) -> bool:
    try:
        return path.stat().st_mtime_ns // 1_000_000 < before_ms
    except FileNotFoundError:  # another process has removed it
        return False
