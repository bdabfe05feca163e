"""The arguments of `share-spark gateway`, and what they say together with the configuration file."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from share_spark.cli.config_files import GATEWAY_KEYS
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from share_spark.cli.arguments import TopicPlace
    from share_spark.gateway.tls import Tls
    from share_spark.kafka.options import KafkaOptions

_LISTEN = "127.0.0.1:9092"


def add_gateway(command: ArgumentParser) -> None:
    """Add the options of `share-spark gateway`."""
    add = command.add_argument
    add("--state", required=True, metavar="PATH", help="directory of the state tables")
    add("--bootstrap-server", metavar="HOST:PORT", help="the Kafka cluster of the topics, 2.8 or later ...")
    add("--topic-table", metavar="PATH", help="... or the Delta table of the topics")
    add("--kafka-option", action="append", default=[], metavar="KEY=VALUE", help="a Kafka client setting; repeatable")
    add("--config", metavar="FILE", help="TOML: topics in [job], [kafka] with credentials, [share_group], [gateway]")
    add("--listen", metavar="HOST:PORT", help=f"where clients connect to ({_LISTEN})")
    add_door(command)
    add("--node-id", metavar="N", help="its number, if several gateways share the state (1)")
    add("--dead-letter", metavar="PATH", help="keep rejected and given-up records of all groups in this table")
    add("--starting", metavar="WHERE", help="new groups start at earliest, latest (default) or by_duration:PT1H")
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="a setting of all groups; repeatable")


def add_door(command: ArgumentParser) -> None:
    """Add the options of an address for clients."""
    add = command.add_argument
    add("--advertise", metavar="HOST:PORT", help="the address that clients are told, if it is another one")
    add("--tls-certificate", metavar="FILE", help="clients connect with TLS: the certificate chain in PEM ...")
    add("--tls-key", metavar="FILE", help="... its key in PEM, without a password ...")
    add("--tls-client-ca", metavar="FILE", help="... and the authorities of clients, who then need certificates")
    add("--users", metavar="FILE", help="clients log in by SASL: the file that `gateway-user` writes")
    add("--login", metavar="cluster", help="clients log in at the Kafka cluster, with its users and their rights there")


def add_gateway_user(command: ArgumentParser) -> None:
    """Add the options of `share-spark gateway-user`."""
    add = command.add_argument
    add("name", metavar="NAME", help="the user; the password is asked for, or the first line of standard input")
    add("--file", required=True, metavar="FILE", help="the file for --users of gateways; made if it is not there")
    add("--group", action="append", default=[], metavar="NAME", help="may use this group, or those below 'NAME*' ...")
    add("--topic", action="append", default=[], metavar="NAME", help="... and their records of this topic; repeatable")
    changes = "may change and delete these groups, their offsets and settings"
    add("--administer", action=BooleanOptionalAction, help=changes)
    add(
        "--act-as-broker",
        action=BooleanOptionalAction,
        help="may read and write the state of all groups, as brokers do",
    )


def door_settings(given: Namespace, file: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that [gateway] has too, by their keys there: command line over file over defaults."""
    said = {key: getattr(given, key.replace("-", "_"), None) for key in GATEWAY_KEYS}
    return {"listen": _LISTEN, **file, **{key: value for key, value in said.items() if value is not None}}


def node_id_of(settings: Mapping[str, str]) -> int:
    """Return the number of the gateway among those that share a state. Raises ConfigError."""
    said = settings.get("node-id", "1")
    if not said.isdecimal() or not 1 <= int(said) < 2**31:
        raise ConfigError(f"--node-id {said}: a number from 1 on")
    return int(said)


def tls_of(settings: Mapping[str, str]) -> Tls | None:
    """Return the files of TLS, None if there are none. Raises ConfigError: some are missing."""
    from share_spark.gateway.tls import Tls

    certificate, key, client_ca = (settings.get(f"tls-{name}") for name in ("certificate", "key", "client-ca"))
    if certificate is not None and key is not None:
        return Tls(certificate=certificate, key=key, client_ca=client_ca)
    if certificate is None and key is None and client_ca is None:
        return None
    raise ConfigError("TLS takes a certificate and its key: --tls-certificate and --tls-key")


def login_cluster(settings: Mapping[str, str], topics: TopicPlace) -> KafkaOptions | None:
    """Return the cluster at which clients log in, None if they do not. Raises ConfigError."""
    login = settings.get("login")
    if login is None:
        return None
    if login != "cluster":
        raise ConfigError(
            f"--login {login}: clients log in at the cluster (--login cluster), or by a file (--users FILE)"
        )
    if "users" in settings:
        raise ConfigError("clients log in at the cluster (--login cluster), or by a file (--users FILE): choose one")
    if topics.topic_table is not None:
        raise ConfigError("--login cluster: a table of topics has no cluster; clients log in by a file (--users FILE)")
    return topics.kafka
