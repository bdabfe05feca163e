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


settings.register_profile("all", deadline=None)  # a busy machine is no fault
settings.register_profile("share_spark", settings.get_profile("all"), max_examples=40)
settings.load_profile("share_spark")

JAVA_OPTIONS = "SHARE_SPARK_JAVA_OPTIONS"
os.environ.setdefault(JAVA_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""For the session of the tests and for jobs in processes of their own. The quick compiler alone is faster: tests go
many ways, each a few times (a third of the processor's time in the first two minutes; later it is about the same)."""


TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """`make test-all` plays all examples of Hypothesis, `make test` two in five (``tests/support/examples.py``)."""
    settings.load_profile("share_spark" if config.option.markexpr else "all")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what lies under tests/spark and tests/kafka, and what asks for a session or a broker; order what is left of
    all tests for two processes."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for name, fixture in (("spark", "spark"), ("kafka", "broker")):
            if TESTS / name in item.path.parents or fixture in fixtures:
                item.add_marker(name)
    yield
    if hasattr(config, "workerinput"):
        items[:] = _for_two(items)


def _for_two(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests in two halves, each of which begins with those that need a session or a broker: a process that is done
    takes from the end of the other's half, where the tests are short, so that both end at the same time."""
    heavy = [item for item in items if any(item.get_closest_marker(name) for name in ("spark", "kafka", "slow"))]
    among_heavy = set(heavy)
    light = [item for item in items if item not in among_heavy]
    cut = len(heavy) // 2
    while 0 < cut < len(heavy) and heavy[cut].path == heavy[cut - 1].path:
        cut += 1
    rest = max(0, len(items) // 2 - cut)
    return heavy[:cut] + light[:rest] + heavy[cut:] + light[rest:]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small session for all Spark tests; what it writes by itself goes to a temporary directory."""
    from share_spark.spark.session import build_session

    session = build_session("share_spark tests", extra_conf=_small(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["tuples", "columns"])
def window_form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Windows of the form that few ranges have, then of the form that many have."""
    from tests.support.window_forms import ALWAYS, NEVER, columns_from

    with columns_from(ALWAYS if request.param == "columns" else NEVER):
        yield


@pytest.fixture(params=["files", "notes"])
def row_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """State logs with their rows in files, then with those of updates in the notes of commits."""
    from tests.support.engine_on_delta import DeltaWorld
    from tests.support.state_logs import StateLog

    form: str = request.param
    for kind in (StateLog, DeltaWorld):
        monkeypatch.setattr(kind, "notes_rows", form == "notes")
    return form


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
