"""A delivery to a companion process, without an engine: records are made of their offsets, and no Spark is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from share_spark.companion.delivery import CompanionDelivery
from share_spark.companion.process import CompanionProcess
from share_spark.engine.delivery_port import AcquiredSpan, Delivered, DeliveryLimits
from share_spark.engine.ranges import DELIVERY_COUNT, FIRST, LAST, AcquiredRanges, each_between
from share_spark.engine.record_reader import in_schema
from share_spark.handlers.handler import as_handler
from share_spark.model.errors import TopicUnreachableError
from share_spark.model.ids import TopicPartition
from tests.support.claims import claim_of

AT = TopicPartition("orders", 0)
DEADLINE_S = 20.0

LOCAL: Any = SimpleNamespace(
    sparkContext=SimpleNamespace(master="local[2]"), conf=SimpleNamespace(get=lambda _, default: default)
)
"""The only things of a session that are asked for where Python reads the records."""


@dataclass(frozen=True)
class MadeRecords:
    """A log, its reader, and a part of it. Offsets of ``gaps`` have no record; reading 404 finds no broker."""

    gaps: frozenset[int] = frozenset()
    acquired: Sequence[AcquiredSpan] = ()

    def for_workers(self, _spark: object, _acquired: Sequence[AcquiredSpan], *, ordered: bool) -> MadeRecords:
        assert not ordered
        return self

    def part(self, acquired: Sequence[AcquiredSpan]) -> MadeRecords:
        return MadeRecords(self.gaps, acquired)

    def batches(self, schema: pa.Schema, most_rows: int, _: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        for at, ranges, _ in self.acquired:
            offsets, of = each_between(ranges[:, FIRST], ranges[:, LAST])
            there = ~np.isin(offsets, list(self.gaps))
            if 404 in offsets:
                raise TopicUnreachableError("the broker is away")
            columns = {
                "partition": pa.array(np.full(there.sum(), at.partition), pa.int32()),
                "offset": pa.array(offsets[there], pa.int64()),
                "value": pa.array([b"%d" % offset for offset in offsets[there].tolist()], pa.binary()),
                "delivery_count": pa.array(ranges[of, DELIVERY_COUNT][there], pa.int32()),
            }
            for batch in pa.table(columns).to_batches(max_chunksize=most_rows):
                yield in_schema(batch, at.topic, schema)


def spans(*ranges: tuple[int, int, int]) -> list[AcquiredSpan]:
    """Acquired ranges (first, last, delivery count)."""
    return [AcquiredSpan(AT, AcquiredRanges(np.array(ranges, np.int64).reshape(-1, 3)))] if ranges else []


ENOUGH = DeliveryLimits(60_000, 60_000, most_calls=20)


class Said(NamedTuple):
    """The answer for an offset."""

    answer: int
    error: str | None = None
    delay_ms: int | None = None


@dataclass
class CompanionPlace:
    """A delivery, and all that it has answered: ``said`` by offset, ``times`` how often."""

    directory: Path
    handler: Any
    log: Any = field(default_factory=MadeRecords)
    settings: dict[str, Any] = field(default_factory=dict)
    limits: DeliveryLimits = ENOUGH
    spark: Any = field(default_factory=lambda: LOCAL)
    epoch: int = 1
    said: dict[int, Said] = field(default_factory=dict)
    times: Counter[int] = field(default_factory=Counter)
    faults: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        handler = as_handler(self.handler, **self.settings)
        self.delivery = CompanionDelivery(spark=self.spark, log=self.log, handler=handler)
        self.claim = claim_of("billing", str(self.directory / "state"), epoch=self.epoch)
        self.delivery.start(self.claim)

    def deliver(self, *ranges: tuple[int, int, int], in_turn: bool = False) -> Delivered:
        return self.note(self.delivery.deliver(spans(*ranges), limits=self.limits, in_turn=in_turn))

    def note(self, delivered: Delivered) -> Delivered:
        for span in delivered.answers:
            errors = {at: run.error for run in span.errors for at in range(run.first, run.last + 1)}
            delays = {one.first_offset: one.delay_ms for one in span.delays}
            for first, last, answer in span.ranges:
                for offset in range(first, last + 1):
                    self.said[offset] = Said(answer, errors.get(offset), delays.get(offset))
                    self.times[offset] += 1
        self.faults += [delivered.fault] if delivered.fault is not None else []
        return delivered

    def until(self, is_reached: Callable[[Delivered], bool]) -> Delivered:
        """Deliver nothing more until that is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_reached(delivered := self.deliver()):
            assert time.monotonic() < deadline, (self.said, delivered)
            self.delivery.wait(0.2)
        return delivered

    def finish(self) -> None:
        """Wait for all answers."""
        self.until(lambda delivered: delivered.in_flight == 0)

    @property
    def pid(self) -> int:
        (one,) = self.delivery._companions
        assert isinstance(one.link, CompanionProcess)
        return one.link.pid

    def ledgers(self) -> list[str]:
        """Names of the blocks of ledgers that are there."""
        return sorted(file.name for file in self.directory.rglob("ledgers/*/*/*/*") if file.name.isdigit())
