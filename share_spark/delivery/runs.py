"""Acknowledgements as runs: a million answers leave the workers as a few rows.

A run is a stretch of *consecutive* offsets of one topic-partition with one code, error and delay. An offset that was
not delivered ends a run, so that the engine sees gaps when it compares the runs with the acquired ranges.

    offset     7   8   9  10      12  13  14      (11 was not delivered)
    code       1   1   1   2       1   1   1      (1 accept, 2 release)
    error      -   -   -   x       -   -   -
    new run    *           *       *              where offset, code, error or delay does not continue
    runs      [7 ..... 9] [10]    [12 .... 14]

Columns of RUN_SCHEMA are what a worker sends. ``ack``: an ``Ack`` or a ``Loss``. The last row of a task has only its
report (``task_report``). Where a handler has an output schema, each row has one more column, OUTPUT_COLUMN; rows that
have it have nothing else.

NumPy and Arrow only; no loop here is longer than the number of different topics and errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.ledger import LedgerEntries
from share_spark.handlers.acknowledgement import NO_DELAY, Answers
from share_spark.model.ids import TopicPartition

PRESENT = 0
"""Code of a run of records that exist; sent with the answers of a frame handler, so that the driver finds the records
that it left out."""

REPORT_COLUMN = "report"
"""A TaskReport in JSON; null in the other rows."""

_RUN_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("first_offset", pa.int64()),
    pa.field("last_offset", pa.int64()),
    pa.field("ack", pa.int8()),
    pa.field("error", pa.string()),
    pa.field("delay_ms", pa.int64()),
    pa.field(REPORT_COLUMN, pa.string()),
]
RUN_SCHEMA = pa.schema(_RUN_FIELDS)

OUTPUT_COLUMN = "output"
"""A struct of the declared schema."""

RunColumn = npt.NDArray[Any]
"""A column of ``AnswerRuns``: integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRuns:
    """Runs of equal answers, as columns of equal length. Topics and errors are ids in a ``Vocabulary`` of their owner.
    ``delay``: milliseconds, NO_DELAY where none was asked for."""

    topic: RunColumn
    partition: RunColumn
    first: RunColumn
    last: RunColumn
    code: RunColumn
    error: RunColumn
    delay: RunColumn

    def joined(self) -> AnswerRuns:
        """Join adjacent runs that continue each other. Keeps the order."""
        if len(self.first) < 2:
            return self
        ends = self.first[1:] != self.last[:-1] + 1
        for column in (self.topic, self.partition, self.code, self.error, self.delay):
            ends |= column[1:] != column[:-1]
        starts = np.concatenate(([0], np.flatnonzero(ends) + 1))
        # A run's first offset is that of its first row, its last offset that of the row before the next run.
        return self._spans(starts, np.append(starts[1:] - 1, len(self.first) - 1))

    def ordered(self) -> AnswerRuns:
        """Return the runs sorted by topic, partition and offset."""
        return self.picked(np.lexsort((self.first, self.partition, self.topic)))

    def first_overlap(self) -> int | None:
        """Return, for sorted runs, the first row whose run begins inside the one before it."""
        twice = np.flatnonzero((self.first[1:] <= self.last[:-1]) & ~self._changes())
        return int(twice[0]) + 1 if len(twice) else None

    def stretches(self) -> list[tuple[int, int]]:
        """Return, for sorted runs, (first row, row after the last one) of each topic-partition."""
        if not len(self.first):
            return []
        return list(itertools.pairwise([0, *(np.flatnonzero(self._changes()) + 1).tolist(), len(self.first)]))

    def places(self, names: Sequence[str], rows: Sequence[int]) -> list[TopicPartition]:
        """Return the topic-partitions of these rows; ``names``: of the topics."""
        numbers = zip(self.topic[rows].tolist(), self.partition[rows].tolist(), strict=True)
        return [TopicPartition(names[topic], partition) for topic, partition in numbers]

    def _changes(self) -> npt.NDArray[np.bool_]:
        """Return, for each row but the first, whether its topic-partition differs from the one before."""
        changes: npt.NDArray[np.bool_] = (self.topic[1:] != self.topic[:-1]) | (
            self.partition[1:] != self.partition[:-1]
        )
        return changes

    def picked(self, rows: Any) -> AnswerRuns:
        """Return the runs in these rows (indices, a mask or a slice)."""
        return self._spans(rows, rows)

    def _spans(self, starts: Any, ends: Any) -> AnswerRuns:
        return AnswerRuns(
            topic=self.topic[starts],
            partition=self.partition[starts],
            first=self.first[starts],
            last=self.last[ends],
            code=self.code[starts],
            error=self.error[starts],
            delay=self.delay[starts],
        )

    @staticmethod
    def concatenated(parts: Sequence[AnswerRuns]) -> AnswerRuns:
        """Return all runs of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        return AnswerRuns(
            topic=np.concatenate([part.topic for part in parts]),
            partition=np.concatenate([part.partition for part in parts]),
            first=np.concatenate([part.first for part in parts]),
            last=np.concatenate([part.last for part in parts]),
            code=np.concatenate([part.code for part in parts]),
            error=np.concatenate([part.error for part in parts]),
            delay=np.concatenate([part.delay for part in parts]),
        )


class Vocabulary:
    """Texts by number, in the order in which they were first seen."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._ids: dict[str, int] = {text: number for number, text in enumerate(texts)}

    def ids(self, texts: Iterable[str]) -> npt.NDArray[np.int32]:
        """Return the numbers of the texts, and add new ones."""
        known = self._ids
        return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)

    def column(self, ids: RunColumn) -> pa.Array[Any]:
        """Return a string column of the texts with these numbers; a number below 0 is null."""
        indices = pa.array(ids, pa.int32(), mask=ids < 0)
        texts = pa.array(list(self._ids), pa.string())
        return pa.DictionaryArray.from_arrays(indices, texts).dictionary_decode()


