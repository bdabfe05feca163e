"""The acknowledgements of a delivery as the payload of a sink's journal entry, in Arrow: for the next engine, if this
one ends before it has absorbed them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from share_spark.engine.ports import AcknowledgedSpan, AcknowledgedSpans, CommittedOutput, ErrorRun
from share_spark.engine.ranges import AcknowledgedRanges
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition

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
