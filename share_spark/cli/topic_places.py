"""The place of the topics, by the command line and the file of a run together. Starts nothing."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, NamedTuple

from share_spark.cli.arguments import kafka_options
from share_spark.cli.config_files import ConfigFile, read_config
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from share_spark.kafka.options import KafkaOptions

CHOOSE_ONE = "choose where the topics are: --bootstrap-server or --topic-table"


class TopicPlace(NamedTuple):
    """The place of the topics: one of the two; both None if none was given."""

    kafka: KafkaOptions | None
    topic_table: str | None


def topic_place(given: Namespace) -> TopicPlace:
    """Return the place: command line over configuration file. Raises ConfigError."""
    from share_spark.kafka.options import KafkaOptions

    file, said = read_config(given.config) if given.config else ConfigFile(), kafka_options(given)
    if said and given.topic_table is not None:
        raise ConfigError(CHOOSE_ONE)
    topic_table = given.topic_table if said or given.topic_table is not None else file.job.get("topic_table")
    if topic_table is not None:
        return TopicPlace(None, topic_table)
    servers = {"bootstrap.servers": file.job["bootstrap_server"]} if "bootstrap_server" in file.job else {}
    options = {**file.kafka, **servers, **said}
    return TopicPlace(KafkaOptions.parse(options) if options else None, None)
