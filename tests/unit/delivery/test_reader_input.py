"""Which of the records that a worker reads were acquired, and how often, against plain dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.delivery.reader_input import ReaderInput
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ports import OffsetSpan
from share_spark.engine.ranges import AcquiredRanges
from share_spark.kafka.record_reader import KafkaPart, ReadRecords
from share_spark.model.ids import TopicPartition

FAR = 60_000
"""Further apart than one span reaches."""

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("delivery_count", pa.int32()),
    ]
)


class EvenOffsets:
    """Reads a log that has a record at each even offset; it gives those of several spans in turns."""

    def part(self, acquired: Sequence[AcquiredSpan]) -> KafkaPart:
        return KafkaPart(self, acquired)

    def read(
        self, spans: Sequence[OffsetSpan], _: Collection[str], _is_stopping: Callable[[], bool]
    ) -> Iterator[ReadRecords]:
        rows = [
            (offset, number)
            for number, (_, _, first, last) in enumerate(spans)
            for offset in range(first, last + 1)
            if offset % 2 == 0
        ]
        rows.sort(key=lambda row: row[0])
        for at in range(0, len(rows), 3):
            offsets, numbers = zip(*rows[at : at + 3], strict=True)
            records = pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64())})
            yield ReadRecords(records, np.array(numbers, np.int32))


Wanted = dict[tuple[str, int], dict[int, int]]
"""By topic and partition: offset -> delivery count."""

offsets = st.integers(0, 12) | st.integers(FAR, FAR + 6)
places = st.tuples(st.sampled_from(["orders", "returns"]), st.integers(0, 2))


@settings(deadline=None)
@given(st.dictionaries(places, st.dictionaries(offsets, st.integers(1, 3), min_size=1), min_size=1), st.integers(1, 4))
def test_each_acquired_record_comes_to_one_task(wanted: Wanted, tasks: int) -> None:
    acquired = [AcquiredSpan(TopicPartition(*place), ranges(counts)) for place, counts in wanted.items()]
    inputs = ReaderInput.of(EvenOffsets(), acquired, tasks=tasks, most_rows=4)
    batches = [batch for task in range(tasks) for batch in inputs.batches(task, SCHEMA)]
    found = sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())
    assert found == sorted(
        (*place, offset, count)
        for place, counts in wanted.items()
        for offset, count in counts.items()
        if offset % 2 == 0
    )
    assert all(batch.num_rows <= 4 for batch in batches)


def ranges(counts: dict[int, int]) -> AcquiredRanges:
    """One for each offset, those with the highest counts first."""
    rows = sorted(((offset, offset, count) for offset, count in counts.items()), key=lambda row: (-row[2], row[0]))
    return AcquiredRanges(np.array(rows, np.int64))
