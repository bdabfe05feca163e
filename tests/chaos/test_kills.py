"""A few kills of the many of ``make chaos``: an engine is killed where it hurts most, started again, and no record was
lost, repeated or blamed. And records that kill whoever handles them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.faults import IN_HANDLER, JVM, SESSION, Fault
from tests.chaos.kafka import KafkaProducer
from tests.chaos.script import ACCEPT, KILL_DRIVER, KILL_WORKER, mixed
from tests.chaos.world import World
from tests.support.topic_log_cases import fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KILLS = [
    Fault("after the append", SESSION, 2),
    Fault(IN_HANDLER),
    Fault("after the output is appended"),
    Fault("after dead letters are appended"),
]


def survive(world: World, *faults: Fault) -> None:
    for fault in faults:
        engine = world.run(fault)
        assert engine.struck, f"{fault} was not reached: {engine.told}"
        assert engine.end() != 0
    engine = world.run()
    assert engine.end() == 0, engine.told
    assert world.faults() == []


def test_kills_on_the_embedded_log(world: World) -> None:
    world.produce(mixed(30))
    survive(world, *KILLS)


def test_a_kill_on_kafka(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with World.opened(spark, tmp_path, KafkaProducer(broker), topic=fresh_name()) as world:
        world.produce(mixed(20))
        survive(world, Fault("after the output is appended"))


@pytest.mark.long
def test_an_engine_whose_jvm_dies_between_micro_batches_ends_and_says_so(world: World) -> None:
    world.produce(mixed(20))
    engine = world.run(Fault("after the micro-batch", JVM))
    assert engine.end() == 1
    assert engine.last_line.startswith("EnvironmentFault: Spark's JVM does not answer any more"), engine.told
    survive(world)


@pytest.mark.parametrize("poison", [KILL_WORKER, pytest.param(KILL_DRIVER, marks=pytest.mark.long)])
def test_a_poison_record_is_archived_alone(world: World, poison: str) -> None:
    """Its neighbours are in the output, once each, and it is a dead letter that says what it did."""
    world.limit = 3
    world.produce([poison if number == 71 else ACCEPT for number in range(200)])
    crashes = world.supervise(restarts=8, max_records=200)
    assert crashes == (3 if poison == KILL_DRIVER else 0)
    world.crashes = 3
    assert world.faults() == []
