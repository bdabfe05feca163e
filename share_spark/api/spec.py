"""The settings of a share group by its user, as one value: ``ShareGroup`` builds it, ``wiring`` starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from share_spark.api.query import Trigger
from share_spark.delta.location import Location
from share_spark.handlers.kinds import HandlerKind
from share_spark.model.config import DEFAULT_CONFIG, DeliveryOrder, GroupConfig
from share_spark.model.errors import ConfigError, EnvironmentFault
from share_spark.model.ids import check_group_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.engine.progress import MicroBatchProgress
    from share_spark.gateway.tls import Tls
    from share_spark.handlers.handler import Handler
    from share_spark.kafka.broker_connection import Address
    from share_spark.kafka.options import KafkaOptions


CLUSTER = "cluster"
"""The ``login`` of clients at the Kafka cluster of the topics."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShareGroupSpec:
    """The arguments of ``ShareGroup``'s methods of like names, parsed where they have a form. Topics are in exactly one
    of ``kafka`` and ``table``. ``repr`` holds no secret."""

    group_id: str
    spark: SparkSession
    state: str
    kafka: KafkaOptions | None = None
    table: Location | None = None
    topics: tuple[str, ...] = ()
    handler: Handler | None = None
    sink: str | None = None
    out_topic: str | None = None
    out_kafka: KafkaOptions | None = None
    dead_letter: str | None = None
    config: GroupConfig = DEFAULT_CONFIG
    checkpoint: str | None = None
    name: str | None = None
    trigger: Trigger = field(default_factory=Trigger)
    listeners: tuple[Callable[[MicroBatchProgress], None], ...] = ()
    listen_on: Address | None = None
    advertised: Address | None = None
    tls: Tls | None = None
    users: str | None = None
    login: str | None = None

    def __repr__(self) -> str:
        return ", ".join([repr(self.group_id), *(f"{name}={value}" for name, value in self._said())])

    def _said(self) -> Iterator[tuple[str, Any]]:
        """Yield what differs from the default, by the name of the method that sets it."""
        yield "state", repr(self.state)
        values = {
            "kafka": self.kafka,
            "table": self.table and repr(str(self.table)),
            "subscribe": list(self.topics),
            "process": self.handler and self.handler.name,
            "to_delta": self.sink and repr(self.sink),
            "to_kafka": self.out_topic and repr(self.out_topic),
            "dead_letter": self.dead_letter and repr(self.dead_letter),
            "options": self.config.not_default(),
            "checkpointLocation": self.checkpoint and repr(self.checkpoint),
            "queryName": self.name and repr(self.name),
            "trigger": None if self.trigger == Trigger() else self.trigger,
            "listen_on": self.listen_on and repr(str(self.listen_on)),
        }
        yield from ((name, value) for name, value in values.items() if value)

    def check(self) -> None:
        """Check that everything is set that a start needs. Raises ConfigError, EnvironmentFault."""
        if type(self.spark).__module__.startswith("pyspark.sql.connect"):
            raise EnvironmentFault(
                "a share group needs a classic Spark session: Spark Connect (serverless compute as well) has no driver "
                "in which it could run"
            )
        check_group_id(self.group_id)
        if not self.topics or not all(self.topics):
            raise ConfigError("no topic: call subscribe(topic)")
        if self.listen_on is not None:
            self._check_listening()
        if self.handler is None and self.listen_on is not None:
            return
        handler = self.required_handler
        if self.out_topic is not None:
            self._check_messages()
        if self.sink is not None and handler.output is None:
            raise ConfigError(f"to_delta: handler {handler.name} declares no output: call process(handler, output=...)")
        if self.config.delivery_order == DeliveryOrder.KEY and handler.kind is HandlerKind.FRAME:
            raise ConfigError(
                f"delivery.order: handler {handler.name} takes a whole Spark frame, in which there is no order by key"
            )
        if self.config.cost_limit and handler.kind is HandlerKind.FRAME:
            raise ConfigError(
                f"delivery.cost.limit: handler {handler.name} takes a whole Spark frame, and tells no costs"
            )

    def _check_messages(self) -> None:
        if self.sink is not None:
            raise ConfigError("output goes to a table (to_delta), or to a topic (to_kafka): choose one")
        if self.out_cluster is None:
            raise ConfigError("to_kafka: a table of topics has no cluster: give bootstrap_servers")

    @property
    def out_cluster(self) -> KafkaOptions | None:
        """The cluster of the topic for output: its own, else that of the topics; None if there is none."""
        return self.out_kafka or self.kafka

    def _check_listening(self) -> None:
        if self.trigger.available_now:
            raise ConfigError("listen_on: clients may come at any time, and availableNow ends: choose one")
        if self.config.delivery_order == DeliveryOrder.KEY:
            raise ConfigError("listen_on: clients take records of a key in any order, so delivery.order cannot be kept")
        if self.login not in (None, CLUSTER):
            raise ConfigError(f"login {self.login!r}: clients log in at the cluster, or by a file (users)")
        if self.login is not None and self.users is not None:
            raise ConfigError("clients log in at the cluster (login), or by a file (users): choose one")
        if self.login is not None and self.kafka is None:
            raise ConfigError("login: a table of topics has no cluster; clients log in by a file (users)")
        if self.handler is None and (self.sink or self.out_topic) is not None:
            method = "to_kafka" if self.sink is None else "to_delta"
            raise ConfigError(f"{method}: there is no handler whose rows could be written: call process(handler)")

    @property
    def letter_table(self) -> Location | None:
        """The table of dead letters, None if they do not go to a table. Raises ConfigError."""
        if self.dead_letter is None or (self.kafka is not None and "/" not in self.dead_letter):
            return None
        return Location.parse(self.dead_letter)

    @property
    def required_table(self) -> Location:
        """The table of the topics, if they are not in Kafka. Raises ConfigError if there is none."""
        if self.table is None:
            raise ConfigError("no source: call kafka(bootstrap_servers) or table(location)")
        return self.table

    @property
    def required_handler(self) -> Handler:
        """The handler. Raises ConfigError if there is none."""
        if self.handler is None:
            raise ConfigError("no handler: call process(handler)")
        return self.handler
