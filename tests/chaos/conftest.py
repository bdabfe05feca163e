"""A world on each kind of log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.world import ChaosRun, EmbeddedProducer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[ChaosRun]:
    """On the embedded log."""
    with ChaosRun.opened(spark, tmp_path, EmbeddedProducer(spark, tmp_path)) as opened:
        yield opened
