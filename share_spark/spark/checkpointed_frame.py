"""Frames that are checkpointed locally: their rows are blocks of the executors, and nothing else has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def unpersist(frame: DataFrame) -> None:
    """Free the blocks of a locally checkpointed frame now; the garbage collector would, much later."""
    plan: Any = frame._jdf.queryExecution().logical()
    plan.rdd().unpersist(False)
