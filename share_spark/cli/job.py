"""A run of a share group as the user configured it: by a configuration file, a command line, or both.

Everything is judged here that can be judged without Spark, so that bad input costs no JVM and changes nothing. Kafka's
settings may be secrets: they are in no message and in no ``repr``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from share_spark.api.share_group import ShareGroup
from share_spark.delta.location import Location
from share_spark.handlers.handler import Handler, as_handler
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.config import GroupConfig, parse_duration_ms
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = "share.auto.offset.reset"

_TRIGGER = re.compile(r"(\d+)\s*(millisecond|second|minute|hour|day)s?")
_UNIT = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run, checked; make it with ``of``. ``starting``: where the user said to start, None if nothing was said."""

    group: str
    topics: tuple[str, ...]
    handler: Handler
    state: str
    bootstrap_server: str | None = None
    topic_table: str | None = None
    dead_letter: str | None = None
    to_delta: str | None = None
    output_schema: str | None = None
    trigger: str | None = None
    available_now: bool = False
    checkpoint: str | None = None
    query_name: str | None = None
    starting: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, chosen: Mapping[str, Any], settings: Mapping[str, Any], kafka: Mapping[str, str]) -> Job:
        """``chosen`` has the keys of [job], with ``_``. Raises ConfigError, HandlerError (it does not import)."""
        _require(chosen)
        GroupConfig.parse(settings)
        for key in ("state", "topic_table"):
            if key in chosen:
                Location.parse(chosen[key])
        _check_source(chosen, kafka)
        _check_output(chosen)
        names = {name: value for name, value in chosen.items() if name != "topic"}
        names |= {"handler": as_handler(chosen["handler"]), "starting": settings.get(START)}
        if "trigger" in chosen:
            names["trigger"] = _interval(chosen["trigger"])
        return cls(**names, topics=tuple(chosen["topic"]), settings=settings, kafka=kafka)

    @property
    def source(self) -> str:
        """Where the topics are, as readable text."""
        return str(self.bootstrap_server or self.topic_table)

    def ask_broker(self) -> None:
        """Do the topics exist? A cluster can be asked without Spark. Raises TopicError (TopicUnreachableError in
        bounded time)."""
        if self.bootstrap_server is None:
            return
        options = KafkaOptions.parse({"bootstrap.servers": self.bootstrap_server, **self.kafka})
        log = KafkaTopicLog(options, request_timeout_ms=GroupConfig.parse(self.settings).request_timeout_ms)
        for topic in self.topics:
            log.describe(topic)

    def share_group(self, spark: SparkSession) -> ShareGroup:
        """The public API's value for this job; nothing happens before its ``start``."""
        group = ShareGroup(self.group, spark=spark, state=self.state).subscribe(*self.topics)
        group = group.process(self.handler, output=self.output_schema)
        if self.bootstrap_server is not None:
            group = group.kafka(self.bootstrap_server, **self.kafka)
        if self.topic_table is not None:
            group = group.table(self.topic_table)
        if self.dead_letter is not None:
            group = group.dead_letter(self.dead_letter)
        if self.to_delta is not None:
            group = group.to_delta(self.to_delta)
        if self.checkpoint is not None:
            group = group.option("checkpointLocation", self.checkpoint)
        if self.query_name is not None:
            group = group.queryName(self.query_name)
        return group.options(**self.settings).trigger(processingTime=self.trigger, availableNow=self.available_now)


def _require(chosen: Mapping[str, Any]) -> None:
    for name in ("group", "topic", "handler", "state"):
        if name not in chosen:
            raise ConfigError(f"--{name} is missing")
    if not chosen["group"].strip():
        raise ConfigError("--group is empty: a share group needs an id")
    if not chosen["topic"] or not all(isinstance(topic, str) and topic.strip() for topic in chosen["topic"]):
        raise ConfigError("--topic is empty")
    if "trigger" in chosen and chosen.get("available_now"):
        raise ConfigError("--trigger and --available-now exclude each other")


def _check_source(chosen: Mapping[str, Any], kafka: Mapping[str, str]) -> None:
    if ("bootstrap_server" in chosen) == ("topic_table" in chosen):
        raise ConfigError("choose one source: --bootstrap-server or --topic-table")
    if "bootstrap_server" in chosen:
        KafkaOptions.parse({"bootstrap.servers": chosen["bootstrap_server"], **kafka})
    elif kafka:
        raise ConfigError("--kafka-option needs --bootstrap-server")


def _check_output(chosen: Mapping[str, Any]) -> None:
    if ("to_delta" in chosen) != ("output_schema" in chosen):
        raise ConfigError("--to-delta and --output-schema go together: where output rows go, and their columns")
    if "to_delta" in chosen:
        Location.parse(chosen["to_delta"])


def _interval(text: str) -> str:
    """Spark's interval for ``5 seconds``, ``5s`` or ``PT5S``; Spark itself would refuse a bad one only after the
    claim."""
    words = _TRIGGER.fullmatch(text.strip().lower())
    try:
        return f"{parse_duration_ms(words[1] + _UNIT[words[2]] if words else text)} milliseconds"
    except ConfigError:
        raise ConfigError(f"--trigger: not an interval: {text!r} (write '5 seconds', 5s or PT5S)") from None
