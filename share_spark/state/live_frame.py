"""The live state of a group, as a value on the driver (``driver_states``) or as a cached frame on the executors, made
from the rows of its log.

Its lineage is cut at every micro-batch (a local checkpoint, the one before unpersisted), so a lost executor makes it
unreadable; it is then rebuilt from the log inside the same micro-batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from share_spark.spark.arrow_types import ARROW_BYTES, ARROW_ROWS
from share_spark.spark.errors import is_lost_block
from share_spark.spark.frames import cloned_session, has_own_session, in_session, unpersist
from share_spark.state.buckets import FRAME_COLUMNS, HEADER, KEY_HASH_SQL, LIVE_COLUMNS, OUTCOME, STATE, Advance
from share_spark.state.fold import Fold
from share_spark.state.record_rows import CLAIM, STATE_COLUMNS
from share_spark.state.state_view import NOT_LOADED, LiveState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_log = logging.getLogger(__name__)

_REBUILD_ATTEMPTS = 3


@dataclass(slots=True)
class LiveFrame:
    """``state``: as of the last micro-batch; of a frame that was lost, and before the first load, there is none."""

    state: LiveState = NOT_LOADED
    _lent: DataFrame | None = None
    _lending: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, function: Advance, rebuild: Callable[[], object]) -> tuple[DataFrame, list[bytes]]:
        """The frame that ``function`` makes of this one, and its outcomes. ``rebuild`` adopts the frame that the log
        gives."""
        for attempt in range(1, _REBUILD_ATTEMPTS + 1):
            if self.state.frame is None:
                rebuild()
            assert self.state.frame is not None
            live = self.state.frame.where(f"row IN ({HEADER}, {STATE})").selectExpr(*LIVE_COLUMNS)
            tentative = live.mapInArrow(function, FRAME_COLUMNS).localCheckpoint(eager=False)
            try:
                return tentative, payloads_in(tentative, OUTCOME)
            except Exception as fault:
                if not is_lost_block(fault) or attempt == _REBUILD_ATTEMPTS:
                    raise
                _log.warning("an executor took part of the live state with it; rebuilding it from the log")
                self.state = self.state._replace(frame=None)
        raise AssertionError("unreachable")

    def adopt(self, state: LiveState) -> None:
        """From now on this is the live state; the frame before is freed unless another thread reads it."""
        with self._lending:
            previous, self.state = self.state.frame, state
            stale = previous is not None and previous is not state.frame and previous is not self._lent
        if stale and previous is not None:
            unpersist(previous)

    @contextmanager
    def borrow(self) -> Iterator[LiveState]:
        """The state as of the last commit, kept readable until given back. From any thread."""
        with self._lending:
            lent = self.state
            self._lent = lent.frame
        try:
            yield lent
        finally:
            with self._lending:
                self._lent = None
                if lent.frame is not None and lent.frame is not self.state.frame:
                    unpersist(lent.frame)


BATCHES = {
    ARROW_ROWS: "128",
    # One log row can be megabytes. The first releases of Spark 4.0 may not know this one: hence few rows, too.
    ARROW_BYTES: str(16 << 20),
    # Else the JVM has 4,096 of them in memory at a time, with all their ranges.
    "spark.sql.parquet.columnarReaderBatchSize": "64",
}
"""Log rows that are read, and go to a Python worker, at a time."""

_RECORD = FRAME_COLUMNS.split("record ", 1)[1]


def loading_session(spark: SparkSession) -> SparkSession:
    """A session in which rows come to Python few at a time; ``spark`` itself where a frame cannot leave it again."""
    return cloned_session(spark, BATCHES) if has_own_session() else spark


def empty_frame(spark: SparkSession, buckets: Sequence[int]) -> DataFrame:
    """The frame of a group without share-partitions."""
    return _headers(spark, buckets).selectExpr(
        "bucket",
        f"{HEADER}Y AS row",
        "'' AS key",
        "CAST(NULL AS BINARY) AS payload",
        f"CAST(NULL AS {_RECORD}) AS record",
    )


def frame_of(spark: SparkSession, rows: pa.Table, buckets: int) -> DataFrame:
    """A frame of ``rows``, which the driver has, on the executors. Computed at once."""
    return spark.createDataFrame(rows, FRAME_COLUMNS).repartition(buckets, "bucket").localCheckpoint()


def folded(
    spark: SparkSession, loading: SparkSession, rows: DataFrame, buckets: Sequence[int], group_id: str
) -> tuple[DataFrame, list[bytes]]:
    """The frame of the states in ``rows`` (of the session ``loading``), checkpointed, as a frame of ``spark``, and the
    payloads of its outcomes. What is computed from the frame is computed under the user's settings; the frame itself
    is not: a task goes by the settings of the session that begins the job."""
    records = rows.where(F.col("kind") != CLAIM).select(
        *STATE_COLUMNS, "batch_id", _bucket_column(buckets).alias("bucket")
    )
    everything = _headers(loading, buckets).unionByName(records, allowMissingColumns=True)
    sorted_rows = everything.repartition(len(buckets), "bucket").sortWithinPartitions("bucket", "batch_id")
    frame = sorted_rows.mapInArrow(Fold(group_id), FRAME_COLUMNS).localCheckpoint(eager=False)
    outcomes = payloads_in(frame, OUTCOME)
    return in_session(frame, spark), outcomes


def payloads_in(frame: DataFrame, row: int) -> list[bytes]:
    """The payloads of rows of one kind."""
    payloads: list[Any] = frame.where(f"row = {row}").selectExpr("payload").toArrow().column(0).to_pylist()
    return payloads


def _headers(spark: SparkSession, buckets: Sequence[int]) -> DataFrame:
    """``bucket``, each in a row of its own: one that is empty is still a bucket."""
    count = len(buckets)
    numbers = F.array(*[F.lit(bucket) for bucket in buckets])
    return spark.range(0, count, 1, count).select(F.get(numbers, F.col("id").cast("int")).alias("bucket"))


def _bucket_column(buckets: Sequence[int]) -> Column:
    numbers = ", ".join(map(str, buckets))
    return F.expr(f"element_at(array({numbers}), CAST({KEY_HASH_SQL} % {len(buckets)} AS INT) + 1)")
