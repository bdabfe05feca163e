"""A run of a share group as the user configured it: by a configuration file, a command line, or both.

Everything that can be checked without Spark is checked here, so that bad input costs no JVM and changes nothing.
Kafka's
settings may be secrets: they are in no message and in no ``repr``.
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
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.config import DEFAULT_CONFIG, GroupConfig, parse_duration_ms
from share_spark.model.errors import ConfigError
from share_spark.model.ids import check_group_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIGGER = re.compile(r"(\d+)\s*(millisecond|second|minute|hour|day)s?")
_UNIT = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run, checked; make it with ``of``. ``starting``: the start that the user chose, None for the default.
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
        listening: Mapping[str, str] | None = None,
    ) -> Job:
        """Return the job. ``chosen`` has the keys of [job], with ``_``. Raises ConfigError, HandlerError."""
        _require(chosen, needs_handler=not listening)
        for key in ("state", "topic_table"):
            if key in chosen:
                Location.parse(chosen[key])
        source = _kafka_options(chosen, kafka)
        _check_output(chosen)
        names = {name: value for name, value in chosen.items() if name not in ("topic", "bootstrap_server", "cost")}
        if "handler" in chosen:
            names["handler"] = as_handler(chosen["handler"], cost=chosen.get("cost"))
        if "trigger" in chosen:
            names["trigger"] = _interval(chosen["trigger"])
        topics = tuple(chosen["topic"])
        return cls(**names, topics=topics, config=config, kafka=source, listening=listening or {})

    @property
    def source(self) -> str:
        """The place of the topics, as text."""
        return str(self.kafka.bootstrap_servers if self.kafka else self.topic_table)

    def ask_broker(self) -> None:
        """Check that the topics exist; a cluster can be asked without Spark. Raises TopicError (TopicUnreachableError
        in bounded time)."""
        if self.kafka is None:
            return
        log = KafkaTopicLog(self.kafka, request_timeout_ms=self.config.request_timeout_ms)
        for topic in self.topics:
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


def _check_output(chosen: Mapping[str, Any]) -> None:
    if ("to_delta" in chosen) != ("output_schema" in chosen):
        raise ConfigError("--to-delta and --output-schema go together: where output rows go, and their columns")
    if "to_delta" in chosen:
        Location.parse(chosen["to_delta"])


def _interval(text: str) -> str:
    """Return Spark's interval for ``5 seconds``, ``5s`` or ``PT5S``; Spark itself would refuse a bad one only after the
    claim."""
    words = _TRIGGER.fullmatch(text.strip().lower())
    try:
        return f"{parse_duration_ms(words[1] + _UNIT[words[2]] if words else text)} milliseconds"
    except ConfigError:
        raise ConfigError(f"--trigger: not an interval: {text!r} (write '5 seconds', 5s or PT5S)") from None
