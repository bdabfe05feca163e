"""Records that are too large to go to Python ten thousand at a time.

Spark sends rows to a worker in Arrow batches of 10,000: of records of 1 MB, Kafka's default limit, that is more than
Arrow can address, and more than the JVM has. Spark can end a batch by its bytes too, but then adds up all columns after
every row: half the time of the stage if records are small. So a session of ours has no such limit, and an engine looks
at each record instead:

    in the JVM      a record above LARGE_BYTES is sent without its content, with a mark (``marked_rows``)
    in the worker   it does not reach the handler (``Loss.NOT_ENTERED``: it is given back, and not charged)
    on the driver   from then on the session has the limit, no record is marked, and the next micro-batch delivers it

A session that has a limit already (Spark's own default is 256 MB) keeps it, and no record is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from share_spark.delivery.marked_rows import MARK
from share_spark.spark.schemas import ARROW_BYTES, ARROW_ROWS, NO_ARROW_LIMIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_BYTES = 16 << 10
"""The size from which a record is large. Ten thousand of these are 160 MB; then a byte costs more than a row does."""

_LIMITS = {
    ARROW_BYTES: str(64 << 20),
    # The first releases of Spark 4.0 may not know that setting: hence fewer rows, too.
    ARROW_ROWS: "1000",
}

_SIZES = {
    "key": "coalesce(octet_length(key), 0)",
    "value": "coalesce(octet_length(value), 0)",
    # Not `aggregate`: a lambda function would keep Spark from compiling the whole stage.
    "headers": "if(size(headers) > 0, octet_length(array_join(cast(headers.value AS array<string>), '')), 0)",
}


def has_limit(spark: SparkSession) -> bool:
    """Return whether Spark ends an Arrow batch by its bytes."""
    return spark.conf.get(ARROW_BYTES, NO_ARROW_LIMIT) != NO_ARROW_LIMIT


def set_limit(spark: SparkSession) -> None:
    """Set the limit from the next job on, unless there is one."""
    if not has_limit(spark):
        for name, value in _LIMITS.items():
            spark.conf.set(name, value)


def with_marks(columns: Sequence[str]) -> list[str]:
    """Return SQL for ``columns``; a large record has a mark (``marked_rows``) instead of its content."""
    sizes = [size for name, size in _SIZES.items() if name in columns]
    if not sizes:
        return list(columns)
    large = f"({' + '.join(sizes)}) > {LARGE_BYTES}"
    found = {name: f"if({large}, NULL, {name}) AS {name}" for name in _SIZES}
    found["delivery_count"] = f"if({large}, {MARK}, delivery_count) AS delivery_count"
    return [found.get(name, name) for name in columns]
