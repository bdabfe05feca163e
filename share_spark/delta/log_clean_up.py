"""Removal of a table's old versions, by time, without Spark: commits, checkpoints, and files that have left the table.

    commits    1 ... 300 | checkpoint 300 | 301 ... 900 | checkpoint 900 | 901 ...
               removed                    removed       ^ the last one that is older than the retention

A commit names the files that leave the table with it. They are removed before it: whoever dies in between does it
again. So files are found without a listing of the table, and none goes that a commit has not named yet: an append in
flight loses nothing, however long it takes. Versions go from the oldest one on, so those that are left have no hole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from share_spark.delta.commit_files import CommitFiles, actions_in
from share_spark.delta.native_changes import cleans_natively
from share_spark.delta.noted_rows import FILED
from share_spark.delta.table_log import TableLog, UnknownTableError, is_elsewhere

_OF_VERSION = re.compile(r"(\d{20})\.(?:(?P<until>\d{20})\.compacted\.)?[\w.-]+")
"""The name of a file of a log that belongs to a version, or to several."""


def remove_old_versions(log: TableLog, before_ms: int) -> int:
    """Remove what only versions before a time need (ms since the epoch), and return the number of commits. ``log``: the
    newest version, with its files. Nothing is removed from a table whose owner has set how long its log is kept, or
    that has anything which plain tables do not have. Raises what the storage raises."""
    if not _is_ours_to_clean(log):
        return 0
    files = log.files
    oldest_kept = _last_checkpoint_before(files, before_ms)
    if log.noted:  # their rows are in no file yet
        oldest_kept = min(oldest_kept, log.transactions.get(FILED, -1) + 1)
    old = sorted((version, name) for version, name in _versions(files) if version < oldest_kept)
    commits = [version for version, name in old if name == f"{version:020d}.json"]
    for version in commits:
        _remove_files(log, files.text(version) or "")
    for _, name in old:
        files.remove_named(name)
    return len(commits)


def _is_ours_to_clean(log: TableLog) -> bool:
    try:
        log.check_can_replace()
    except UnknownTableError:
        return False
    return cleans_natively(log)


def _last_checkpoint_before(files: CommitFiles, before_ms: int) -> int:
    """Return the version of the newest checkpoint that was written before a time, -1 if there is none."""
    for version, paths in reversed(files.checkpoints()):
        times = [files.storage.modified_at_ms(path) for path in paths]
        if all(at is not None and at < before_ms for at in times):
            return version
    return -1


def _versions(files: CommitFiles) -> Sequence[tuple[int, str]]:
    """Return the files of the log that belong to versions: the last version that each is about, and its name."""
    found = ((_OF_VERSION.fullmatch(name), name) for name in files.names())
    return [(int(match["until"] or match[1]), name) for match, name in found if match]


def _remove_files(log: TableLog, commit: str) -> None:
    """Remove the files that have left the table with this commit, and have not come back."""
    for action in actions_in(commit):
        removed: Mapping[str, Any] = action.get("remove") or {}
        path = str(removed.get("path") or "")
        if path and path not in log.active and not is_elsewhere(path) and ".." not in path.split("/"):
            log.files.storage.delete(f"{log.files.directory}/{unquote(path)}")
