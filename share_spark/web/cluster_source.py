"""The pages of a Kafka cluster's own share groups, by path."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

from share_spark.kafka.share_groups import Cluster, ClusterShareGroups
from share_spark.web.cluster_page import cluster_group_page, cluster_page
from share_spark.web.document import fault_page
from share_spark.web.pictures import READ_FAULTS, fault_line

_LOOK_MS = 1_000
"""For so long an answer of the brokers serves all who ask."""


@dataclass(slots=True)
class ClusterPageSource:
    """As ``server.PageSource``. ``clock``: milliseconds since the epoch."""

    groups: ClusterShareGroups
    clock: Callable[[], int]
    _look: Cluster | None = None
    _looked_at_ms: int = 0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def page(self, path: str, _query: str = "") -> tuple[HTTPStatus, str]:
        """The status and the HTML."""
        try:
            with self._turn:
                cluster = self._now()
        except READ_FAULTS as fault:
            return HTTPStatus.SERVICE_UNAVAILABLE, fault_page("Not readable", fault_line(fault))
        match [unquote(part) for part in path.split("/")]:
            case ["", ""]:
                return HTTPStatus.OK, cluster_page(cluster, self.clock())
            case ["", "groups", group_id]:
                for group in cluster.groups:
                    if group.group_id == group_id:
                        return HTTPStatus.OK, cluster_group_page(cluster, group, self.clock())
                return HTTPStatus.NOT_FOUND, fault_page("No such group", f"Group {group_id!r} does not exist.")
        return HTTPStatus.NOT_FOUND, fault_page("No such page", "There is no such page.")

    def _now(self) -> Cluster:
        now_ms = self.clock()
        if self._look is None or now_ms - self._looked_at_ms >= _LOOK_MS:
            self._look, self._looked_at_ms = self.groups.look(), now_ms
        return self._look
