"""The rights of a client that has logged in at the cluster: the cluster is asked, and its answers count for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from share_spark.gateway.access import Need, Rules
from share_spark.kafka.broker_stream import BrokerStream
from share_spark.kafka.principal_rights import (
    GROUP_OPERATIONS,
    Operation,
    cluster_allows,
    groups_open_to,
    topics_open_to,
)
from share_spark.model.errors import TopicUnreachableError

_KEPT_S = 60.0
"""The time for which an answer counts: a right that is taken away is of use for so long at most."""

_MOST_KEPT = 1_000
"""The answers of each kind that are kept."""

_MOST_AT_ONCE = 1_000
"""The names in one request: to read an answer about many more would keep the event loop from others."""

_Told = TypeVar("_Told")

_Ask = Callable[[BrokerStream, Operation, Sequence[str]], Awaitable[frozenset[str]]]


class _Answer(NamedTuple):
    is_permitted: bool
    until_s: float


@dataclass(slots=True)
class _Answers:
    """The answers about groups, or about topics."""

    ask: _Ask
    _kept: dict[tuple[Operation, str], _Answer] = field(default_factory=dict)

    async def permitted(self, connection: BrokerStream, operation: Operation, names: Iterable[str]) -> frozenset[str]:
        """Return those of these names for which the operation is permitted. Raises OSError, ValueError."""
        wanted, now_s = frozenset(names), asyncio.get_running_loop().time()
        found = {
            name: answer.is_permitted
            for name in wanted
            if (answer := self._kept.get((operation, name))) is not None and now_s < answer.until_s
        }
        missing = sorted(wanted - found.keys())
        for begin in range(0, len(missing), _MOST_AT_ONCE):
            some = missing[begin : begin + _MOST_AT_ONCE]
            permitted = await self.ask(connection, operation, some)
            found |= {name: name in permitted for name in some}
        self._keep({(operation, name): _Answer(found[name], now_s + _KEPT_S) for name in missing})
        return frozenset(name for name, is_permitted in found.items() if is_permitted)

    def _keep(self, answers: dict[tuple[Operation, str], _Answer]) -> None:
        """Keep answers; if they become too many, these alone; if these are too many, none."""
        if len(self._kept) + len(answers) > _MOST_KEPT:
            self._kept.clear()
        if len(answers) <= _MOST_KEPT:
            self._kept |= answers


@dataclass(slots=True)
class ClusterRights:
    """The Rights of the principal that a connection is logged in as, as long as it is open."""

    connection: BrokerStream
    _groups: _Answers = field(default_factory=lambda: _Answers(groups_open_to))
    _topics: _Answers = field(default_factory=lambda: _Answers(topics_open_to))

    async def permitted_groups(self, need: Need, group_ids: Iterable[str]) -> frozenset[str]:
        """See ``Rights``."""
        if need.is_for_describers and await self._told(cluster_allows(self.connection, Operation.DESCRIBE)):
            return frozenset(group_ids)
        return await self._told(self._groups.permitted(self.connection, need.group, group_ids))

    async def permitted_topics(self, need: Need, topics: Iterable[str]) -> frozenset[str]:
        """See ``Rights``."""
        return await self._told(self._topics.permitted(self.connection, need.topic, topics))

    async def is_broker(self) -> bool:
        """See ``Rights``."""
        return await self._told(cluster_allows(self.connection, Operation.CLUSTER_ACTION))

    async def operations(self, group_id: str) -> frozenset[Operation]:
        """See ``Rights``."""
        permitted = [
            await self._told(self._groups.permitted(self.connection, one, (group_id,))) for one in GROUP_OPERATIONS
        ]
        return frozenset(one for one, groups in zip(GROUP_OPERATIONS, permitted, strict=True) if groups)

    async def passed_on(self, need: Need, topics: Iterable[str]) -> Rules:
        """See ``Rights``. Any group, as the name of one may end with a star, which rules have another meaning for."""
        return Rules(groups=("*",), topics=tuple(sorted(await self.permitted_topics(need, topics))))

    async def _told(self, answer: Awaitable[_Told]) -> _Told:
        try:
            return await answer
        except (OSError, ValueError) as fault:
            broker = self.connection.broker
            raise TopicUnreachableError(f"Kafka at {broker} does not tell the rights of a client ({fault})") from None
