"""A gateway as its hosts have it: open it, and close it."""

from __future__ import annotations

from dataclasses import dataclass
from ssl import SSLContext

from share_spark.gateway.door import Door
from share_spark.gateway.node_login import NodeLogin
from share_spark.gateway.node_register import NodeRegister
from share_spark.gateway.nodes import FIRST_NODE_ID, LoneNode, Node, Nodes
from share_spark.gateway.served_groups import AnyGroup, ServedGroups
from share_spark.gateway.server import Server
from share_spark.gateway.service import Service
from share_spark.gateway.thread import GatewayThread
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.kafka.broker_connection import Address
from share_spark.model.errors import EnvironmentFault


@dataclass(slots=True)
class Gateway:
    """A gateway that listens. ``address``: where. ``_register``: of the gateways beside it, None if it is alone."""

    address: Address
    _thread: GatewayThread
    _groups: ServedGroups
    _register: NodeRegister | None = None

    @classmethod
    def open(
        cls,
        listen: Address,
        groups: ServedGroups,
        catalog: TopicCatalog,
        *,
        advertised: Address | None = None,
        door: Door | None = None,
    ) -> Gateway:
        """Listen, alone. ``advertised``: the address that clients are told to connect to, else the one that is listened
        on. ``door``: what they have to show; None: nothing. Raises EnvironmentFault: the port is in use, or the address
        is not one of this machine."""
        nodes = LoneNode(Node(FIRST_NODE_ID, advertised or listen))
        found = cls._listening(listen, groups, catalog, nodes, door or Door(), None)
        # Where any free port was wanted it is known now, and to nobody before.
        nodes.me = nodes.me._replace(address=advertised or found.address)
        return found

    @classmethod
    def beside_others(
        cls,
        listen: Address,
        groups: AnyGroup,
        catalog: TopicCatalog,
        register: NodeRegister,
        *,
        advertised: Address | None = None,
        door: Door | None = None,
    ) -> Gateway:
        """Do as ``open``, and tell the gateways in the ``register``, which share the groups."""
        way = door or Door()
        found = cls._listening(listen, groups, catalog, register, way, way.to_others)
        found._register = register
        try:
            register.start(advertised or found.address, lambda was_silent: groups.hand_over(all_of_them=was_silent))
        except BaseException:
            found.close()
            raise
        return found

    @classmethod
    def _listening(
        cls,
        listen: Address,
        groups: ServedGroups,
        catalog: TopicCatalog,
        nodes: Nodes,
        door: Door,
        to_others: SSLContext | None,
    ) -> Gateway:
        service = Service(groups, catalog, nodes, to_others)
        thread = GatewayThread(
            Server(*listen, service, tls=door.tls, logins=lambda: NodeLogin(nodes.me.secret, door.logins()))
        )
        try:
            address = thread.start()
        except OSError as fault:
            raise EnvironmentFault(f"cannot listen on {listen}: {fault.strerror or fault}") from fault
        return cls(address, thread, groups)

    def close(self) -> None:
        """Disconnect the clients, end what was started for the groups, and leave them to others. Safe to call twice."""
        self._thread.stop()
        self._groups.stop()
        if self._register is not None:
            self._register.close()
