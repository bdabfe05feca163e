"""The parts of records that Spark has read, one for each companion."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.companion.record_parts import cut_at
from share_spark.delivery.reader_input import in_parts
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges, offsets_in
from share_spark.model.ids import TopicPartition
from tests.support.examples import examples

PLACES = st.tuples(st.sampled_from(["a", "b", "é"]), st.integers(0, 2), st.integers(0, 9))


@given(st.sets(PLACES, min_size=1), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_each_record_is_in_the_part_of_its_offset(places: set[tuple[str, int, int]], data: st.DataObject) -> None:
    """Whatever the order in which Spark returns them, and whichever of them hold no record."""
    by_place: dict[TopicPartition, list[list[int]]] = {}
    for topic, partition, offset in data.draw(st.permutations(sorted(places))):
        by_place.setdefault(TopicPartition(topic, partition), []).append([offset, offset, 1])
    acquired = [AcquiredSpan(at, AcquiredRanges(np.array(ranges))) for at, ranges in by_place.items()]
    weights = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    parts = in_parts(acquired, weights)
    there = data.draw(st.lists(st.sampled_from(sorted(places)), unique=True))
    rows = [dict(zip(("topic", "partition", "offset"), place, strict=True)) for place in there]
    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    found = cut_at(pa.Table.from_pylist(rows, schema), parts)
    for spans, records in zip(parts, found, strict=True):
        own = {
            (*span.partition, offset)
            for span in spans
            for first, last, _ in span.ranges.tolist()
            for offset in range(first, last + 1)
        }
        assert [tuple(row.values()) for row in records.to_pylist()] == sorted(own & {*there})
    sizes = [sum(offsets_in(span.ranges) for span in spans) for spans in parts]
    assert sum(sizes) == len(places)
    assert all(abs(size - len(places) * weight / sum(weights)) < 1 for size, weight in zip(sizes, weights, strict=True))
