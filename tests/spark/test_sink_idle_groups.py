"""A group is taken for idle while its engine is frozen before it writes its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.coordinator.messages import InitializeState, ShareGroupStateRequest
from share_spark.delta.location import Location
from share_spark.engine.delivery_port import AcknowledgedSpans
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.ports import Claim, CommittedOutput
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.maintenance.idle_groups import evidence_of, snapshot_group
from share_spark.maintenance.share_coordinator import DeltaShareCoordinator
from share_spark.model.errors import FencedError
from share_spark.model.ids import BatchStamp
from share_spark.output.payload import from_payload, to_payload
from share_spark.output.sink import DeltaSink
from share_spark.output.sink_journal import SinkWriter
from share_spark.state.commits import CommitListing
from share_spark.state.tables import log_table
from tests.support.engine_on_delta import DeltaWorld
from tests.support.engine_world import ACCEPT, GROUP, TOPIC, EngineLife
from tests.support.sink_place import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_MS = 30_000


@dataclass(slots=True)
class Output:
    """OutputSink on a Delta table: a row for each accepted record. ``freeze`` happens before it writes."""

    sink: DeltaSink
    freeze: Callable[[], None]

    @property
    def has_output(self) -> bool:
        return True

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        self.sink.prepare(SCHEMA)
        payload = self.sink.claim(SinkWriter.of(self.sink.spark, claim), last_counted)
        return None if payload is None else from_payload(GROUP, payload)

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None = None) -> None:  # noqa: ARG002
        self.freeze()
        runs = [run for span in answers.values() for run in span.ranges if run[2] == ACCEPT]
        rows = [(offset, "paid") for first, last, _ in runs for offset in range(first, last + 1)]
        frame = self.sink.spark.createDataFrame(rows, "id bigint, what string")
        self.sink.commit(stamp, frame, to_payload(CommittedOutput(stamp, self.sink.writer.member_id, answers)))

    def forget(self) -> None:
        self.sink.forget()


class Place:
    """A group of three records, its state, and the table that takes their rows."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.table = spark, Location.parse(str(directory / "sink"))
        self.world = DeltaWorld(spark, str(directory / "state"))
        self.world.produce(3)
        self.runs = 0

    def engine(self, freeze: Callable[[], None] = lambda: None, *, available_now: bool = False) -> EngineLife:
        self.runs += 1
        found = EngineLife(self.world, f"run{self.runs}", available_now)
        found.delivery.has_output = found.delivery.loses_rows = True
        sink = DeltaSink(spark=self.spark, table=self.table)
        ports = replace(found.engine.ports, sink=Output(sink, freeze))
        found.engine = ShareGroupEngine(ports=ports, available_now=available_now)
        found.engine.start()
        return found

    def compact(self) -> str:
        """What it says of the group, whose locks ended long ago by its clock."""
        order = CompactionOrder(state=self.world.location, idle_ms=0)
        (step, *_) = compact(self.spark, order).steps
        return step.text

    def finish(self) -> None:
        self.world.clock.advance(LOCK_MS)
        self.engine(available_now=True).run_until_done(step_ms=LOCK_MS)

    def rows(self) -> list[int]:
        return sorted(row.id for row in self.table.load(self.spark).collect())


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_an_engine_that_was_taken_for_dead_by_a_compaction_writes_no_rows(place: Place) -> None:
    said: list[str] = []
    frozen = place.engine(freeze=lambda: said.append(place.compact()))
    frozen.run()  # the first micro-batch is a snapshot; there has to be an update since
    assert said == ["nothing since its last snapshot"]
    assert place.rows() == [0, 1, 2]
    place.world.produce(3)
    with pytest.raises(FencedError):
        frozen.run()
    assert said[1].startswith("snapshot of 1 share-partitions")
    assert place.rows() == [0, 1, 2]
    place.finish()
    assert place.rows() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("has_session", [True, False])
def test_an_engine_whose_state_was_written_over_writes_no_rows(place: Place, has_session: bool) -> None:
    """By the share coordinator, with a higher start offset."""
    world = place.world
    begin = InitializeState(topic_id=world.topics.describe(TOPIC).topic_id, partition=0, state_epoch=9, start_offset=2)

    def initialize() -> None:
        coordinator = DeltaShareCoordinator(place.spark if has_session else None, world.location)
        coordinator.load()
        coordinator.answer(ShareGroupStateRequest(group_id=GROUP, entries=(begin,)))

    frozen = place.engine(freeze=initialize)
    with pytest.raises(FencedError):
        frozen.run()
    assert place.rows() == []
    place.finish()
    assert place.rows() == [2]


def test_rows_that_were_written_before_the_claim_are_left_to_the_next_engine(place: Place) -> None:
    """The engine wakes up once it is judged to be dead, and writes all the same in time."""
    spark, location = place.spark, place.world.location
    engine = place.engine()
    commits = CommitListing.of(spark, log_table(location).directory(spark))
    found = evidence_of(spark, location, GROUP, commits, commits.latest_version())
    engine.run()
    assert snapshot_group(spark, location, commits, found) is None
    place.engine(available_now=True).run_until_done(step_ms=LOCK_MS)
    assert (place.rows(), len(place.world.calls)) == ([0, 1, 2], 3)


def test_a_group_whose_sink_cannot_be_claimed_gets_no_snapshot(place: Place, tmp_path: Path) -> None:
    said: list[str] = []

    def freeze() -> None:
        if place.world.deliveries[0, 3]:
            log = tmp_path / "sink" / "_delta_log"
            damaged = log / f"{len(list(log.glob('*.json'))):020}.json"
            damaged.write_text("no commit")
            said.append(place.compact())
            damaged.unlink()

    frozen = place.engine(freeze=freeze)
    frozen.run()
    place.world.produce(3)
    frozen.run()
    assert said[0].startswith(f"sink {place.table}")
    assert said[0].endswith("a frozen engine might still write there: no snapshot")
    place.finish()
    assert place.rows() == [0, 1, 2, 3, 4, 5]
