"""The public API: a share group on Spark, in the idiom of ``DataStreamWriter``.

    query = (
        ShareGroup("billing", spark=spark, state="/lake/queues")
        .kafka("broker:9092")
        .subscribe("orders")
        .process(bill)
        .to_delta("/lake/bills")
        .dead_letter("orders-dead")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

A ``ShareGroup`` is a value: each call returns a new one, nothing happens before ``start``.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from share_spark.api.checkpoint import Checkpoint
from share_spark.api.clock import wall_clock_ms
from share_spark.api.query import ShareGroupQuery, Trigger
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.spark_delivery import SparkDelivery, is_one_machine
from share_spark.delta.location import Location
from share_spark.engine.micro_batch import Ports, ShareGroupEngine
from share_spark.engine.ports import DeadLetterTarget, TopicLog
from share_spark.engine.progress import MicroBatchProgress
from share_spark.engine.topics import SubscribedTopics
from share_spark.handlers.handler import Handler, HandlerKind, as_handler
from share_spark.kafka.dead_letters import KafkaDeadLetters
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.maintenance.upkeep import Upkeep
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ConfigError
from share_spark.output.dead_letters import DeltaDeadLetters
from share_spark.output.output_sink import DeltaOutput
from share_spark.output.sink import DeltaSink, sink_app_id
from share_spark.output.spark_dead_letters import SparkDeadLetters
from share_spark.partition import PartitionLimits
from share_spark.spark.capabilities import warn_of_all
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINT = "checkpointLocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where topics live: exactly one of Kafka and a topic table."""

    kafka: Mapping[str, str] | None = None
    table: Location | None = None


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A share group to be: who it is, what it reads, how it handles, where its state lives.

    ``group_id``: names the group; two groups on the same topic are independent of each other. ``spark``: used as it
    is, no setting of it is changed. ``state``: a directory or ``catalog.schema`` for the state tables; several
    groups may share it.
    """

    group_id: str
    spark: SparkSession = field(kw_only=True)
    state: str = field(kw_only=True)
    _source: _Source = field(default_factory=_Source, kw_only=True)
    _topics: tuple[str, ...] = field(default=(), kw_only=True)
    _handler: Handler | None = field(default=None, kw_only=True)
    _dead_letter: str | None = field(default=None, kw_only=True)
    _sink: str | None = field(default=None, kw_only=True)
    _options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    _checkpoint: str | None = field(default=None, kw_only=True)
    _name: str | None = field(default=None, kw_only=True)
    _trigger: Trigger = field(default_factory=Trigger, kw_only=True)
    _listeners: tuple[Callable[[MicroBatchProgress], None], ...] = field(default=(), kw_only=True)

    def kafka(self, bootstrap_servers: str, **options: str) -> ShareGroup:
        """Read topics of a Kafka cluster. ``options``: any Kafka client setting, in Java's or librdkafka's name,
        with ``_`` or ``.``; given once, translated for both clients."""
        given = {name.replace("_", ".") if "." not in name else name: value for name, value in options.items()}
        return replace(self, _source=_Source(kafka={"bootstrap.servers": bootstrap_servers, **given}))

    def table(self, location: str) -> ShareGroup:
        """Read topics of an embedded topic log, a Delta table in Kafka's shape: no broker needed."""
        return replace(self, _source=_Source(table=Location.parse(location)))

    def subscribe(self, *topics: str) -> ShareGroup:
        """Topics to read, all partitions of each."""
        return replace(self, _topics=topics)

    def process(self, handler: Callable[..., Any] | str | Handler, *, output: Any = None) -> ShareGroup:
        """What to do with each record: see ``share_spark.handlers.handler``. ``output`` declares the schema of
        output rows.

        Raises HandlerError if it cannot be imported or is no handler.
        """
        return replace(self, _handler=as_handler(handler, output=output))

    def to_delta(self, table: str) -> ShareGroup:
        """Where the handler's output rows go: a Delta table, a directory or a name, made if it is missing. Rows and the
        acknowledgements they belong to are decided by one commit: exactly once, whatever dies when. Needs
        ``process(handler, output=...)``. What a handler does elsewhere happens at least once."""
        return replace(self, _sink=table)

    def dead_letter(self, target: str) -> ShareGroup:
        """Where rejected records, and those over the delivery limit, are kept: a topic of the same Kafka cluster,
        or, with a slash or a dot-separated name and no Kafka, a Delta table. Without it they are archived only."""
        return replace(self, _dead_letter=target)

    def option(self, key: str, value: Any) -> ShareGroup:
        """One setting (``share_spark.model.config.SETTINGS``), or ``checkpointLocation``."""
        return self.options(**{key: value})

    def options(self, **options: Any) -> ShareGroup:
        """Several settings at once; checked in ``start``."""
        rest = {key: value for key, value in options.items() if key != _CHECKPOINT}
        checkpoint = options.get(_CHECKPOINT, self._checkpoint)
        return replace(self, _options={**self._options, **rest}, _checkpoint=checkpoint)

    def queryName(self, name: str) -> ShareGroup:  # noqa: N802 - DataStreamWriter's name
        """Name of the streaming query, as Spark's UI and listeners show it."""
        return replace(self, _name=name)

    def trigger(self, *, processingTime: str | None = None, availableNow: bool = False) -> ShareGroup:  # noqa: N803
        """``processingTime``: how often a micro-batch may start (``"5 seconds"``); default: as soon as the last has
        ended.
        ``availableNow``: work off everything that is in the log now, retries included, then end."""
        if processingTime is not None and availableNow:
            raise ConfigError("trigger: choose processingTime or availableNow, not both")
        return replace(self, _trigger=Trigger(processing_time=processingTime, available_now=availableNow))

    def listen(self, listener: Callable[[MicroBatchProgress], None]) -> ShareGroup:
        """Call ``listener`` with the progress of every micro-batch, on the query's thread."""
        return replace(self, _listeners=(*self._listeners, listener))

    def start(self) -> ShareGroupQuery:
        """Check everything, claim the group, start the streaming query.

        Raises ConfigError, TopicError, HandlerError, StateError, FencedError; then nothing has been changed.
        """
        config = self._checked()
        warn_of_all()
        location = Location.parse(self.state)
        checkpoint = Checkpoint.at(self.spark, self._checkpoint, location, self.group_id)
        checkpoint.check(self.group_id)
        log = self._topic_log(config)
        engine, store = self._engine(config, location, log, checkpoint.writer_epoch)
        upkeep = Upkeep(
            spark=self.spark,
            location=location,
            store=store,
            refresh_ms=config.state_refresh_ms,
            retention_ms=config.history_retention_ms,
            compaction_interval_ms=config.compaction_interval_ms,
        )
        query = ShareGroupQuery(
            spark=self.spark,
            engine=engine,
            store=store,
            upkeep=upkeep,
            trigger=self._trigger,
            name=self._name,
            checkpoint=checkpoint,
            listeners=self._listeners,
        )
        query.start(self._required_handler())
        return query

    def _checked(self) -> GroupConfig:
        if not self.group_id.strip():
            raise ConfigError("group id is empty")
        if not self._topics or not all(self._topics):
            raise ConfigError("no topic: call subscribe(topic)")
        handler = self._required_handler()
        if self._sink is not None and handler.output is None:
            raise ConfigError(f"to_delta: handler {handler.name} declares no output: call process(handler, output=...)")
        return GroupConfig.parse(self._options)

    def _required_handler(self) -> Handler:
        if self._handler is None:
            raise ConfigError("no handler: call process(handler)")
        return self._handler

    def _topic_log(self, config: GroupConfig) -> TopicLog:
        if self._source.kafka is not None:
            return KafkaTopicLog(self._kafka_options(config), request_timeout_ms=config.request_timeout_ms)
        if self._source.table is not None:
            return EmbeddedTopicLog(self.spark, self._source.table)
        raise ConfigError("no source: call kafka(bootstrap_servers) or table(location)")

    def _kafka_options(self, config: GroupConfig) -> KafkaOptions:
        return KafkaOptions.parse({**(self._source.kafka or {}), "isolation.level": config.isolation_level})

    def _dead_letters(self, config: GroupConfig, store: DeltaShareStateStore) -> DeadLetterTarget | None:
        if self._dead_letter is None:
            return None
        if self._source.kafka is not None and "/" not in self._dead_letter:
            target: KafkaDeadLetters | DeltaDeadLetters = KafkaDeadLetters(
                self._dead_letter, self._kafka_options(config), request_timeout_ms=config.request_timeout_ms
            )
        else:
            target = DeltaDeadLetters(Location.parse(self._dead_letter), lambda: store.log_id)
        target.check(self.spark)
        return target

    def _engine(
        self, config: GroupConfig, location: Location, log: TopicLog, least_epoch: int
    ) -> tuple[ShareGroupEngine, DeltaShareStateStore]:
        store = self._store(config, location, least_epoch)
        topics = SubscribedTopics(
            group_id=self.group_id, topics=self._topics, log=log, reset=config.offset_reset, clock=wall_clock_ms
        )
        target = self._dead_letters(config, store)
        letters = target and SparkDeadLetters(
            spark=self.spark,
            log=log,
            group_id=self.group_id,
            target=target,
            journal=functools.cache(functools.partial(store.journal, "dead letters")),
        )
        handler = self._required_handler()
        if handler.timeout_ms is None and handler.kind is not HandlerKind.FRAME:
            handler = replace(handler, timeout_ms=config.delivery_timeout_ms)
        delivery = SparkDelivery(
            spark=self.spark,
            log=log,
            handler=handler,
            place=functools.cache(
                lambda: LedgerPlace.beside(
                    store.directory,
                    store.log_id,
                    self.group_id,
                    store.member_id,
                    one_machine=is_one_machine(self.spark),
                )
            ),
            budget_ms=config.delivery_budget_ms,
        )
        ports = Ports(
            topics=topics,
            store=store,
            delivery=delivery,
            dead_letters=letters or None,
            sink=self._output(handler, store, delivery),
            clock=wall_clock_ms,
        )
        return ShareGroupEngine(config=config, ports=ports, available_now=self._trigger.available_now), store

    def _store(self, config: GroupConfig, location: Location, least_epoch: int) -> DeltaShareStateStore:
        limits = PartitionLimits(
            max_delivery_count=config.max_delivery_count,
            max_record_locks=config.max_record_locks,
            lock_duration_ms=config.lock_duration_ms,
        )
        return DeltaShareStateStore(
            spark=self.spark,
            location=location,
            group_id=self.group_id,
            run_id=uuid.uuid4().hex[:12],
            limits=limits,
            updates_per_snapshot=config.updates_per_snapshot,
            audit=config.history_retention_ms > 0,
            least_epoch=least_epoch,
        )

    def _output(self, handler: Handler, store: DeltaShareStateStore, delivery: SparkDelivery) -> DeltaOutput | None:
        if self._sink is None or handler.output is None:
            return None
        sink = DeltaSink(
            spark=self.spark,
            table=Location.parse(self._sink),
            journal=functools.cache(functools.partial(store.journal, "output")),
            app_id=lambda: sink_app_id(self.group_id, store.log_id),
            run_id=store.run_id,
        )
        sink.prepare(from_arrow_schema(handler.output))
        return DeltaOutput(sink=sink, delivery=delivery, group_id=self.group_id)
