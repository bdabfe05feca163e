"""A run of a share group as the user configured it: by a configuration file, a command line, or both.

Everything that can be checked without Spark is checked here, so that bad input costs no JVM and changes nothing.
Kafka's settings may be secrets: they are in no message and in no ``repr``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from share_spark.api.query import Trigger
from share_spark.api.share_group import ShareGroup, share_group_of
from share_spark.api.spec import ShareGroupSpec
from share_spark.cli.gateway_arguments import tls_of
from share_spark.delta.location import Location
from share_spark.handlers.handler import Handler, as_handler
from share_spark.handlers.message_rows import check_messages
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.config import DEFAULT_CONFIG, GroupConfig, parse_duration_ms
from share_spark.model.errors import ConfigError
from share_spark.model.ids import check_group_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIGGER = re.compile(r"(\d+)\s*(millisecond|second|minute|hour|day)s?")
_NOT_FIELDS = ("topic", "bootstrap_server", "output_bootstrap_server", "cost", "value_from")
_UNIT = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run, checked; make it with ``of``. ``starting``: the start that the user chose, None for the default.
    ``out_kafka``: the cluster of ``to_kafka``, None for that of the topics.
    ``listening``: where and how clients may come, by the keys of [gateway]; empty: they may not."""

    group: str
    topics: tuple[str, ...]
    state: str
    handler: Handler | None = None
    kafka: KafkaOptions | None = None
    topic_table: str | None = None
    dead_letter: str | None = None
    to_delta: str | None = None
    output_schema: str | None = None
    to_kafka: str | None = None
    out_kafka: KafkaOptions | None = None
    trigger: str | None = None
    available_now: bool = False
    checkpoint: str | None = None
    query_name: str | None = None
    starting: str | None = None
    config: GroupConfig = DEFAULT_CONFIG
    listening: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        chosen: Mapping[str, Any],
        config: GroupConfig,
        kafka: Mapping[str, str],
        output_kafka: Mapping[str, str],
        listening: Mapping[str, str] | None = None,
    ) -> Job:
        """Return the job. ``chosen`` has the keys of [job], with ``_``. Raises ConfigError, HandlerError."""
        _require(chosen, needs_handler=not listening)
        for key in ("state", "topic_table", "to_delta"):
            if key in chosen:
                Location.parse(chosen[key])
        names = {name: value for name, value in chosen.items() if name not in _NOT_FIELDS}
        names["kafka"] = _kafka_options(chosen, kafka)
        names["out_kafka"] = _output_cluster(chosen, output_kafka)
        if "handler" in chosen:
            names["handler"] = _handler(chosen)
        if "trigger" in chosen:
            names["trigger"] = _interval(chosen["trigger"])
        return cls(**names, topics=tuple(chosen["topic"]), config=config, listening=listening or {})

    @property
    def source(self) -> str:
        """The place of the topics, as text."""
        return str(self.kafka.bootstrap_servers if self.kafka else self.topic_table)

    def ask_brokers(self) -> None:
        """Check that the topics exist; a cluster can be asked without Spark. Raises TopicError (TopicUnreachableError
        in bounded time)."""
        output = () if self.to_kafka is None else (self.to_kafka,)
        for cluster, topics in ((self.kafka, self.topics), (self.out_kafka or self.kafka, output)):
            if cluster is not None and topics:
                log = KafkaTopicLog(cluster, request_timeout_ms=self.config.request_timeout_ms)
                for topic in topics:
                    log.describe(topic)

    def share_group(self, spark: SparkSession) -> ShareGroup:
        """Return the public API's value for this job; nothing happens before its ``start``."""
        spec = ShareGroupSpec(
            group_id=self.group,
            spark=spark,
            state=self.state,
            kafka=self.kafka,
            table=None if self.topic_table is None else Location.parse(self.topic_table),
            topics=self.topics,
            handler=None if self.handler is None else as_handler(self.handler, output=self.output_schema),
            sink=self.to_delta,
            out_topic=self.to_kafka,
            out_kafka=self.out_kafka,
            dead_letter=self.dead_letter,
            config=self.config,
            checkpoint=self.checkpoint,
            name=self.query_name,
            trigger=Trigger(processing_time=self.trigger, available_now=self.available_now),
        )
        found, said = share_group_of(spec), self.listening
        if not said:
            return found
        return found.listen_on(
            said["listen"],
            advertised=said.get("advertise"),
            tls=tls_of(said),
            users=said.get("users"),
            login=said.get("login"),
        )


