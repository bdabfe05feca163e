"""Marks that outlive a worker and its engine: whose handler had a record when everything died.

A record that runs alone because crashes have put it in doubt is marked while its handler runs; so a crash before or
after that is not held against it (``partition.lost``). A mark is an empty file named by the engine's member id, made
and removed by the worker itself, which has no Hadoop: only where the state is on a file system that workers see as
files. Elsewhere there are no marks, and a crash while the record ran alone counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_KEPT_S = 24 * 3_600.0
"""Far longer than any lock: by then nobody can hold what a mark is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The marks of one group, and the path of this engine's own."""

    directory: Path
    member_id: str

    @classmethod
    def beside(cls, table_directory: str, group_id: str, member_id: str) -> Marks | None:
        """Below the directory of the state log; None if that is no directory that a worker can write to."""
        path = table_directory.removeprefix("file:")
        if "://" in path or ":/" in path:
            return None
        return cls(directory=Path(path) / "_share_spark" / "in handler" / quote(group_id, safe=""), member_id=member_id)

    @property
    def own(self) -> str:
        """Where the worker leaves this engine's mark; its directory is made."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return str(self.directory / self.member_id)

    def left(self) -> frozenset[str]:
        """The members whose mark is there. Those of long ago are removed."""
        if not self.directory.is_dir():
            return frozenset()
        found = list(self.directory.iterdir())
        old = [mark for mark in found if mark.stat().st_mtime < time.time() - _KEPT_S]
        for mark in old:
            mark.unlink(missing_ok=True)
        return frozenset(mark.name for mark in found if mark not in old)
