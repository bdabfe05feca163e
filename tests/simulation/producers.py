"""What producers and brokers do with the logs of a play."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from share_spark.model.ids import TopicPartition
from tests.simulation.facts import At
from tests.twins.memory import MemoryRecord

if TYPE_CHECKING:
    from tests.simulation.play import SimulatedWorld

_MOSTLY = 0.7
"""Chance that a producer waits until a truncation was seen."""


class Producers:
    """``keys``: of all records that were written."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.keys: dict[At, bytes | None] = {}

    def somewhere(self) -> TopicPartition:
        topic = self.world.rng.choice(self.world.topic_names)
        return TopicPartition(topic, self.world.rng.randrange(len(self.world.topics.describe(topic).partitions)))

    def produce(self) -> None:
        """To one partition, or a little to some of many."""
        many = sum(self.world.scenario.partitions) // 20
        for _ in range(1 + many):
            self._produce_to(self.somewhere(), self.world.rng.randint(1, 3 if many else self.world.scenario.burst))

    def _produce_to(self, at: TopicPartition, records: int) -> None:
        end = self.world.topics.log_ends(at.topic)[at.partition].end_offset
        if self._waits_to_be_seen(at, end) and self.world.rng.random() < _MOSTLY:
            return
        for offset in range(end, end + records):
            self.world.behaviours[at, offset] = self.world.scenario.behaviour(self.world.rng)
        keys = [self._new_key(at, offset) for offset in range(end, end + records)]
        self.keys.update(((at, end + index), key) for index, key in enumerate(keys))
        self.world.topics.append(at, [MemoryRecord(self.world.time_ms, key=key) for key in keys])
        self.world.crowd.written(at, end, end + records - 1)
        odd = [(offset, *self.world.behaviours[at, offset]) for offset in range(end, end + records)]
        self.world.note("produce", at, f"{end}..{end + records - 1}", [one for one in odd if one[1] != "accept"])

    def _new_key(self, at: TopicPartition, offset: int) -> bytes | None:
        """One of few, or none. Not drawn, so that plays without an order stay what they are."""
        number = zlib.crc32(f"{at}@{offset} {self.world.turn}".encode()) % 7
        return (
            None if number == 6 or not self.world.is_ordered else b"%d" % (number % self.world.scenario.different_keys)
        )

    def _waits_to_be_seen(self, at: TopicPartition, end: int) -> bool:
        """Does no commit that counts say yet that the log was truncated? What is written now may never be
        distinguished from what was there before."""
        return at in self.world.ledger.windows and self.world.ledger.windows[at].end > end

    def truncate(self) -> None:
        """An unclean leader election."""
        at = self.somewhere()
        start, end = self.world.topics.log_ends(at.topic)[at.partition][:2]
        to = max(
            0,
            self.world.rng.choice([self.world.rng.randint(start, end), end - 1, start - self.world.rng.randint(0, 3)]),
        )
        self.world.topics.truncate(at, to)
        self.world.crowd.truncated(at, to)
        self.world.ledger.unseen |= {(at, offset) for offset in range(to, end)}
        self.world.note("truncate", at, f"to {to}, was {end}")

    def disturb_log(self) -> None:
        at = self.somewhere()
        start, end = self.world.topics.log_ends(at.topic)[at.partition][:2]
        match self.world.rng.randrange(4):
            case 0:
                self.world.topics.skip(at, 2)
                self.world.crowd.written(at, end, end + 1, is_control=True)
                self.world.note("markers", at, f"{end}..{end + 1}")
            case 1 if end > start:
                gone = sorted(self.world.rng.choices(range(start, end), k=self.world.rng.randint(1, 5)))
                self.world.topics.compact(at, gone)
                self.world.note("compact", at, gone)
            case 2:
                to = self.world.rng.randint(start, end)
                self.world.topics.move_log_start(at, to)
                self.world.note("log start", at, to)
            case 3 if len(self.world.topics.describe(at.topic).partitions) < 4:
                self.world.topics.add_partitions(at.topic, 1)
                self.world.note("one partition more of", at.topic)
