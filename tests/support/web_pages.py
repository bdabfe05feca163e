"""A page server over groups that a test makes up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from share_spark.admin.group_details import GroupDetails, GroupListing
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.model.errors import ShareError, StateError
from share_spark.web.server import PageServer, PageSource
from tests.support.group_details import NOW_MS


@dataclass
class MadeUpGroups:
    """In the place of ``ShareGroupAdmin`` and of its looks. ``fault``: what each look raises."""

    groups: dict[str, GroupDetails | ShareError] = field(default_factory=dict)
    location: str = "/lake/queues"
    fault: Exception | None = None
    letters: str | None = None
    looks: int = 0
    is_past: bool = False
    row_files: dict[str, object] = field(default_factory=dict)
    now_ms: int = NOW_MS

    def look(self) -> MadeUpGroups:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return self

    @property
    def reader(self) -> MadeUpGroups:
        return self

    @property
    def log(self) -> MadeUpGroups:
        return self

    def require(self, group_id: str) -> None:
        if group_id not in self.groups:
            raise StateError(f"Group '{group_id}' does not exist")

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(group_id=name, phase=None) for name in sorted(self.groups)]

    def letter_table(self, _group_id: str) -> str | None:
        return self.letters

    def details(self, group_id: str) -> GroupDetails:
        found = self.groups[group_id]
        if isinstance(found, ShareError):
            raise found
        return found

    def clock(self) -> int:
        """Each look is a new one."""
        self.now_ms += 1_000
        return self.now_ms


@contextmanager
def served(
    groups: MadeUpGroups | ShareGroupAdmin,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    clock: Callable[[], int] | None = None,
) -> Iterator[PageServer]:
    """``clock``: of real groups."""
    with PageServer(PageSource(groups, clock or groups.clock), host, 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
