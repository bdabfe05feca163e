"""A gateway as its hosts have it: open it, and close it."""

from __future__ import annotations

from dataclasses import dataclass

from share_spark.gateway.door import Door
from share_spark.gateway.served_groups import ServedGroups
from share_spark.gateway.server import Server
from share_spark.gateway.service import Service
from share_spark.gateway.thread import GatewayThread
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.kafka.broker_connection import Address
from share_spark.model.errors import ConfigError, EnvironmentFault


@dataclass(slots=True)
class Gateway:
    """A gateway that listens. ``address``: where."""

    address: Address
    _thread: GatewayThread
    _groups: ServedGroups

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
        """Listen. ``advertised``: the address that clients are told to connect to, else the one that is listened on.
        ``door``: what they have to show; None: nothing. Raises EnvironmentFault: the port is in use, or the address is
        not one of this machine."""
        service = Service(groups, catalog, advertised or listen)
        way = door or Door()
        thread = GatewayThread(Server(*listen, service, tls=way.tls, logins=way.logins))
        try:
            address = thread.start()
        except OSError as fault:
            raise EnvironmentFault(f"cannot listen on {listen}: {fault.strerror or fault}") from fault
        # Where any free port was wanted it is known now, and to nobody before.
        service.node = advertised or address
        return cls(address, thread, groups)

    def close(self) -> None:
        """Disconnect the clients, and end what was started for the groups. Safe to call twice."""
        self._thread.stop()
        self._groups.stop()


def parse_address(text: str) -> Address:
    """Return ``host:port``; an IPv6 address is in brackets. Raises ConfigError."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{text!r} is not an address: host:port")
    return Address(host, int(port))
