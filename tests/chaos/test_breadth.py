"""An engine is killed while records of 120 share-partitions are in flight; the next one finishes all of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from share_spark.delta.location import Location
from share_spark.state.tables import log_table
from tests.chaos.faults import Fault
from tests.chaos.script import ACCEPT
from tests.chaos.world import ChaosRun, EmbeddedProducer, Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Under three minutes with a load of 12 on two cores; it has not been measured on idle ones.
pytestmark = pytest.mark.long

PARTITIONS = 120
EACH = 20
WITHOUT_A_CRASH = 2
"""Micro-batches of an engine that finds all this in the log: one acquires and delivers it, one commits the answers."""
MORE = 3
"""Micro-batches that recovery may take."""
WAIT_S = 600


def test_a_kill_with_120_share_partitions_in_flight(spark: SparkSession, tmp_path: Path) -> None:
    with ChaosRun.opened(spark, tmp_path, EmbeddedProducer(spark, tmp_path), partitions=PARTITIONS) as world:
        world.produce([ACCEPT] * (PARTITIONS * EACH))
        engine = world.run(Fault("before delivery"), max_records=PARTITIONS * EACH)
        assert engine.struck, engine.text
        assert in_flight(world) == PARTITIONS * EACH

        began = time.monotonic()
        engine = world.start(max_records=PARTITIONS * EACH)
        assert ended(engine) == 0, engine.text
        took, micro_batches = time.monotonic() - began, micro_batches_of_the_last(world)
        print(f"\n{PARTITIONS} share-partitions recovered in {micro_batches} micro-batches, {took:.0f} s")

        assert world.faults() == []
        assert spark.read.format("delta").load(str(tmp_path / "dead")).count() == 0
        assert [(at, off) for at, off, _ in world.outputs()] == sorted(world.values)
        assert micro_batches <= WITHOUT_A_CRASH + MORE


def in_flight(world: ChaosRun) -> int:
    return sum(row.acquired for row in world.shares())


def ended(engine: Engine) -> int:
    """The exit code."""
    deadline = time.monotonic() + WAIT_S
    while (code := engine.code) is None:
        assert time.monotonic() < deadline, engine.text
        time.sleep(0.1)
    return code


def micro_batches_of_the_last(world: ChaosRun) -> int:
    """Of the last engine: those that it committed."""
    log = log_table(Location.parse(str(world.directory / "state"))).load(world.spark).where("kind <> 'claim'")
    stamped = log.groupBy("writer_epoch").agg(F.countDistinct("batch_id").alias("many"))
    return int(stamped.orderBy(F.desc("writer_epoch")).collect()[0].many)
