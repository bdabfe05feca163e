"""The wiring of a share group: from its settings (``ShareGroupSpec``) to a query that runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from share_spark.api.checkpoint import Checkpoint
from share_spark.api.query import ShareGroupQuery
from share_spark.api.spec import CLUSTER, ShareGroupSpec
from share_spark.companion.delivery import CompanionDelivery
from share_spark.delivery.deliver import SparkDelivery
from share_spark.delivery.no_handler import NoHandler
from share_spark.delta.location import Location
from share_spark.engine.client_asks import Clients
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.ports import DeadLetterSink, DeadLetterTarget, OutputSink, TopicLog
from share_spark.engine.topics import SubscribedTopics
from share_spark.engine.world import Ports
from share_spark.handlers.handler import shown_name
from share_spark.handlers.message_rows import with_messages
from share_spark.kafka.dead_letter_topic import KafkaDeadLetters
from share_spark.kafka.message_sender import MessageSender
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.maintenance.background import BackgroundMaintenance, log_retention_ms
from share_spark.maintenance.heartbeat import dynamic_config_file, pause_file, wall_clock_ms
from share_spark.maintenance.operator_files import DynamicConfigReader, PauseReader
from share_spark.metrics.tracing import spans_of
from share_spark.model.config import DeliveryOrder
from share_spark.output.dead_letter_sinks import AnnouncedDeadLetters, BackgroundDeadLetters, NoDeadLetters
from share_spark.output.dead_letter_table import DeltaDeadLetters
from share_spark.output.kafka_output import KafkaOutput
from share_spark.output.sink import DeltaOutput, DeltaSink, FormerSinks
from share_spark.spark.capabilities import warn_of_all
from share_spark.spark.installed import require_release
from share_spark.spark.schemas import spark_schema
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from share_spark.engine.progress import MicroBatchProgress
    from share_spark.gateway.listening_group import ListeningGroup
    from share_spark.metrics.endpoint import MetricsServer

Found = TypeVar("Found")


def start_query(spec: ShareGroupSpec) -> ShareGroupQuery:
    """Start a query; see ``ShareGroup.start``."""
    spec.check()
    if spec.out_topic is not None:
        spec = replace(spec, handler=with_messages(spec.required_handler))
    warn_of_all()
    with ExitStack() as if_it_fails:
        if (metrics := _metrics(spec)) is not None:
            if_it_fails.callback(metrics.close)
        if (door := _door(spec)) is not None:
            if_it_fails.callback(door.close, None)
        query = _started(spec, metrics, door)
        if_it_fails.pop_all()
    return query


def _metrics(spec: ShareGroupSpec) -> MetricsServer | None:
    """Open the metrics port before anything is claimed or made: a port in use is bad input."""
    if spec.config.metrics_port == 0:
        return None
    from share_spark.metrics.endpoint import GroupMetrics, MetricsServer

    metrics = GroupMetrics(group_id=spec.group_id, clock=wall_clock_ms)
    return MetricsServer.open(metrics, spec.config.metrics_host, spec.config.metrics_port)


def _door(spec: ShareGroupSpec) -> ListeningGroup | None:
    """Listen for clients, for the same reason. Raises EnvironmentFault."""
    if spec.listen_on is None:
        return None
    from share_spark.gateway.door import Door  # with kio, 0.2 s
    from share_spark.gateway.listening_group import ListeningGroup
    from share_spark.gateway.stored_groups import StoredGroups
    from share_spark.gateway.topic_source import TopicSource

    if spec.kafka is not None:
        source = TopicSource.of_cluster(spec.kafka, spec.config)
    else:
        source = TopicSource.of_table(spec.spark, spec.required_table)
    return ListeningGroup.open(
        spec.group_id,
        spec.topics,
        source,
        spec.listen_on,
        stored=StoredGroups(spec.state, spec.spark, spec.config),
        advertised=spec.advertised,
        door=Door.of(
            spec.listen_on, tls=spec.tls, users=spec.users, cluster=spec.kafka if spec.login == CLUSTER else None
        ),
        config=spec.config,
    )


def _watchers(
    spec: ShareGroupSpec, engine: ShareGroupEngine, metrics: MetricsServer | None
) -> Iterator[Callable[[MicroBatchProgress], None]]:
    if metrics is not None:
        yield metrics.watch(engine.look)
    if (spans := spans_of(spec.group_id)) is not None:
        yield spans.note


def _started(spec: ShareGroupSpec, metrics: MetricsServer | None, door: ListeningGroup | None) -> ShareGroupQuery:
    require_release(spec.spark.version)
    config = spec.config
    location = Location.parse(spec.state)
    checkpoint = Checkpoint.at(spec.spark, spec.checkpoint, location, spec.group_id)
    checkpoint.check(spec.group_id)
    log = _topic_log(spec)
    clients = None if door is None else door.clients
    engine, store = _engine(spec, location, log, checkpoint.writer_epoch, clients)
    maintenance = BackgroundMaintenance(
        spark=spec.spark,
        location=location,
        store=store,
        refresh_ms=config.state_refresh_ms,
        retention_ms=config.history_retention_ms,
        compaction_interval_ms=config.compaction_interval_ms,
        log_retention_ms=log_retention_ms(config, has_clients=door is not None),
        kafka=spec.kafka.bootstrap_servers if spec.kafka is not None else None,
        table=_directory(spec, spec.table),
        settings=config.not_default(),
        letters=_directory(spec, spec.letter_table),
        is_breaker_open=lambda: bool(engine.look().breaker),
        calls_text=lambda: str(engine.look().calls or ""),
    )
    query = ShareGroupQuery(
        spark=spec.spark,
        engine=engine,
        store=store,
        maintenance=maintenance,
        trigger=spec.trigger,
        name=spec.name,
        checkpoint=checkpoint,
        listeners=(*_watchers(spec, engine, metrics), *spec.listeners),
        metrics=metrics,
        door=door,
        without_secrets=str if spec.kafka is None else spec.kafka.without_secrets,
    )
    query.start(shown_name(spec.handler))
    return query


def _directory(spec: ShareGroupSpec, table: Location | None) -> str | None:
    """Return the directory of a table for readers without Spark, which know no catalog. A table that is missing keeps
    its name, and the engine reports it at its start."""
    if table is None or table.path is not None:
        return None if table is None else table.path
    return str(table) if table.is_free(spec.spark) else table.directory(spec.spark)


def _topic_log(spec: ShareGroupSpec) -> TopicLog:
    if spec.kafka is not None:
        options = spec.kafka.with_isolation_level(spec.config.isolation_level)
        return KafkaTopicLog(options, request_timeout_ms=spec.config.request_timeout_ms)
    return EmbeddedTopicLog(spec.spark, spec.required_table)


def _dead_letters(spec: ShareGroupSpec) -> DeadLetterTarget | None:
    if spec.dead_letter is None:
        return None
    if spec.letter_table is not None:
        target: KafkaDeadLetters | DeltaDeadLetters = DeltaDeadLetters(spec.letter_table)
    else:
        assert spec.kafka is not None, "its topics"
        timeout_ms = spec.config.request_timeout_ms
        target = KafkaDeadLetters(spec.dead_letter, spec.kafka, request_timeout_ms=timeout_ms)
    target.check(spec.spark)
    return target


def _engine(
    spec: ShareGroupSpec, location: Location, log: TopicLog, least_epoch: int, clients: Clients | None
) -> tuple[ShareGroupEngine, DeltaShareStateStore]:
    store = _store(spec, location, least_epoch)
    where = spec.spark, location, spec.group_id
    topics = SubscribedTopics(group_id=spec.group_id, topics=spec.topics, log=log, clock=wall_clock_ms)
    delivery = _delivery(spec, log)
    target = _dead_letters(spec)
    letters: DeadLetterSink = NoDeadLetters(spark=spec.spark)
    if target is not None:
        sink = AnnouncedDeadLetters(spark=spec.spark, log=log, target=target, kept=delivery.kept_records)
        letters = BackgroundDeadLetters(sink=sink)
    ports = Ports(
        topics=topics,
        store=store,
        delivery=delivery,
        dead_letters=letters,
        sink=_output(spec, delivery),
        clock=wall_clock_ms,
        config=_opened_when_asked(lambda: DynamicConfigReader(dynamic_config_file(*where), spec.config)),
        pauses=_opened_when_asked(lambda: PauseReader(pause_file(*where))),
        clients=clients,
    )
    return ShareGroupEngine(ports=ports, available_now=spec.trigger.available_now), store


def _delivery(spec: ShareGroupSpec, log: TopicLog) -> SparkDelivery | CompanionDelivery | NoHandler:
    handler, is_ordered = spec.handler, spec.config.delivery_order == DeliveryOrder.KEY
    if handler is None:
        return NoHandler(spark=spec.spark)
    if handler.waits:
        return CompanionDelivery(spark=spec.spark, log=log, handler=handler, ordered=is_ordered)
    return SparkDelivery(spark=spec.spark, log=log, handler=handler, ordered=is_ordered)


def _opened_when_asked(open_reader: Callable[[], Callable[[], Found]]) -> Callable[[], Found]:
    """Return a reader that is opened at its first call. It reads beside the tables of the state: the engine makes those
    at its start, and only then a catalog knows their directory."""
    opened = cache(open_reader)

    def answer() -> Found:
        return opened()()

    return answer


def _store(spec: ShareGroupSpec, location: Location, least_epoch: int) -> DeltaShareStateStore:
    config = spec.config
    log = GroupLog(
        spark=spec.spark,
        location=location,
        group_id=spec.group_id,
        run_id=uuid.uuid4().hex[:12],
        least_epoch=least_epoch,
        notes_rows=spec.listen_on is not None,
    )
    return DeltaShareStateStore(
        log=log,
        updates_per_snapshot=config.updates_per_snapshot,
        audit=config.history_retention_ms > 0,
    )


def _output(spec: ShareGroupSpec, delivery: SparkDelivery | CompanionDelivery | NoHandler) -> OutputSink:
    handler = spec.handler
    former = FormerSinks(spark=spec.spark)
    if handler is None or handler.output is None or isinstance(delivery, NoHandler):
        return former
    if spec.out_topic is not None:
        return _messages(spec, spec.out_topic, delivery, former)
    if spec.sink is None:
        return former
    sink = DeltaSink(spark=spec.spark, table=Location.parse(spec.sink))
    sink.prepare(spark_schema(handler.output))
    return DeltaOutput(sink=sink, delivery=delivery)


def _messages(
    spec: ShareGroupSpec, topic: str, delivery: SparkDelivery | CompanionDelivery, former: FormerSinks
) -> KafkaOutput:
    """Return the output to a topic. Raises TopicError: there is no such topic."""
    cluster, timeout_ms = spec.out_cluster, spec.config.request_timeout_ms
    assert cluster is not None, "checked"
    KafkaTopicLog(cluster, request_timeout_ms=timeout_ms).describe(topic)
    return KafkaOutput(topic=topic, sender=MessageSender(cluster, timeout_ms), delivery=delivery, former=former)
