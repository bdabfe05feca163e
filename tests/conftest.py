"""What tests share. Sessions and brokers start on first use only, so unit tests never start a JVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


settings.register_profile("share_spark", deadline=None)  # a busy machine is no fault
settings.load_profile("share_spark")

JAVA_OPTIONS = "SHARE_SPARK_JAVA_OPTIONS"
os.environ.setdefault(JAVA_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""For jobs in processes of their own: each is over in a minute, so the quick compiler alone is faster."""


TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies under tests/spark and tests/kafka, and what asks for a session or a broker."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for name, fixture in (("spark", "spark"), ("kafka", "broker")):
            if TESTS / name in item.path.parents or fixture in fixtures:
                item.add_marker(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small session for all Spark tests; what it writes by itself goes to a temporary directory."""
    from share_spark.spark.session import build_session

    with pytest.MonkeyPatch.context() as patched:  # this one lives long enough for the second compiler
        patched.setenv(JAVA_OPTIONS, "-XX:+UseSerialGC")
        session = build_session("share_spark tests", extra_conf=_small(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["tuples", "columns"])
def window_form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Windows of the form that few ranges have, then of the form that many have."""
    from tests.support.window_forms import ALWAYS, NEVER, columns_from

    with columns_from(ALWAYS if request.param == "columns" else NEVER):
        yield


def _small(directory: Path) -> dict[str, str]:
    """Few partitions, and no files in the working directory."""
    return {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        # Most plans of a test run once: to compile them costs more than they do (a quarter of the processor's time).
        # What is started as a process of its own, like a user's job, compiles its plans.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Spark's default is 10,000 tasks for a listing: the VACUUM of a test took a minute.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """Bootstrap address of a real Kafka 4.2 that lives as long as the test run."""
    from tests.support.broker import running_broker

    with running_broker() as running:
        yield running.bootstrap
