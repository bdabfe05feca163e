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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from share_spark.api.query import ShareGroupQuery, Trigger
from share_spark.api.spec import ShareGroupSpec
from share_spark.delta.location import Location
from share_spark.engine.progress import MicroBatchProgress
from share_spark.handlers.handler import Handler, Record, as_handler
from share_spark.kafka.options import KafkaOptions
from share_spark.model.config import SETTINGS, DeliveryOrder
from share_spark.model.errors import ConfigError
from share_spark.spark.installed import require_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from share_spark.gateway.tls import Tls

_CHECKPOINT = "checkpointLocation"


@dataclass(frozen=True, slots=True, init=False, repr=False, match_args=False)
class ShareGroup:
    """A share group before its start: its id, what it reads, how it handles, where its state is.

    ``group_id``: names the group; two groups on the same topic are independent of each other. ``spark``: its settings
    stay, but large records set a missing limit for Arrow batches. ``state``: a directory or ``catalog.schema`` for the
    state tables; several groups may share it.
    """

    _spec: ShareGroupSpec

    def __init__(self, group_id: str, *, spark: SparkSession, state: str) -> None:
        require_spark("ShareGroup")
        object.__setattr__(self, "_spec", ShareGroupSpec(group_id=group_id, spark=spark, state=state))

    def __repr__(self) -> str:
        return f"ShareGroup({self._spec!r})"

    def kafka(self, bootstrap_servers: str, **options: str) -> ShareGroup:
        """Read topics of a Kafka cluster. ``options``: any Kafka client setting, in Java's or librdkafka's name,
        with ``_`` or ``.``; given once, translated for both clients.

        Raises ConfigError naming an option that is unknown, incomplete, or cannot be set for both clients.
        """
        return self._with(kafka=_kafka_options(bootstrap_servers, options), table=None)

    def table(self, location: str) -> ShareGroup:
        """Read topics of an embedded topic log, a Delta table in Kafka's form; it needs no broker."""
        return self._with(table=Location.parse(location), kafka=None)

    def subscribe(self, *topics: str) -> ShareGroup:
        """Set the topics to read, all partitions of each."""
        return self._with(topics=topics)

    def process(
        self,
        handler: Callable[..., Any] | str | Handler,
        *,
        output: str | StructType | pa.Schema | None = None,
        batch: int | None = None,
        linger: float | None = None,
        threads: int | None = None,
        cost: Callable[[Record], float] | str | None = None,
        value_from: Callable[..., Any] | str | None = None,
    ) -> ShareGroup:
        """Set the handler of records: see ``share_spark.handlers.handler``. ``output`` declares the schema of
        output rows: DDL (``"id bigint, delay double"``), a StructType or an Arrow schema.

        ``batch``, ``linger``: an ``async`` handler gets a list of so many records, or of fewer once the first has
        waited for ``linger`` seconds. ``threads``: so many calls of a handler that blocks run at a time. ``cost``: says
        before the call what a record costs, as the tokens of its prompt, for ``delivery.cost.limit``;
        ``Ack.accept(cost=...)`` is valid instead. It gets the columns that the handler has asked for.

        A parameter that is annotated with a dataclass, a TypedDict or a pydantic model gets the record's value, decoded
        from JSON, and ``Record[Order]`` is a record with such a value. ``value_from`` decodes others: a function of the
        bytes, or one of the bytes and a SerializationContext, as confluent-kafka's deserializers are; or a function
        without parameters that makes one in the worker. A record whose value cannot be decoded is rejected.

        Raises HandlerError if it cannot be imported or is no handler.
        """
        settings: dict[str, Any] = {"batch": batch, "linger": linger, "threads": threads, "cost": cost}
        return self._with(handler=as_handler(handler, output=output, value_from=value_from, **settings))

    def ordered_by_key(self) -> ShareGroup:
        """Deliver the records of a key one at a time, in the order of their offsets. A record that is not finished
        (released, delayed, lost with its worker or engine) holds back its successors of the same key, and only those.
        Records without a key have no order. The same as the setting ``delivery.order`` = ``key``. ``start`` refuses
        handlers of whole Spark frames."""
        return self.option(SETTINGS["delivery_order"].key, DeliveryOrder.KEY)

    def to_delta(self, table: str) -> ShareGroup:
        """Write the handler's output rows to a Delta table: a directory or a name, made if it is missing. One commit
        decides rows and their acknowledgements: exactly once, after any crash. Needs ``process(handler, output=...)``.
        What a handler does elsewhere happens at least once."""
        return self._with(sink=table)

    def to_kafka(self, topic: str, bootstrap_servers: str | None = None, **options: str) -> ShareGroup:
        """Send the messages that the handler returns to a Kafka topic: ``(Ack.ACCEPT, message)`` or a list of them. A
        message is bytes or a text, or a dict with ``value``, ``key``, ``headers`` and ``partition``, as Spark's Kafka
        sink names them. At least once, before the acknowledgements are committed; headers name the record and its
        delivery (``share_spark.topic``, ``.partition``, ``.offset``, ``.row``), so that readers can drop repeats.
        ``bootstrap_servers``, ``options``: as for ``kafka``; None: the cluster of the topics.

        ``start`` refuses handlers of batches, and a topic that does not exist. Raises ConfigError as ``kafka``.
        """
        cluster = None if bootstrap_servers is None else _kafka_options(bootstrap_servers, options)
        if cluster is None and options:
            raise ConfigError(f"to_kafka: {min(options)} needs bootstrap_servers")
        return self._with(out_topic=topic, out_kafka=cluster)

    def dead_letter(self, target: str) -> ShareGroup:
        """Keep rejected records, and those over the delivery limit, in a topic of the same Kafka cluster, or, with a
        slash or a dot-separated name and no Kafka, in a Delta table. Without it they are archived only, and letters
        that an earlier run did not write any more wait for a run that has a target."""
        return self._with(dead_letter=target)

    def option(self, key: str, value: Any) -> ShareGroup:
        """Set one setting (``share_spark.model.config.SETTINGS``), or ``checkpointLocation``. Raises ConfigError."""
        return self.options(**{key: value})

    def options(self, **options: Any) -> ShareGroup:
        """Set several settings at once. Raises ConfigError: an unknown key, or a value that does not fit."""
        rest = {key: value for key, value in options.items() if key != _CHECKPOINT}
        checkpoint = options.get(_CHECKPOINT, self._spec.checkpoint)
        return self._with(config=self._spec.config.changed(rest), checkpoint=checkpoint)

    def queryName(self, name: str) -> ShareGroup:  # noqa: N802 - DataStreamWriter's name
        """Name the streaming query, as Spark's UI and listeners show it."""
        return self._with(name=name)

    def trigger(self, *, processingTime: str | None = None, availableNow: bool = False) -> ShareGroup:  # noqa: N803
        """Set when micro-batches start. ``processingTime``: the least time between two starts (``"5 seconds"``);
        default: as soon as the last has ended. ``availableNow``: process everything that is in the log now, retries
        included, then end."""
        if processingTime is not None and availableNow:
            raise ConfigError("trigger: choose processingTime or availableNow, not both")
        return self._with(trigger=Trigger(processing_time=processingTime, available_now=availableNow))

    def listen(self, listener: Callable[[MicroBatchProgress], None]) -> ShareGroup:
        """Call ``listener`` with the progress of every micro-batch, on the query's thread."""
        return self._with(listeners=(*self._spec.listeners, listener))

    def listen_on(
        self,
        address: str,
        *,
        advertised: str | None = None,
        tls: Tls | None = None,
        users: str | None = None,
        login: str | None = None,
    ) -> ShareGroup:
        """Let clients of Kafka's protocol join the group at ``host:port``: its share consumers, unmodified. ``process``
        may be left out: then all records are for them. ``advertised``: the address that clients are told to connect to,
        if it is another one. ``tls``: for clients that connect with TLS only. ``users``: a file that `share-spark
        gateway-user` writes; clients have to log in. ``login="cluster"``: they log in at the Kafka cluster instead.
        Raises ConfigError."""
        from share_spark.kafka.broker_connection import Address

        told = None if advertised is None else Address.parse(advertised)
        return self._with(listen_on=Address.parse(address), advertised=told, tls=tls, users=users, login=login)

    def start(self) -> ShareGroupQuery:
        """Check everything, claim the group, start the streaming query.

        Raises ConfigError, TopicError, HandlerError, StateError, FencedError; then nothing has been changed.
        """
        from share_spark.api.wiring import start_query

        return start_query(self._spec)

    def _with(self, **changes: Any) -> ShareGroup:
        return share_group_of(replace(self._spec, **changes))


def _kafka_options(bootstrap_servers: str, options: Mapping[str, str]) -> KafkaOptions:
    given = {name.replace("_", ".") if "." not in name else name: value for name, value in options.items()}
    return KafkaOptions.parse({"bootstrap.servers": bootstrap_servers, **given})


def share_group_of(spec: ShareGroupSpec) -> ShareGroup:
    """Return the group of ``spec``, for callers who have parsed everything already."""
    group = object.__new__(ShareGroup)
    object.__setattr__(group, "_spec", spec)
    return group
