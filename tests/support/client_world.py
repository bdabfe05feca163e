"""A share group of twins whose members are clients of Kafka's protocol."""

from __future__ import annotations

from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import PartitionResponse, ReleaseMember
from share_spark.partition.kafka_modes import AcknowledgeOrRenew, AcquireReadAhead, LogBatch, ReadAhead, TypedBatch
from tests.support.engine_world import GROUP, TOPIC, InMemoryGroup
from tests.twins.memory_clients import InMemoryClients


class ClientWorld(InMemoryGroup):
    """A group for clients alone: whatever its handler gets it releases, and its engine acquires nothing."""

    def __init__(self, *, partitions: int = 1, **settings: object) -> None:
        super().__init__(partitions=partitions, handler=self._no_call, **settings)
        self.clients = InMemoryClients()

    def _no_call(self, *_: object) -> None:
        raise AssertionError("the records are for clients")

    def key(self, partition: int = 0) -> SharePartitionKey:
        return SharePartitionKey(GROUP, self.topics.describe(TOPIC).topic_id, partition)

    def fetch(self, owner: str, *, most: int = 100, partition: int = 0, batch: int = 5) -> int:
        """Ask for records; the log was read from its begin to its end, in batches of so many."""
        end = self.topics.log_ends(TOPIC)[partition].end_offset
        batches = tuple(LogBatch(first, min(first + batch, end) - 1) for first in range(0, end, batch))
        return self._ask(partition, fetch_of(owner, batches, most))

    def acknowledge(self, owner: str, first: int, last: int, answer: int, *, partition: int = 0) -> int:
        batches = (TypedBatch(first, last, (answer,)),)
        return self._ask(partition, AcknowledgeOrRenew(member_id=owner, batches=batches))

    def release(self, owner: str) -> int:
        return self._ask(0, ReleaseMember(member_id=owner))

    def answer(self, number: int, partition: int = 0) -> PartitionResponse:
        assert self.clients is not None
        (found,) = self.clients.answers[number][self.key(partition)]
        return found

    def acquired(self, number: int, partition: int = 0) -> list[tuple[int, int, int]]:
        return [tuple(found) for found in self.answer(number, partition).acquired]

    def _ask(self, partition: int, request: AcquireReadAhead | AcknowledgeOrRenew | ReleaseMember) -> int:
        assert self.clients is not None
        return self.clients.ask({self.key(partition): [request]})


def fetch_of(owner: str, batches: tuple[LogBatch, ...], most: int) -> AcquireReadAhead:
    reads = (ReadAhead(0, batches),) if batches else ()
    return AcquireReadAhead(member_id=owner, max_records=most, max_bytes=10**6, reads=reads)
