"""What the workers of one delivery sent, kept on the executors: runs for the driver now, output rows for a
sink afterwards. The handler runs once, whatever becomes of the executors.

Spark's own ways of keeping a frame do not promise that. A cached frame, and a local checkpoint until its
job has ended, compute a lost block again, and that would call the handler again. So:
- the frame is a local checkpoint that never checks: its blocks are kept, its lineage is not replaced by
  them, and nothing but the one action computes it (tasks know their delivery, see ``worker``); whoever
  reads a lost block later gets OutputLostError;
- where two attempts of a task wrote the same block (speculation, an executor that was given up too early),
  the block may be of the attempt whose answers were not taken. It says whose it is, and reading it is the
  same error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from share_spark.delivery.acquired_records import SMALL
from share_spark.delivery.runs import OUTPUT, OUTPUT_COLUMN, PRODUCED, RUN_SCHEMA
from share_spark.model.errors import OutputLostError
from share_spark.spark.checkpointed_frame import unpersist

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_OTHER_ATTEMPT = f"{OutputLostError.__name__}: output rows are of another attempt than the acknowledgements"


class HeldFrame:
    """``sent``: the frame that a HandlerTask with output makes; lazy."""

    def __init__(self, sent: DataFrame) -> None:
        self._frame = sent.localCheckpoint(eager=False)
        self._runs = self._frame.where(f"ack <> {OUTPUT}").select(*RUN_SCHEMA.names)
        plan: Any = self._frame._jdf.queryExecution().logical()
        jvm: Any = sent.sparkSession._jvm
        getattr(plan.rdd(), "checkpointData_$eq")(jvm.scala.Option.empty())

    def runs(self) -> pa.Table:
        """The one action, repeated if it died with its workers: all but the output rows, in RUN_SCHEMA."""
        return self._runs.toArrow()

    def outputs(self, produced: Mapping[int, int]) -> DataFrame:
        """The output rows that these attempts of tasks sent (``DeliveryResult.produced``); lazy, reads blocks only.
        A few rows come in one task, as each makes a file of a sink."""
        ids = ", ".join(map(str, produced))
        foreign = f"ack = {PRODUCED} AND first_offset NOT IN ({ids})"
        checked = f"ack = {OUTPUT} OR ({foreign} AND raise_error('{_OTHER_ATTEMPT}') IS NOT NULL)"
        rows = self._frame.where(checked).select(f"{OUTPUT_COLUMN}.*")
        return rows.coalesce(1) if sum(produced.values()) <= SMALL else rows

    def free(self) -> None:
        """Drop the blocks."""
        unpersist(self._frame)
