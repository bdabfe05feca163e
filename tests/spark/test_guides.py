"""The programs in the guides run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from share_spark import EmbeddedTopicLog
from share_spark.topics.topic_producer import Message
from tests.support.python_blocks import python_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDES = (Path(__file__).parents[2] / "docs" / "guides.md").read_text()


def block_after(title: str) -> str:
    """The first program below a title."""
    return python_blocks(GUIDES[GUIDES.index(f"## {title}\n") :])[0]


def test_a_handler_that_waits(spark: SparkSession, tmp_path: Path) -> None:
    log = EmbeddedTopicLog(spark, f"{tmp_path}/topics")
    log.create_topic("documents", 1)
    log.append("documents", [Message(b"text", partition=0)] * 20)
    names: dict[str, Any] = {"__name__": "guide", "spark": spark, "lake": str(tmp_path)}
    exec(compile(block_after("Handlers that wait"), "guides.md", "exec", dont_inherit=True), names)  # noqa: S102
    rows = spark.read.format("delta").load(f"{tmp_path}/summaries").collect()
    assert sorted((row.offset, row.summary) for row in rows) == [(offset, "4 bytes") for offset in range(20)]
