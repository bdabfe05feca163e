"""The nodes of a cluster of gateways, which share one state location, and what each of them does. Pure.

Each group has one owner, in whose process its engine is, and each partition a leader, to which clients send what they
fetch of it. Both follow from the nodes alone, by the highest hash: so all that know the same nodes say the same, and
when one comes or goes only what it has, or is to have, changes hands. A leader that does not own the group of a client
passes on what is asked (``passing_on``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

from share_spark.kafka.broker_connection import Address

FIRST_NODE_ID = 1
"""The least id of a node, and that of one that is alone."""


class Node(NamedTuple):
    """A gateway. ``address``: where clients and other gateways connect to. ``secret``: who knows it may pass on
    requests there. ``certificate``: the SHA-256 of its certificate, empty without TLS."""

    node_id: int
    address: Address
    secret: str = ""
    certificate: str = ""


def owner_of(group_id: str, nodes: Iterable[Node]) -> Node:
    """Return the node that owns a group."""
    return _chosen(group_id, nodes)


def leader_of(topic_id: str, partition: int, nodes: Iterable[Node]) -> Node:
    """Return the node that clients are told is the leader of a partition."""
    return _chosen(f"{topic_id}:{partition}", nodes)


def _chosen(text: str, nodes: Iterable[Node]) -> Node:
    return max(nodes, key=lambda node: blake2b(f"{node.node_id}:{text}".encode(), digest_size=16).digest())


class Nodes(Protocol):
    """The nodes, as one of them knows them at present. From any thread."""

    @property
    def me(self) -> Node:
        """This node."""
        ...

    @property
    def live(self) -> Sequence[Node]:
        """All nodes that seem to live, by their ids; this one always does."""
        ...


@dataclass(slots=True)
class LoneNode:
    """Nodes of a gateway that has no others beside it."""

    me: Node

    @property
    def live(self) -> Sequence[Node]:
        """See ``Nodes``."""
        return (self.me,)
