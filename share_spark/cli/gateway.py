"""`share-spark gateway`: share groups for clients of Kafka's protocol, without Spark. No JVM."""

from __future__ import annotations

import secrets
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from share_spark.cli.arguments import CHOOSE_ONE, pairs_of, parsed, topic_place
from share_spark.cli.config_files import START, ConfigFile, read_config
from share_spark.cli.gateway_arguments import door_settings, login_cluster, node_id_of, tls_of
from share_spark.cli.signals import asked_to_end
from share_spark.delta.location import Location
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.config import DeliveryOrder, GroupConfig
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from share_spark.gateway.gateway import Gateway
    from share_spark.gateway.group_host import GroupPlace
    from share_spark.gateway.topic_source import TopicSource
    from share_spark.output.dead_letter_table import DeltaDeadLetters


def serve_clients(arguments: Sequence[str]) -> int:
    """Serve clients until Ctrl-C or SIGTERM. Raises ConfigError, StateError, TopicError, DeadLetterError,
    EnvironmentFault: nothing was changed."""
    given = parsed(arguments)
    gateway = _opened(given, read_config(given.config) if given.config else ConfigFile())
    try:
        with asked_to_end() as over:
            print(f"share-spark: share consumers connect to {gateway.address}, until Ctrl-C", flush=True)
            over.wait()
    finally:
        print("share-spark: disconnecting clients", file=sys.stderr, flush=True)
        gateway.close()
    return 0


def _opened(given: Namespace, file: ConfigFile) -> Gateway:
    """Check everything, then listen. Raises as ``serve_clients``."""
    from share_spark.gateway.door import Door
    from share_spark.gateway.gateway import Gateway
    from share_spark.gateway.node_register import NodeRegister
    from share_spark.gateway.nodes import Node
    from share_spark.gateway.served_groups import AnyGroup
    from share_spark.gateway.topic_catalog import TopicCatalog
    from share_spark.kafka.broker_connection import Address
    from share_spark.state.tables import check_place

    said = door_settings(given, file.gateway)
    listen = Address.parse(said["listen"])
    advertised = Address.parse(said["advertise"]) if "advertise" in said else None
    cluster = login_cluster(said, topic_place(given))
    door = Door.of(listen, tls=tls_of(said), users=said.get("users"), cluster=cluster)
    state, config = _path(given.state, "--state"), _config(given, file)
    check_place(None, state)
    source = _source(given, config)
    catalog = TopicCatalog(source.log)
    catalog.all()
    place = _place(given, state, source, config)
    me = Node(node_id_of(said), advertised or listen, secrets.token_urlsafe(32), door.certificate)
    register = NodeRegister.at(state, me)
    groups = AnyGroup(place=place, reader=source.reader, catalog=catalog, clock=wall_clock_ms, nodes=register)
    return Gateway.beside_others(listen, groups, catalog, register, advertised=advertised, door=door)


def _place(given: Namespace, state: Location, source: TopicSource, config: GroupConfig) -> GroupPlace:
    """Return the place of the groups. Raises ConfigError, DeadLetterError."""
    from share_spark.gateway.group_host import GroupPlace

    return GroupPlace(
        state=state,
        log=source.log,
        topics=source.table,
        kafka=source.kafka,
        config=config,
        dead_letters=_dead_letters(given),
    )


def _source(given: Namespace, config: GroupConfig) -> TopicSource:
    """Return the topics: of a cluster, or of a table. Raises ConfigError."""
    from share_spark.gateway.topic_source import TopicSource

    kafka, table = topic_place(given)
    if kafka is not None:
        return TopicSource.of_cluster(kafka, config)
    if table is not None:
        return TopicSource.of_table(None, _path(table, "--topic-table"))
    raise ConfigError(CHOOSE_ONE)


def _dead_letters(given: Namespace) -> DeltaDeadLetters | None:
    """Return the table of dead letters; None if there is to be none. Raises ConfigError, DeadLetterError."""
    from share_spark.output.dead_letter_table import DeltaDeadLetters

    if given.dead_letter is None:
        return None
    letters = DeltaDeadLetters(_path(given.dead_letter, "--dead-letter"))
    letters.check_place(None)
    return letters


def _path(text: str, option: str) -> Location:
    """Return a location that is a directory: names need a catalog, and so Spark."""
    location = Location.parse(text)
    if location.path is None:
        raise ConfigError(f"{option}: {text!r} is a name of Spark's catalog; a gateway without Spark needs a directory")
    return location


def _config(given: Namespace, file: ConfigFile) -> GroupConfig:
    """Return the settings that groups begin with: command line over file. ``share-spark configs`` changes those of one
    group. Raises ConfigError."""
    start = {} if given.starting is None else {START: given.starting}
    config = file.config.changed(pairs_of("--option", given.option) | start)
    if config.delivery_order == DeliveryOrder.KEY:
        raise ConfigError("delivery.order: clients take records of a key in any order, so no gateway can keep it")
    return config
