"""The engine's output port, on Delta: the output rows of a delivery and its acknowledgements, decided by one commit.

The rows come from the delivery, which keeps them on the executors; the acknowledgements are the payload of the sink's
journal entry, in Arrow, so that the next engine can absorb them if this one ends before it has done so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from share_spark.delivery.deliver import SparkDelivery
from share_spark.engine.ports import AcknowledgedSpan, AcknowledgedSpans, Claim, CommittedOutput, ErrorRun
from share_spark.engine.ranges import AcknowledgedRanges
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition
from share_spark.output.sink import DeltaSink, SinkWriter

_ANSWER_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("topic", pa.string()),
    pa.field("topic_id", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("first_offset", pa.int64()),
    pa.field("last_offset", pa.int64()),
    pa.field("answer", pa.int8()),
    pa.field("error", pa.string()),
]
_ANSWERS = pa.schema(_ANSWER_FIELDS)
"""A row is an acknowledged range (``answer``: the acknowledge type or a ``Loss``), or the error text of a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOutput:
    """OutputSink for what ``delivery`` puts out. See ``engine.ports``."""

    sink: DeltaSink
    delivery: SparkDelivery

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        """Raises FencedError, SinkError, StateError."""
        payload = self.sink.claim(SinkWriter.of(self.sink.spark, claim), last_counted)
        return None if payload is None else from_payload(claim.group_id, payload)

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans) -> None:
        """Raises FencedError, SinkError, OutputLostError, StateError."""
        rows = self.delivery.outputs
        if rows is not None:
            self.sink.commit(stamp, rows, to_payload(CommittedOutput(stamp, self.sink.writer.member_id, answers)))
        self.delivery.close()

    def forget(self) -> None:
        """Raises StateError."""
        self.sink.forget()


def to_payload(output: CommittedOutput) -> bytes:
    """``output`` as an Arrow stream; its stamp and member are in the schema's metadata."""
    note = json.dumps([*output.stamp, output.member_id]).encode()
    table = pa.Table.from_batches(list(_batches(output.answers)), _ANSWERS).replace_schema_metadata({"output": note})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue())


def from_payload(group_id: str, payload: bytes) -> CommittedOutput:
    """Undo ``to_payload``."""
    table = pa.ipc.open_stream(payload).read_all()
    epoch, batch_id, member_id = json.loads((table.schema.metadata or {})[b"output"])
    columns = [table.column(name).to_pylist() for name in _ANSWERS.names]
    ranges: dict[tuple[str, str, int], list[tuple[int, int, int]]] = {}
    errors: dict[tuple[str, str, int], list[ErrorRun]] = {}
    for topic, topic_id, partition, first, last, answer, error in zip(*columns, strict=True):
        at = (topic, topic_id, partition)
        if answer is None:
            errors.setdefault(at, []).append(ErrorRun(first, last, error))
        else:
            ranges.setdefault(at, []).append((first, last, answer))
    answers = {
        SharePartitionKey(group_id, topic_id, partition): AcknowledgedSpan(
            TopicPartition(topic, partition),
            AcknowledgedRanges(np.array(found, np.int64)),
            errors.get((topic, topic_id, partition), ()),
        )
        for (topic, topic_id, partition), found in ranges.items()
    }
    return CommittedOutput(BatchStamp(epoch, batch_id), member_id, answers)


def _batches(answers: AcknowledgedSpans) -> Iterator[pa.RecordBatch]:
    for key, span in answers.items():
        first, last, answer = span.ranges.T
        yield _batch(key, span, first, last, pa.array(answer, pa.int8()), pa.nulls(len(first), pa.string()))
        if span.errors:
            low, high, texts = zip(*span.errors, strict=True)
            yield _batch(key, span, low, high, pa.nulls(len(low), pa.int8()), pa.array(texts, pa.string()))


def _batch(
    key: SharePartitionKey, span: AcknowledgedSpan, first: object, last: object, answer: object, error: object
) -> pa.RecordBatch:
    offsets = [pa.array(first, pa.int64()), pa.array(last, pa.int64())]  # type: ignore[call-overload]
    size = len(offsets[0])
    key_columns = [
        pa.repeat(span.partition.topic, size),
        pa.repeat(key.topic_id, size),
        pa.repeat(pa.scalar(key.partition, pa.int32()), size),
    ]
    return pa.RecordBatch.from_arrays([*key_columns, *offsets, answer, error], schema=_ANSWERS)  # type: ignore[list-item]
