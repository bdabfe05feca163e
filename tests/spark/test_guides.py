"""The programs in the guides run as they stand."""

from __future__ import annotations

from decimal import Decimal
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


def test_typed_values(spark: SparkSession, tmp_path: Path) -> None:
    log = EmbeddedTopicLog(spark, f"{tmp_path}/topics")
    log.create_topic("orders", 1)
    orders = [b'{"id": 7, "items": [{"sku": "a", "price": "1.50"}, {"sku": "b", "price": 2}]}', None]
    orders.append(b'{"id": 8, "items": [{"sku": "a", "price": "much"}]}')
    log.append("orders", [Message(order, partition=0) for order in orders])
    names: dict[str, Any] = {"__name__": "guide", "spark": spark, "lake": str(tmp_path)}
    exec(compile(block_after("Typed values"), "guides.md", "exec", dont_inherit=True), names)  # noqa: S102
    bills = spark.read.format("delta").load(f"{tmp_path}/bills").collect()
    assert [(row.id, row.total) for row in bills] == [(7, Decimal("3.50"))]
    letters = spark.read.format("delta").load(f"{tmp_path}/dead_letters").orderBy("offset").collect()
    assert [(row.offset, row.error, row.delivery_count) for row in letters] == [
        (1, "the value is null", 1),
        (2, "the value is no Order: items.0.price: Input should be a valid decimal", 1),
    ]
