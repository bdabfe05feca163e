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
from share_spark.web.shared_look import SharedLook


@dataclass(slots=True)
class ClusterPageSource:
    """The pages of a cluster, as ``server.PageSource``. ``clock``: milliseconds since the epoch."""

    groups: ClusterShareGroups
    clock: Callable[[], int]
    _look: SharedLook[Cluster] = field(init=False)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._look = SharedLook(self.groups.look, self.clock)

    def page(self, path: str, _query: str = "") -> tuple[HTTPStatus, str]:
        """Return the status and the HTML."""
        try:
            with self._turn:
                cluster = self._look()
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