def _require(chosen: Mapping[str, Any], *, needs_handler: bool) -> None:
    for name in ("group", "topic", *(("handler",) if needs_handler else ()), "state"):
        if name not in chosen:
            raise ConfigError(f"--{name} is missing")
    for name in ("cost", "value_from", "to_delta", "to_kafka"):
        if name in chosen and "handler" not in chosen:
            raise ConfigError(f"--{name.replace('_', '-')} needs --handler")
    check_group_id(chosen["group"])
    if not chosen["topic"] or not all(isinstance(topic, str) and topic.strip() for topic in chosen["topic"]):
        raise ConfigError("--topic is empty")
    if "trigger" in chosen and chosen.get("available_now"):
        raise ConfigError("--trigger and --available-now exclude each other")


def _kafka_options(chosen: Mapping[str, Any], kafka: Mapping[str, str]) -> KafkaOptions | None:
    if ("bootstrap_server" in chosen) == ("topic_table" in chosen):
        raise ConfigError("choose one source: --bootstrap-server or --topic-table")
    if "bootstrap_server" in chosen:
        return KafkaOptions.parse({"bootstrap.servers": chosen["bootstrap_server"], **kafka})
    if kafka:
        raise ConfigError("--kafka-option needs --bootstrap-server")
    return None


def _output_cluster(chosen: Mapping[str, Any], kafka: Mapping[str, str]) -> KafkaOptions | None:
    """Return the cluster of ``--to-kafka``, None for that of the topics. Raises ConfigError."""
    _check_output(chosen)
    if "output_bootstrap_server" in chosen:
        return KafkaOptions.parse({"bootstrap.servers": chosen["output_bootstrap_server"], **kafka})
    if kafka:
        raise ConfigError("--output-kafka-option needs --output-bootstrap-server")
    if "to_kafka" in chosen and "topic_table" in chosen:
        raise ConfigError("--to-kafka: a table of topics has no cluster: give --output-bootstrap-server")
    return None


def _check_output(chosen: Mapping[str, Any]) -> None:
    if "to_delta" in chosen and "to_kafka" in chosen:
        raise ConfigError("choose one output: --to-delta or --to-kafka")
    if ("to_delta" in chosen) != ("output_schema" in chosen):
        raise ConfigError("--to-delta and --output-schema go together: where output rows go, and their columns")
    if "output_bootstrap_server" in chosen and "to_kafka" not in chosen:
        raise ConfigError("--output-bootstrap-server needs --to-kafka")
    if not chosen.get("to_kafka", "any").strip():
        raise ConfigError("--to-kafka is empty")


def _handler(chosen: Mapping[str, Any]) -> Handler:
    """Return the handler. Raises HandlerError, also if it has no messages and ``--to-kafka`` wants them."""
    handler = as_handler(chosen["handler"], cost=chosen.get("cost"), value_from=chosen.get("value_from"))
    if "to_kafka" in chosen:
        check_messages(handler)
    return handler


def _interval(text: str) -> str:
    """Return Spark's interval for ``5 seconds``, ``5s`` or ``PT5S``; Spark itself would refuse a bad one only after the
    claim."""
    words = _TRIGGER.fullmatch(text.strip().lower())
    try:
        return f"{parse_duration_ms(words[1] + _UNIT[words[2]] if words else text)} milliseconds"
    except ConfigError:
        raise ConfigError(f"--trigger: not an interval: {text!r} (write '5 seconds', 5s or PT5S)") from None
