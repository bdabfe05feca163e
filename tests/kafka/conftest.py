"""A broker that tests may pause, and one with users: tests share them, as each start takes a processor for ten
seconds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support import cluster_of_users as users
from tests.support.broker import Broker, running_broker


@pytest.fixture(scope="session")
def _pausing_broker() -> Iterator[Broker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture
def pausing_broker(_pausing_broker: Broker) -> Iterator[Broker]:
    """A broker that nobody else needs while the test runs; it goes on afterwards if the test has stopped it."""
    yield _pausing_broker
    os.kill(_pausing_broker.process.pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def cluster_of_users() -> Iterator[users.ClusterOfUsers]:
    with users.cluster_of_users() as cluster:
        yield cluster
