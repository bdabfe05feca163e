"""The acknowledgements of a delivery as the payload of a sink's journal entry, in Arrow: for the next engine, if this
one ends before a state row has absorbed them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from share_spark.delivery.arrow_stream import stream_of, table_in
from share_spark.engine.attempts import ErrorRun
from share_spark.engine.delivery_port import AcknowledgedSpan, AcknowledgedSpans
from share_spark.engine.ports import CommittedOutput
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition
from share_spark.model.requests import ANSWERS, AcknowledgeType, AnsweredRange, Loss, RetryDelay
from share_spark.partition.columns import as_columns, in_best_form

_ANSWER_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("topic", pa.string()),
    pa.field("topic_id", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("first_offset", pa.int64()),
    pa.field("last_offset", pa.int64()),
    pa.field("answer", pa.int8()),
    pa.field("error", pa.string()),
    pa.field("delay_ms", pa.int64()),
]
_ANSWERS = pa.schema(_ANSWER_FIELDS)
"""The columns. A row is an acknowledged range (``answer``: the acknowledge type or a ``Loss``), or the error text of a
range, or the delay of one."""


_ANSWER_OF: dict[int, AcknowledgeType | Loss] = {
    **ANSWERS,
    # As the first releases wrote them: -1 for the first one.
    **{-number: loss for number, loss in enumerate(Loss, 1)},
}
"""The meaning of ``answer``."""


def to_payload(output: CommittedOutput) -> bytes:
    """Return ``output`` as an Arrow stream; its stamp and member are in the schema's metadata."""
    note = json.dumps([*output.stamp, output.member_id]).encode()
    table = pa.Table.from_batches(list(_batches(output.answers)), _ANSWERS).replace_schema_metadata({"output": note})
    return stream_of(table)


def from_payload(group_id: str, payload: bytes) -> CommittedOutput:
    """Undo ``to_payload``."""
    table = table_in(payload)
    epoch, batch_id, member_id = json.loads((table.schema.metadata or {})[b"output"])
    columns = [table.column(name).to_pylist() for name in _ANSWERS.names]
    ranges: dict[tuple[str, str, int], list[AnsweredRange]] = {}
    errors: dict[tuple[str, str, int], list[ErrorRun]] = {}
    delays: dict[tuple[str, str, int], list[RetryDelay]] = {}
    for topic, topic_id, partition, first, last, answer, error, delay_ms in zip(*columns, strict=True):
        at = (topic, topic_id, partition)
        if answer is not None:
            ranges.setdefault(at, []).append(AnsweredRange(first, last, _ANSWER_OF[answer]))
        elif error is not None:
            errors.setdefault(at, []).append(ErrorRun(first, last, error))
        else:
            delays.setdefault(at, []).append(RetryDelay(first, last, delay_ms))
    answers = {
        SharePartitionKey(group_id, topic_id, partition): AcknowledgedSpan(
            TopicPartition(topic, partition),
            in_best_form(found),
            errors.get((topic, topic_id, partition), ()),
            delays.get((topic, topic_id, partition), ()),
        )
        for (topic, topic_id, partition), found in ranges.items()
    }
    return CommittedOutput(BatchStamp(epoch, batch_id), member_id, answers)


def _batches(answers: AcknowledgedSpans) -> Iterator[pa.RecordBatch]:
    for key, span in answers.items():
        if not span.ranges:
            continue
        found = as_columns(span.ranges)
        codes = found.by_kind([one.answer for one in found.samples], "i1")
        yield _batch(key, span, "answer", (found.first, found.last, codes))
        if span.errors:
            yield _batch(key, span, "error", tuple(zip(*span.errors, strict=True)))
        if span.delays:
            yield _batch(key, span, "delay_ms", tuple(zip(*span.delays, strict=True)))


def _batch(key: SharePartitionKey, span: AcknowledgedSpan, name: str, columns: Any) -> pa.RecordBatch:
    """Return one batch. ``columns``: first offset, last offset, the values of ``name``; other value columns are
    null."""
    first, last, said = columns
    size = len(first)
    values = {
        "topic": pa.repeat(span.partition.topic, size),
        "topic_id": pa.repeat(key.topic_id, size),
        "partition": pa.repeat(pa.scalar(key.partition, pa.int32()), size),
        "first_offset": pa.array(first, pa.int64()),
        "last_offset": pa.array(last, pa.int64()),
        name: pa.array(said, _ANSWERS.field(name).type),
    }
    everything: list[Any] = [values.get(field.name, pa.array([None] * size, field.type)) for field in _ANSWER_FIELDS]
    return pa.RecordBatch.from_arrays(everything, schema=_ANSWERS)