class RunLog:
    """The answers of one task, collected batch by batch, as runs."""

    def __init__(self, topic: str | None = None) -> None:
        self._only_topic = topic
        self._topics = Vocabulary([topic] if topic is not None else ())
        self._errors = Vocabulary()
        self._parts: list[AnswerRuns] = []

    def add(self, batch: pa.RecordBatch, answers: Answers) -> None:
        """Add the answers to the records of ``batch``, which has the columns partition and offset, and topic unless the
        log was made for one topic."""
        if not batch.num_rows:
            return
        # ``answers`` counts texts from 1, and 0 is no error: minus one, 0 becomes the index of the last, which is -1.
        error_ids = np.append(self._errors.ids(answers.texts), np.int32(-1))
        offsets = batch.column("offset").to_numpy()
        runs = AnswerRuns(
            topic=self._topic_ids(batch),
            partition=batch.column("partition").to_numpy(),
            first=offsets,
            last=offsets,
            code=answers.codes,
            error=error_ids[answers.error_ids - 1],
            delay=answers.every_delay_ms,
        )
        self._parts.append(runs.joined())

    def add_entries(self, entries: LedgerEntries, codes: npt.NDArray[np.int8], rows: npt.NDArray[np.bool_]) -> None:
        """Add the answers in these rows of a ledger."""
        picked = np.flatnonzero(rows)
        if not len(picked):
            return
        topics = self._topics.ids(entries.topics)
        texts = [entries.errors.get(at) for at in picked.tolist()]
        error_ids = np.full(len(picked), -1, np.int32)
        noted = [at for at, text in enumerate(texts) if text is not None]
        error_ids[noted] = self._errors.ids([text for text in texts if text is not None])
        offsets = entries.offset[picked]
        runs = AnswerRuns(
            topic=topics[entries.topic[picked]],
            partition=entries.partition[picked],
            first=offsets,
            last=offsets,
            code=codes[picked],
            error=error_ids,
            delay=np.array([entries.delays.get(at, NO_DELAY) for at in picked.tolist()], np.int64),
        )
        self._parts.append(runs)

    def _topic_ids(self, batch: pa.RecordBatch) -> RunColumn:
        if self._only_topic is not None:
            return np.zeros(batch.num_rows, np.int32)
        topics: Any = batch.column("topic").dictionary_encode()
        ids: RunColumn = self._topics.ids(topics.dictionary.to_pylist())[topics.indices.to_numpy()]
        return ids

    def batch(self) -> pa.RecordBatch:
        """Return all runs so far, RUN_SCHEMA, sorted within each topic and joined across the batches."""
        if not self._parts:
            return pa.RecordBatch.from_pylist([], schema=RUN_SCHEMA)
        runs = AnswerRuns.concatenated(self._parts).ordered().joined()
        columns = [
            self._topics.column(runs.topic),
            pa.array(runs.partition, pa.int32()),
            pa.array(runs.first, pa.int64()),
            pa.array(runs.last, pa.int64()),
            pa.array(runs.code, pa.int8()),
            self._errors.column(runs.error),
            pa.array(runs.delay, pa.int64(), mask=runs.delay == NO_DELAY),
            pa.nulls(len(runs.first), pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RUN_SCHEMA)


def with_output_column(runs: pa.RecordBatch, output: pa.Schema) -> pa.RecordBatch:
    """Return rows of RUN_SCHEMA in the schema that they share with output rows."""
    return runs.append_column(OUTPUT_COLUMN, pa.nulls(runs.num_rows, _output_type(output)))


def output_batches(outputs: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield output rows in the schema that they share with runs."""
    kind = _output_type(outputs.schema)
    for batch in outputs.to_batches():
        blank = [pa.nulls(batch.num_rows, field.type) for field in RUN_SCHEMA]
        structs = pa.StructArray.from_arrays(batch.columns, fields=list(kind))
        yield pa.RecordBatch.from_arrays([*blank, structs], names=[*RUN_SCHEMA.names, OUTPUT_COLUMN])


def _output_type(output: pa.Schema) -> pa.StructType:
    """Return the type, all columns nullable: Spark compares it with that of the frame, whose structs may be null."""
    return pa.struct([field.with_nullable(True) for field in output])
