"""`share-spark gateway`: share groups for clients of Kafka's protocol, without Spark. No JVM."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from share_spark.cli.arguments import pairs_of, parsed
from share_spark.cli.config_files import START
from share_spark.cli.signals import asked_to_end
from share_spark.delta.location import Location
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ConfigError


def serve_clients(arguments: Sequence[str]) -> int:
    """Serve clients until Ctrl-C or SIGTERM. Raises ConfigError, StateError, TopicError, EnvironmentFault: nothing was
    changed."""
    from share_spark.gateway.gateway import Gateway, parse_address
    from share_spark.gateway.group_host import GroupPlace
    from share_spark.gateway.served_groups import AnyGroup
    from share_spark.gateway.topic_catalog import TopicCatalog
    from share_spark.state.tables import check_place
    from share_spark.topics.topic_batches import TopicBatchReader
    from share_spark.topics.topic_table import EmbeddedTopicLog

    given = parsed(arguments)
    listen, advertised = parse_address(given.listen), given.advertise and parse_address(given.advertise)
    state, table = _path(given.state, "--state"), _path(given.topic_table, "--topic-table")
    check_place(None, state)
    log = EmbeddedTopicLog(None, table)
    log.topic_names()
    place = GroupPlace(state=state, log=log, topics=str(table), config=_config(given))
    groups = AnyGroup(place=place, reader=TopicBatchReader(log), clock=wall_clock_ms)
    gateway = Gateway.open(listen, groups, TopicCatalog(log), advertised=advertised)
    try:
        with asked_to_end() as over:
            print(f"share-spark: share consumers connect to {gateway.address}, until Ctrl-C", flush=True)
            over.wait()
    finally:
        print("share-spark: disconnecting clients", file=sys.stderr, flush=True)
        gateway.close()
    return 0


def _path(text: str, option: str) -> Location:
    """Return a location that is a directory: names need a catalog, and so Spark."""
    location = Location.parse(text)
    if location.path is None:
        raise ConfigError(f"{option}: {text!r} is a name of Spark's catalog; a gateway without Spark needs a directory")
    return location


def _config(given: Namespace) -> GroupConfig:
    """Return the settings that groups begin with; ``share-spark configs`` changes those of one group."""
    start = {} if given.starting is None else {START: given.starting}
    return GroupConfig.parse(pairs_of("--option", given.option) | start)
