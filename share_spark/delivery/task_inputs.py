"""Records that a task gets without Spark, from files or the topic log, beside or instead of those that Spark reads.

Such a task has a marker (``acquired_records.task_markers``) as the first row of its batches; these records come before
those that Spark has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from share_spark.spark.threads import TASK_COLUMN


class TaskInput(Protocol):
    """The input of the tasks of a delivery without Spark; pickled with the task."""

    def batches(self, task: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the task with this number, in ``schema``: the same at each call. TASK_COLUMN is null."""
        ...


def with_inputs(inputs: Sequence[TaskInput], task: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the input of this task without Spark, and ``batches``. The name of the task's thread, from the marker, is
    added to all of these records."""
    if not inputs:
        yield from batches
        return
    for number, batch in enumerate(batches):
        if not number:
            thread = batch.column(TASK_COLUMN)[0].as_py()
            yield from (_named(one, thread) for each in inputs for one in each.batches(task, batch.schema))
        yield batch.filter(batch.column("offset").is_valid())


def _named(batch: pa.RecordBatch, thread: str | None) -> pa.RecordBatch:
    at = batch.schema.get_field_index(TASK_COLUMN)
    return batch.set_column(at, batch.schema.field(at), pa.repeat(pa.scalar(thread, pa.string()), batch.num_rows))
