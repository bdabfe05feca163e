"""The front door of one group whose engine runs in a Spark query."""

from __future__ import annotations

from dataclasses import dataclass

from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.door import Door
from share_spark.gateway.gateway import Gateway
from share_spark.gateway.group_topics import FixedTopics, GroupTopics
from share_spark.gateway.served_groups import OneGroup, ServedGroup
from share_spark.gateway.stored_groups import StoredGroups
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.gateway.topic_source import TopicSource
from share_spark.kafka.broker_connection import Address
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ShareError


@dataclass(slots=True)
class ListeningGroup:
    """A gateway to one group. ``clients``: the port of its engine."""

    clients: ClientQueue
    gateway: Gateway

    @classmethod
    def open(
        cls,
        group_id: str,
        topics: tuple[str, ...],
        source: TopicSource,
        listen: Address,
        *,
        stored: StoredGroups,
        advertised: Address | None,
        door: Door,
        config: GroupConfig,
    ) -> ListeningGroup:
        """Listen. Nobody is answered before the queue is opened. ``stored``: the place of the group's state. Raises
        EnvironmentFault."""
        queue, catalog = ClientQueue(config), TopicCatalog(source.log)
        group = ServedGroup.of(
            group_id,
            queue,
            GroupTopics(FixedTopics(topics), catalog),
            source.reader,
            clock=wall_clock_ms,
        )
        served = OneGroup(group_id=group_id, group=group, stored=stored)
        return cls(queue, Gateway.open(listen, served, catalog, advertised=advertised, door=door))

    def close(self, fault: BaseException | None) -> None:
        """Disconnect the clients: the engine has ended, by this fault if there is one."""
        self.clients.refuse(fault if isinstance(fault, ShareError) else None)
        self.gateway.close()
