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

Where Spark does not let its checkpoint be changed so (``HELD_OUTPUT``), the output rows come to the driver with the
runs, in the one action, and go back to the executors from there: slower, and of one micro-batch no more than the driver
can hold, but computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.delivery.acquired_records import SMALL
from share_spark.delivery.runs import OUTPUT, OUTPUT_COLUMN, PRODUCED, RUN_SCHEMA
from share_spark.model.errors import OutputLostError
from share_spark.spark.capabilities import HELD_OUTPUT, use
from share_spark.spark.checkpointed_frame import checkpoint_without_check, unpersist

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OTHER_ATTEMPT = f"{OutputLostError.__name__}: output rows are of another attempt than the acknowledgements"


class SentRows(Protocol):
    """What the workers of one delivery sent."""

    def runs(self) -> pa.Table:
        """The one action, repeated if it died with its workers: all but the output rows, in RUN_SCHEMA."""

    def outputs(self, produced: Mapping[int, int]) -> DataFrame:
        """The output rows that these attempts of tasks sent (``DeliveryResult.produced``); after ``runs``. A few rows
        come in one task, as each makes a file of a sink."""

    def free(self) -> None:
        """Drop them."""


def held(sent: DataFrame) -> SentRows:
    """``sent``: the frame that a HandlerTask with output makes; lazy."""
    private: Callable[[], SentRows] = lambda: HeldFrame(sent)  # noqa: E731
    return use(HELD_OUTPUT, private, lambda: CollectedFrame(sent))


class HeldFrame:
    """Rows that stay on the executors."""

    def __init__(self, sent: DataFrame) -> None:
        self._frame = checkpoint_without_check(sent)
        self._runs = self._frame.where(f"ack <> {OUTPUT}").select(*RUN_SCHEMA.names)

    def runs(self) -> pa.Table:
        return self._runs.toArrow()

    def outputs(self, produced: Mapping[int, int]) -> DataFrame:
        """Lazy, reads blocks only."""
        ids = ", ".join(map(str, produced))
        foreign = f"ack = {PRODUCED} AND first_offset NOT IN ({ids})"
        checked = f"ack = {OUTPUT} OR ({foreign} AND raise_error('{_OTHER_ATTEMPT}') IS NOT NULL)"
        rows = self._frame.where(checked).select(f"{OUTPUT_COLUMN}.*")
        return _few_in_one_task(rows, produced)

    def free(self) -> None:
        unpersist(self._frame)


class CollectedFrame:
    """Rows that pass through the driver. Of each task they are those of the attempt whose answers were taken."""

    def __init__(self, sent: DataFrame) -> None:
        self._sent = sent
        self._rows: pa.Table | None = None

    def runs(self) -> pa.Table:
        table = self._sent.toArrow()
        is_output = pc.equal(table.column("ack"), pa.scalar(OUTPUT, pa.int8()))
        self._rows = table.filter(is_output).select([OUTPUT_COLUMN])
        return table.filter(pc.invert(is_output)).select(RUN_SCHEMA.names)

    def outputs(self, produced: Mapping[int, int]) -> DataFrame:
        assert self._rows is not None, "outputs before runs"
        schema: Any = self._sent.schema[OUTPUT_COLUMN].dataType
        structs: Any = self._rows.column(OUTPUT_COLUMN).combine_chunks()
        table = pa.Table.from_arrays(structs.flatten(), names=schema.names)
        rows = self._sent.sparkSession.createDataFrame(table, schema)
        return _few_in_one_task(rows, produced)

    def free(self) -> None:
        self._rows = None


def _few_in_one_task(rows: DataFrame, produced: Mapping[int, int]) -> DataFrame:
    return rows.coalesce(1) if sum(produced.values()) <= SMALL else rows
