"""A few of the kills of ``make chaos``: an engine is killed at critical points and started again, and no record is
lost, repeated or charged. And handlers that fail by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.faults import IN_HANDLER, JVM, PUT, SESSION, Fault
from tests.chaos.kafka import KafkaProducer
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.script import ALWAYS_FAIL, mixed
from tests.chaos.world import ChaosRun
from tests.support.topic_log_cases import fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KILLS = [
    Fault("after the append", SESSION, 2),
    Fault(IN_HANDLER),
    Fault("while the rows are put into a file"),
    Fault("after the output is appended"),
    Fault("after dead letters are appended"),
]


def survive(world: ChaosRun, *faults: Fault) -> None:
    for fault in faults:
        engine = world.run(fault)
        assert engine.struck, f"{fault} was not reached: {engine.text}"
        assert engine.end() != 0
    engine = world.run()
    assert engine.end() == 0, engine.text
    assert world.faults() == []


def test_a_kill_on_the_embedded_log(world: ChaosRun) -> None:
    world.produce(mixed(20))
    survive(world, Fault("after the output is appended"))


@pytest.mark.long
def test_kills_on_the_embedded_log(world: ChaosRun) -> None:
    world.produce(mixed(30))
    survive(world, *KILLS)


@pytest.mark.long
def test_kills_in_order_of_keys(world: ChaosRun) -> None:
    world.ordered = True
    world.produce([*mixed(30), ALWAYS_FAIL])
    survive(world, *KILLS)


@pytest.mark.long
def test_a_kill_of_a_driver_that_puts_files(world: ChaosRun) -> None:
    world.produce(mixed(20))
    survive(world, Fault(PUT), Fault(PUT, JVM))


@pytest.mark.long
def test_a_kill_on_kafka(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with ChaosRun.opened(spark, tmp_path, KafkaProducer(broker), topic=fresh_name()) as world:
        world.produce(mixed(20))
        survive(world, Fault("after the output is appended"))


@pytest.mark.long
def test_an_engine_whose_jvm_dies_between_micro_batches_ends_and_says_so(world: ChaosRun) -> None:
    world.produce(mixed(20))
    engine = world.run(Fault("after the micro-batch", JVM))
    assert engine.end() == 1
    assert engine.last_line.startswith("EnvironmentFault: Spark's JVM does not answer any more"), engine.text
    survive(world)


IN_TEST = ("a record kills its worker",)
"""The scenario that `make test` looks at; the others take longer and are left to `make chaos`."""


def left_to_chaos(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if name in IN_TEST else (pytest.mark.long,)


@pytest.mark.parametrize("name", [pytest.param(name, marks=left_to_chaos(name), id=name) for name in SCENARIOS])
def test_a_handler_that_goes_wrong(world: ChaosRun, name: str) -> None:
    """Its neighbours are in the output, once each, and what is archived says why."""
    assert SCENARIOS[name](world) == []
