"""The ways in: what clients have to show before they are answered, from the files that say so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from ssl import SSLContext

from share_spark.gateway.cluster_login import ClusterLogins
from share_spark.gateway.login import Login, NoLogin, SaslLogins
from share_spark.gateway.tls import Tls
from share_spark.gateway.users import UsersFile
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.options import KafkaOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The conditions for clients. ``tls`` None: they connect without. ``logins``: makes the login of a connection.
    ``to_others``: with which this gateway connects to others; ``certificate``: by which they know it (``Node``)."""

    tls: SSLContext | None = None
    to_others: SSLContext | None = None
    certificate: str = ""
    logins: Callable[[], Login] = NoLogin

    @classmethod
    def of(
        cls, listen: Address, *, tls: Tls | None, users: str | None = None, cluster: KafkaOptions | None = None
    ) -> Door:
        """Read the files. ``users``: the file of those who may log in; ``cluster``: where clients log in instead;
        without either nobody has to. Raises ConfigError."""
        context = None if tls is None else tls.context()
        ways = cls() if tls is None else cls(tls=context, to_others=tls.to_others(), certificate=tls.fingerprint())
        if cluster is not None:
            _warn_of_readers(listen, context, "PLAIN shows even passwords")
            return replace(ways, logins=ClusterLogins.of(cluster))
        if users is None:
            return ways
        _warn_of_readers(listen, context, "PLAIN is refused")
        return replace(ways, logins=SaslLogins.of(UsersFile.open(users), is_encrypted=context is not None))


def _warn_of_readers(listen: Address, tls: SSLContext | None, of_plain: str) -> None:
    """Warn of a login that others can see."""
    if tls is None and not _is_here(listen.host):
        text = "clients log in on %s without TLS: SCRAM hides passwords, but nothing hides records; %s"
        _log.warning(text, listen, of_plain)


def _is_here(host: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
