"""Which records stay behind in the JVM, and what a worker makes of their rows."""

from __future__ import annotations

import pyarrow as pa

from share_spark.delivery.large_records import with_marks
from share_spark.delivery.marked_rows import parted, unmarked


def batch(*counts: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"offset": list(range(len(counts))), "delivery_count": pa.array(counts, pa.int32())}
    )


def test_a_batch_without_marks_is_handed_on_as_it_is() -> None:
    whole = batch(1, 2, 1)
    records, large = parted(whole)
    assert records is whole
    assert large.num_rows == 0


def test_marked_rows_are_parted_from_the_others() -> None:
    records, large = parted(batch(1, -2, 3, -1))
    assert records.column("offset").to_pylist() == [0, 2]
    assert unmarked(batch(1, -2, 3, -1)) == records
    assert large.column("offset").to_pylist() == [1, 3]


def test_a_marker_of_a_task_has_no_count_and_stays() -> None:
    records, large = parted(batch(None))
    assert (records.num_rows, large.num_rows) == (1, 0)


def test_only_what_a_handler_asks_for_is_measured() -> None:
    assert with_marks(["offset", "partition", "delivery_count"]) == ["offset", "partition", "delivery_count"]
    columns = with_marks(["value", "offset", "delivery_count"])
    assert columns[1] == "offset"
    assert "octet_length(value)" in columns[0]
    assert "key" not in "".join(columns)
