"""Handlers of a whole Spark frame: the frame they return becomes runs, and the records that it leaves out are found.

The answers and the existing records leave together, in one action over the union of both. The records are cached for
it, so that they are read once and both sides see the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from share_spark.delivery.result import Settle, each_partition
from share_spark.delivery.runs import PRESENT, RUN_SCHEMA, AnswerRuns, RunLog
from share_spark.delivery.task_report import TaskReport
from share_spark.handlers.acknowledgement import NO_DELAY, Ack, Answers
from share_spark.handlers.batch_answers import ANSWER_COLUMNS, column_answers
from share_spark.handlers.error_texts import exception_text
from share_spark.handlers.handler import KEY_COLUMNS, Handler
from share_spark.model.errors import HandlerError
from share_spark.model.ids import TopicPartition
from share_spark.spark.schemas import spark_schema

RUN_TYPE = spark_schema(RUN_SCHEMA)
"""RUN_SCHEMA as a Spark type; the JVM would parse a DDL string each time, for 10 ms."""


def frame_runs(records: DataFrame, handler: Handler) -> DataFrame:
    """Return runs of the existing records and of the answers (RUN_SCHEMA); lazy. ``records`` is read by both.

    A handler that raises in this call releases them all. Raises HandlerError: no frame, or one without the columns.
    """
    try:
        answer = handler.call(records)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # noqa: BLE001 - what a handler raises is an answer
        return released_frame(records, exception_text(fault))
    chosen = _answer_frame(answer, handler)
    answers = chosen.mapInArrow(functools.partial(answer_runs, handler.name), RUN_TYPE)
    return _present(records).unionByName(answers)


def released_frame(records: DataFrame, error: str) -> DataFrame:
    """Do as ``frame_runs``, for records that are all released with this error."""
    released = functools.partial(released_runs, error)
    return _present(records).unionByName(records.select(*KEY_COLUMNS).mapInArrow(released, RUN_TYPE))


def _present(records: DataFrame) -> DataFrame:
    return records.select(*KEY_COLUMNS).mapInArrow(present_runs, RUN_TYPE)


def settled(handler_name: str) -> Settle:
    """Return a function that compares a frame handler's answers with the existing records, and releases missing ones.

    Raises HandlerError for a record that is there twice, and for one that was not delivered.
    """

    def settle(key: TopicPartition, runs: AnswerRuns) -> AnswerRuns:
        present = runs.picked(runs.code == PRESENT).joined()
        answers = runs.picked(runs.code != PRESENT).joined()
        if (row := answers.first_overlap()) is not None:
            raise HandlerError(f"handler {handler_name} returned record {key}@{answers.first[row]} twice")
        if (offset := _first_unknown(answers, present)) is not None:
            raise HandlerError(f"handler {handler_name} returned record {key}@{offset}, which it was not given")
        return AnswerRuns.concatenated([answers, _missing(answers, present)]).ordered().joined()

    return each_partition(settle)


# ----------------------------------------------------------------------------------- in the workers


def present_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield runs of existing records, code PRESENT."""
    log = RunLog()
    for batch in batches:
        log.add(batch, Answers.same(batch.num_rows, PRESENT))
    yield log.batch()


def answer_runs(handler_name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield runs of the answers in a frame of KEY_COLUMNS, and of ANSWER_COLUMNS if it has them."""
    log = RunLog()
    try:
        for batch in batches:
            if any(batch.column(name).null_count for name in KEY_COLUMNS):
                raise HandlerError("returned a row without topic, partition or offset")
            columns = {name: batch.column(name) for name in ANSWER_COLUMNS if name in batch.schema.names}
            log.add(batch, column_answers(columns, batch.num_rows))
    except HandlerError as fault:
        yield TaskReport(violation=f"handler {handler_name} {fault}").row()
        return
    yield log.batch()


def released_runs(error: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield runs of records that are all released with one error."""
    log = RunLog()
    for batch in batches:
        log.add(batch, Answers.same(batch.num_rows, Ack.RELEASE, error))
    yield log.batch()


# ------------------------------------------------------------------------------------ on the driver


def _answer_frame(answer: Any, handler: Handler) -> DataFrame:
    """Return the columns that we read, in the types that workers expect. Raises HandlerError."""
    if not isinstance(answer, DataFrame):
        raise HandlerError(f"handler {handler.name} returned {type(answer).__name__}, not a DataFrame")
    missing = [name for name in (*KEY_COLUMNS, "ack") if name not in answer.columns]
    if missing:
        raise HandlerError(f"handler {handler.name} returned a frame without column {', '.join(missing)}")
    types = {"topic": "string", "partition": "int", "offset": "bigint", "error": "string", "delay_ms": "bigint"}
    chosen = [name for name in (*KEY_COLUMNS, *ANSWER_COLUMNS) if name in answer.columns]
    columns = [answer[name].cast(types[name]) if name in types else answer[name] for name in chosen]
    return answer.select(columns)


def _first_unknown(answers: AnswerRuns, present: AnswerRuns) -> int | None:
    """Return the first offset that was answered but does not exist. Both sorted and disjoint, ``present`` joined."""
    inside = np.searchsorted(present.first, answers.first, side="right") - 1
    ends = np.append(present.last, -1)[inside]
    unknown = np.flatnonzero((inside < 0) | (ends < answers.last))
    if not len(unknown):
        return None
    which = unknown[0]
    return int(max(answers.first[which], ends[which] + 1)) if inside[which] >= 0 else int(answers.first[which])


def _missing(answers: AnswerRuns, present: AnswerRuns) -> AnswerRuns:
    """Return runs of existing records without an answer, released without an error."""
    rows = []
    starts, ends = answers.first.tolist(), answers.last.tolist()
    cursor = 0
    for first, last in zip(present.first.tolist(), present.last.tolist(), strict=True):
        unanswered = first
        while cursor < len(starts) and starts[cursor] <= last:
            if unanswered < starts[cursor]:
                rows.append((unanswered, starts[cursor] - 1))
            unanswered = ends[cursor] + 1
            cursor += 1
        if unanswered <= last:
            rows.append((unanswered, last))
    return _released(np.array(rows, np.int64).reshape(-1, 2), present)


def _released(rows: Any, like: AnswerRuns) -> AnswerRuns:
    return AnswerRuns(
        topic=np.full(len(rows), like.topic[0]),
        partition=np.full(len(rows), like.partition[0]),
        first=rows[:, 0],
        last=rows[:, 1],
        code=np.full(len(rows), Ack.RELEASE, np.int8),
        error=np.full(len(rows), -1, np.int32),
        delay=np.full(len(rows), NO_DELAY, np.int64),
    )
