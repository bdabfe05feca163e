"""Released records that stay with the workers: which of them are acquired again, what a task takes from the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.delivery.kept_input import KeptInput, KeptPart, rows_of
from share_spark.delivery.kept_rows import KeptFile, KeptPlace, KeptRows, KeptWriter, earlier_offsets
from share_spark.engine.delivery_port import AcknowledgedSpan, AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges, EarlierRanges
from share_spark.handlers.acknowledgement import Ack, Answers
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss
from tests.support.answers import answered

AT = TopicPartition("orders", 0)
RELEASED = int(Ack.RELEASE)

# (gap before the range, length, delivery count)
ranges_of = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(1, 3)), max_size=12)


def ranges(gaps: list[tuple[int, int, int]]) -> AcquiredRanges:
    found, at = [], 0
    for gap, length, count in gaps:
        found.append((at + gap, at + gap + length - 1, count))
        at += gap + length
    return AcquiredRanges(np.array(found, np.int64).reshape(-1, 3))


def counts(span: AcquiredSpan) -> dict[int, int]:
    return {offset: count for first, last, count in span.ranges.tolist() for offset in range(first, last + 1)}


def kept(
    directory: Path, offsets: list[int], *, topic: str | None = "orders", partition: int = 0, ordered: bool = False
) -> KeptRows:
    """Of a delivery that released these."""
    rows = KeptRows(ordered=ordered)
    add(rows, directory, offsets, topic=topic, partition=partition)
    return rows


def add(
    rows: KeptRows,
    directory: Path,
    offsets: list[int],
    *,
    topic: str | None = "orders",
    partition: int = 0,
    answer: int = RELEASED,
) -> KeptFile | None:
    writer = KeptWriter(KeptPlace(str(directory), 1 << 20, rows.answers))
    writer.add(batch(offsets, partition), Answers.same(len(offsets), answer))
    file = writer.close()
    said = answered((offset, offset, answer) for offset in sorted(offsets))
    span = AcknowledgedSpan(TopicPartition("orders", partition), said, ())
    rows.add([file] if file is not None else [], topic, [span], {})
    return file


def batch(offsets: list[int], partition: int = 0) -> pa.RecordBatch:
    size = len(offsets)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["orders"] * size),
            "partition": pa.array([partition] * size, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "value": pa.array([b"%d" % offset for offset in offsets]),
            "delivery_count": pa.array([1] * size, pa.int32()),
            "__task": pa.array(["task 0.0 in stage 3.1 (TID 4)"] * size),
        }
    )


def taken(found: KeptInput | None) -> dict[int, int]:
    """Delivery count by offset, of all tasks."""
    if found is None:
        return {}
    schema = batch([0]).schema
    batches = [one for task in range(found.tasks) for one in found.batches(task, schema)]
    assert not list(found.batches(found.tasks, schema)), "a task that takes nothing from files"
    rows = [row for one in batches for row in one.to_pylist()]
    assert all(row["value"] == b"%d" % row["offset"] and row["__task"] is None for row in rows)
    assert len({(row["topic"], row["partition"]) for row in rows}) <= 1
    assert len({row["offset"] for row in rows}) == len(rows)
    return {row["offset"]: row["delivery_count"] for row in rows}


@settings(deadline=None)  # the first reading of a file loads a library
@given(acquired=ranges_of, released=st.sets(st.integers(0, 60)), tasks=st.integers(1, 3))
def test_each_acquired_record_comes_from_a_file_or_from_the_log(
    tmp_path_factory: pytest.TempPathFactory, acquired: list[tuple[int, int, int]], released: set[int], tasks: int
) -> None:
    rows = kept(tmp_path_factory.mktemp("kept"), sorted(released))
    wanted = AcquiredSpan(AT, ranges(acquired))
    rest, found = rows.take([wanted], tasks, 10_000)
    from_files = taken(found)
    from_log = {offset: count for span in rest for offset, count in counts(span).items()}
    assert from_files.keys() == counts(wanted).keys() & released
    assert {**from_files, **from_log} == counts(wanted)
    assert len(from_files) + len(from_log) == len(counts(wanted))


@pytest.mark.parametrize("topic", ["orders", None])
def test_files_of_several_deliveries(tmp_path: Path, topic: str | None) -> None:
    rows = kept(tmp_path, [1, 5, 9], topic=topic)
    add(rows, tmp_path, [20, 21], topic=topic)
    rest, found = rows.take([AcquiredSpan(AT, ranges([(5, 16, 2)]))], 2, 10_000)
    assert (taken(found), [one.ranges.tolist() for one in rest]) == (
        {5: 2, 9: 2, 20: 2},
        [[[6, 8, 2], [10, 19, 2]]],
    )
    rows.drop_used()
    assert len(list(tmp_path.iterdir())) == 2, "1 and 21 were not acquired"
    rest, found = rows.take([AcquiredSpan(AT, ranges([(1, 1, 3), (19, 1, 3)]))], 2, 10_000)
    assert (taken(found), rest) == ({1: 3, 21: 3}, [])
    rows.drop_used()
    assert not list(tmp_path.iterdir())


def test_other_partitions_and_topics(tmp_path: Path) -> None:
    """The same offsets there are other records."""
    rows = kept(tmp_path, [1, 2], partition=1)
    others = [AcquiredSpan(AT, ranges([(1, 2, 2)])), AcquiredSpan(TopicPartition("bills", 1), ranges([(1, 2, 2)]))]
    rest, found = rows.take(others, 1, 10_000)
    assert (found, [one.ranges.tolist() for one in rest]) == (None, [[[1, 2, 2]]] * 2)


records_of = st.sets(
    st.tuples(st.sampled_from(["orders", "returns"]), st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=40
)


@given(in_file=records_of, wanted=records_of)
def test_which_rows_of_a_file_are_wanted(in_file: set[tuple[str, int, int]], wanted: set[tuple[str, int, int]]) -> None:
    """Of several topics and partitions, which have the same offsets."""
    rows = sorted(in_file)
    topics, partitions, offsets = zip(*rows, strict=True)
    columns = {
        "topic": pa.array(topics),
        "partition": pa.array(partitions, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
    }
    numbers = {place: number for number, place in enumerate(sorted(wanted), 1)}
    by_place: dict[TopicPartition, list[tuple[int, int]]] = {}
    for (topic, partition, offset), number in numbers.items():
        by_place.setdefault(TopicPartition(topic, partition), []).append((offset, number))
    columns_of = {at: tuple(zip(*some, strict=True)) for at, some in by_place.items()}
    part = KeptPart((), None, {at: (np.array(o, np.int64), np.array(n, np.int32)) for at, (o, n) in columns_of.items()})
    found, said = rows_of(pa.RecordBatch.from_pydict(columns), part)
    assert dict(zip((rows[row] for row in found), said.tolist(), strict=True)) == {
        place: number for place, number in numbers.items() if place in in_file
    }


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    rows = kept(tmp_path, [1, 2])
    next(tmp_path.iterdir()).unlink()
    rest, found = rows.take([AcquiredSpan(AT, ranges([(1, 2, 2)]))], 1, 10_000)
    assert (found, [one.ranges.tolist() for one in rest]) == (None, [[[1, 2, 2]]])


def test_a_delivery_that_was_not_kept_whole(tmp_path: Path) -> None:
    """A worker died, and its file with it, or there were too many."""
    rows = KeptRows()
    writer = KeptWriter(KeptPlace(str(tmp_path), 1 << 20, rows.answers))
    writer.add(batch([1]), Answers.same(1, RELEASED))
    file = writer.close()
    assert file is not None
    rows.add([file], "orders", [AcknowledgedSpan(AT, answered([(1, 2, RELEASED)]), ())], {})
    assert rows.take([AcquiredSpan(AT, ranges([(1, 2, 2)]))], 1, 10_000)[1] is None
    assert not list(tmp_path.iterdir())


def test_no_more_bytes_than_allowed(tmp_path: Path) -> None:
    writer = KeptWriter(KeptPlace(str(tmp_path), 300, KeptRows().answers))
    for first in (0, 10, 20):
        writer.add(batch([*range(first, first + 5)]), Answers.same(5, RELEASED))
    assert (writer.close(), list(tmp_path.iterdir())) == (None, [])


def test_a_disk_that_refuses_the_file(tmp_path: Path) -> None:
    """Nothing is lost by it: the topic log has the records."""
    (tmp_path / "file").write_text("no directory")
    writer = KeptWriter(KeptPlace(str(tmp_path / "file"), 1 << 20, KeptRows().answers))
    for first in (0, 5):
        writer.add(batch([first]), Answers.same(1, RELEASED))
    assert writer.close() is None


def test_what_is_accepted_is_not_kept(tmp_path: Path) -> None:
    writer = KeptWriter(KeptPlace(str(tmp_path / "new"), 1 << 20, KeptRows().answers))
    writer.add(batch([1]), Answers.same(1, int(Ack.ACCEPT)))
    assert not list(tmp_path.iterdir())
    writer.add(batch([2, 3, 4]), Answers.listed([1, 2, 3], {}))
    file = writer.close()
    assert file is not None
    table = pa.ipc.open_file(file.path).read_all()
    assert (file.rows, table.column_names) == (2, ["topic", "partition", "offset", "value"])
    assert table.column("offset").to_pylist() == [3, 4]


# ----------------------------------------------------------------------------------------------------- in order of keys


def in_order(found: KeptInput | None) -> list[tuple[int, int]]:
    """(offset, delivery count), as the one task gets them."""
    assert found is not None
    rows = [row for one in found.batches(0, batch([0]).schema) for row in one.to_pylist()]
    return [(row["offset"], row["delivery_count"]) for row in rows]


def test_in_order_files_of_several_deliveries_are_merged(tmp_path: Path) -> None:
    """5 and 9 were not acquired by the delivery that released 3 and 7 again."""
    rows = kept(tmp_path, [5, 9], ordered=True)
    add(rows, tmp_path, [7, 3])
    rest, found = rows.take([AcquiredSpan(AT, ranges([(3, 10, 2)]))], 1, 2)
    assert (found, [one.ranges.tolist() for one in rest]) == (None, [[[3, 12, 2]]]), "4 is in the log alone"
    rest, found = rows.take([AcquiredSpan(AT, ranges([(3, 1, 2), (1, 1, 2), (1, 1, 1), (1, 4, 1)]))], 1, 2)
    assert in_order(found) == [(3, 2), (5, 2), (7, 1), (9, 1)]
    assert [one.ranges.tolist() for one in rest] == [[[10, 12, 1]]]
    assert found is not None
    assert all(one.num_rows <= 2 for one in found.batches(0, batch([0]).schema))


def test_in_order_what_is_not_delivered_waits_on(tmp_path: Path) -> None:
    """Its key is needed by each delivery, until it is acquired."""
    rows = kept(tmp_path, [3, 7], ordered=True)
    delayed = AcquiredSpan(AT, AcquiredRanges(np.array([[8, 9, 1], [3, 3, -5_001]])))
    for _ in range(2):
        rest, found = rows.take([delayed], 1, 10_000)
        assert (in_order(found), [one.ranges.tolist() for one in rest]) == ([(3, -5_001)], [[[8, 9, 1]]])
        rows.drop_used()
    rows.take([AcquiredSpan(AT, ranges([(3, 1, 2), (3, 1, 2)]))], 1, 10_000)
    rows.drop_used()
    assert not list(tmp_path.iterdir())


def test_in_order_the_newest_files_have_what_was_not_delivered(tmp_path: Path) -> None:
    """Else it would have to be read from older ones, or from the log, for as long as it is delayed."""
    rows = kept(tmp_path, [3, 7], ordered=True)
    writer = KeptWriter(KeptPlace(str(tmp_path), 1 << 20, rows.answers))
    writer.add_all(batch([3]))
    writer.add(batch([8, 9]), Answers.listed([RELEASED, int(Ack.ACCEPT)], {}))
    file = writer.close()
    assert file is not None
    span = AcquiredSpan(AT, AcquiredRanges(np.array([[8, 9, 1]])), EarlierRanges(np.array([[3, 3, 5_000]])))
    said = AcknowledgedSpan(AT, answered([(8, 8, RELEASED), (9, 9, Ack.ACCEPT)]), ())
    rows.add([file], "orders", [said], earlier_offsets([span]))
    (before,) = set(tmp_path.iterdir()) - {Path(file.path)}
    rest, found = rows.take(
        [AcquiredSpan(AT, AcquiredRanges(np.array([[10, 10, 1], [3, 3, -5_001], [8, 8, -1]])))], 1, 10
    )
    assert (in_order(found), [one.ranges.tolist() for one in rest]) == ([(3, -5_001), (8, -1)], [[[10, 10, 1]]])
    assert found is not None
    assert [part.files for part in found.parts] == [(file.path,)]
    rows.drop_used()
    assert before.exists(), "7 was not seen by that delivery"


@pytest.mark.parametrize("ordered", [True, False])
def test_what_was_held_back_is_kept_in_order_only(tmp_path: Path, ordered: bool) -> None:
    rows = KeptRows(ordered=ordered)
    add(rows, tmp_path, [4], answer=int(Loss.NOT_ENTERED))
    _, found = rows.take([AcquiredSpan(AT, ranges([(4, 1, 1)]))], 1, 10_000)
    assert (found is not None) == ordered


@pytest.mark.parametrize("ordered", [True, False])
def test_what_was_throttled_is_kept(tmp_path: Path, ordered: bool) -> None:
    rows = KeptRows(ordered=ordered)
    add(rows, tmp_path, [4], answer=int(Loss.THROTTLED))
    _, found = rows.take([AcquiredSpan(AT, ranges([(4, 1, 1)]))], 1, 10_000)
    assert found is not None


def test_the_part_of_some_topic_partitions(tmp_path: Path) -> None:
    rows = kept(tmp_path, [3], ordered=True)
    add(rows, tmp_path, [3], partition=1)
    other = TopicPartition("orders", 1)
    _, found = rows.take([AcquiredSpan(at, ranges([(3, 1, 2)])) for at in (AT, other)], 1, 10_000)
    assert found is not None
    assert [set(part.wanted) for part in found.parts] == [{AT}, {other}]
    own = found.of([other])
    assert own is not None
    assert ([set(part.wanted) for part in own.parts], in_order(own)) == ([{other}], [(3, 2)])
    assert found.of([TopicPartition("bills", 0)]) is None


def test_batches_have_no_more_rows_than_they_may(tmp_path: Path) -> None:
    _, found = kept(tmp_path, [*range(10)]).take([AcquiredSpan(AT, ranges([(0, 10, 2)]))], 1, 4)
    assert found is not None
    assert [one.num_rows for one in found.batches(0, batch([0]).schema)] == [4, 4, 2]


def test_old_files_go(tmp_path: Path) -> None:
    rows = KeptRows()
    for number in range(12):
        add(rows, tmp_path, [number])
    assert len(list(tmp_path.iterdir())) == 8
    rows.clear()
    assert not list(tmp_path.iterdir())
