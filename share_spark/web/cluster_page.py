"""A Kafka cluster's own share groups as HTML, by pure functions; and these pages by path (``ClusterPageSource``). Names
of groups, topics and clients are foreign text, and all of it is escaped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from urllib.parse import unquote

from share_spark.kafka.share_groups import (
    Cluster,
    ClusterGroup,
    ClusterMember,
    ClusterPartition,
    ClusterShareGroups,
    advice,
)
from share_spark.model.texts import printable
from share_spark.web.document import (
    cell,
    document,
    fault_page,
    group_path,
    heads,
    lag_text,
    place_and_time,
    text_cell,
    way_back,
)
from share_spark.web.pictures import READ_FAULTS, fault_line, total_lag
from share_spark.web.repeated_reads import SharedLook

MOST_PARTITIONS = 1_000
"""The number of share-partitions of a group that are shown: those with the greatest lag."""


def cluster_page(cluster: Cluster, at_ms: int) -> str:
    """Return the page of all groups, live."""
    return document("Share groups", _head(cluster, at_ms), _overview(cluster, with_links=True), live=True)


def cluster_group_page(cluster: Cluster, group: ClusterGroup, at_ms: int) -> str:
    """Return the page of one group, live."""
    body = way_back() + _section(group, cluster.locks)
    return document(f"Share group {group.group_id}", _head(cluster, at_ms), body, live=True)


def cluster_report(cluster: Cluster, at_ms: int) -> str:
    """Return a page of all groups for a file."""
    sections = "".join(_section(group, cluster.locks) for group in cluster.groups)
    body = _overview(cluster, with_links=False) + sections
    return document("Share groups", _head(cluster, at_ms), body, live=False)


def _head(cluster: Cluster, at_ms: int) -> str:
    return place_and_time(f"Kafka at {cluster.servers}", at_ms)


def _overview(cluster: Cluster, *, with_links: bool) -> str:
    if not cluster.groups:
        return '<p class="card">This cluster has no share groups.</p>'
    names = ("Group", "State", "Members", "Lag", "Advice")
    rows = "".join(_row(group, cluster.locks, with_link=with_links) for group in cluster.groups)
    head = heads(*names, numbers=("Members", "Lag"))
    return f'<div class="card"><table class="cards">{head}<tbody>{rows}</tbody></table></div>'


def _row(group: ClusterGroup, locks: int | None, *, with_link: bool) -> str:
    name = _text(group.group_id)
    path = escape(group_path(group.group_id))
    link = f'<a id="to-{escape(group.group_id)}" href="{path}">{name}</a>' if with_link else name
    named = cell("Group", link) + cell("State", _state(group))
    if group.fault:
        return f"<tr>{named}<td colspan='3'>{_text(group.fault)}</td></tr>"
    cells = (
        named,
        cell("Members", f"{len(group.members):,}", is_number=True),
        cell("Lag", lag_text(total_lag(group.partitions)), is_number=True),
        text_cell("Advice", _text("; ".join(advice(group, locks)) or "-")),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _section(group: ClusterGroup, locks: int | None) -> str:
    title = f'<div class="title"><h2>{_text(group.group_id)}</h2>{_state(group)}</div>'
    if group.fault:
        return f'<section>{title}<p class="fault" role="alert">{_text(group.fault)}</p></section>'
    said = "".join(f"<li>{_text(line)}</li>" for line in advice(group, locks))
    parts = [
        title,
        f"<p class='note'>Lag {lag_text(total_lag(group.partitions))}; assignor {_text(group.assignor)}.</p>",
        f"<h3>Advice</h3><ul>{said}</ul>" if said else "",
        _members(group),
        _partitions(group),
    ]
    return f"<section>{''.join(parts)}</section>"


def _members(group: ClusterGroup) -> str:
    if not group.members:
        return "<h3>Members</h3><p class='note'>None.</p>"
    rows = "".join(map(_member, group.members))
    head = heads("Member", "Client", "Host", "Epoch", "Assigned", numbers=("Epoch",))
    return f'<h3>Members</h3><table class="cards">{head}<tbody>{rows}</tbody></table>'


def _member(one: ClusterMember) -> str:
    by_topic = ((topic, ", ".join(map(str, sorted(some)))) for topic, some in sorted(one.assigned.items()))
    assigned = "; ".join(f"{topic}: {numbers}" for topic, numbers in by_topic)
    cells = (
        cell("Member", _text(one.member_id)),
        cell("Client", _text(one.client_id)),
        cell("Host", _text(one.host.removeprefix("/"))),
        cell("Epoch", str(one.epoch), is_number=True),
        cell("Assigned", _text(assigned or "nothing")),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _partitions(group: ClusterGroup) -> str:
    shown = sorted(group.partitions, key=lambda one: -(one.lag or 0))[:MOST_PARTITIONS]
    if not shown:
        return "<h3>Share-partitions</h3><p class='note'>None has begun.</p>"
    rows = "".join(map(_partition, sorted(shown, key=lambda one: (one.topic, one.partition))))
    left = len(group.partitions) - len(shown)
    note = f'<p class="note">Those with the greatest lag; {left:,} more are not shown.</p>' if left else ""
    head = heads("Topic", "Partition", "Start offset", "Lag", numbers=("Partition", "Start offset", "Lag"))
    return f'<h3>Share-partitions</h3>{note}<table class="offsets">{head}<tbody>{rows}</tbody></table>'


def _partition(one: ClusterPartition) -> str:
    cells = (
        cell("Topic", _text(one.topic)),
        cell("Partition", str(one.partition), is_number=True),
        cell("Start offset", "not begun" if one.start_offset < 0 else f"{one.start_offset:,}", is_number=True),
        cell("Lag", _text(one.fault) if one.fault else lag_text(one.lag), is_number=True),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _state(group: ClusterGroup) -> str:
    kind = " broken" if group.fault else " stable" if group.state == "Stable" else ""
    return f'<span class="phase{kind}">{"Not readable" if group.fault else _text(group.state)}</span>'


def _text(text: str) -> str:
    return escape(printable(text))


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
