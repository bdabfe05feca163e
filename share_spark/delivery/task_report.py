"""The report of a task: all that it tells the driver beside its answers, as one row at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pyarrow as pa

from share_spark.delivery.runs import REPORT_COLUMN, RUN_SCHEMA
from share_spark.handlers.error_texts import storable


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The report of a task.

    ``attempt_id``: Spark's id of the attempt, which sent ``output_rows``. Its handler was called with ``entered``
    records, in ``busy_s`` seconds; they have cost ``cost``. ``violation``: how the handler broke its contract;
    ``fault``: what went wrong and is not the handler's fault; ``unreachable``: why the records without answers could
    not be reached; ``unknown_thread``: Spark's name of the task's thread, if that does not show the attempt of the
    stage. ``files``: those of output rows that the task has written (``DataFile.to_json``). ``kept``: the file with
    its released and rejected records, "" if there is none, and ``kept_rows``. ``has_large``: some records were too
    large for a batch (``large_records``).
    """

    attempt_id: int = 0
    output_rows: int = 0
    entered: int = 0
    busy_s: float = 0.0
    cost: float = 0.0
    violation: str | None = None
    fault: str | None = None
    unreachable: str | None = None
    unknown_thread: str | None = None
    files: tuple[str, ...] = ()
    kept: str = ""
    kept_rows: int = 0
    has_large: bool = False

    def row(self) -> pa.RecordBatch:
        """Return the row in RUN_SCHEMA: null, but for the report."""
        fields = {name: storable(value) if type(value) is str else value for name, value in asdict(self).items()}
        return pa.RecordBatch.from_pylist([{REPORT_COLUMN: json.dumps(fields)}], schema=RUN_SCHEMA)

    @classmethod
    def parse(cls, text: str) -> TaskReport:
        """Undo ``row``."""
        fields = json.loads(text)
        return cls(**{**fields, "files": tuple(fields["files"])})
