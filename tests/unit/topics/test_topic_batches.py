"""Record batches of an embedded topic, read from its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark import EmbeddedTopicLog, Message
from share_spark.engine.batch_reader import RecordBatch
from share_spark.model.ids import TopicPartition
from share_spark.topics.topic_batches import TopicBatchReader
from tests.support.record_batches import decoded

AT = TopicPartition("orders", 0)


def log_of(directory: Path, sizes: list[int], *, appends: int = 1) -> EmbeddedTopicLog:
    """A topic of one partition with values of these sizes, in as many appends."""
    log = EmbeddedTopicLog(None, str(directory))
    log.create_topic(AT.topic, 1)
    each = -(-len(sizes) // appends)
    for begin in range(0, len(sizes), each):
        log.append(AT.topic, [Message(b"v" * size, key=b"k") for size in sizes[begin : begin + each]])
    return log


def read_all(reader: TopicBatchReader, most_bytes: int, batch_records: int) -> list[list[RecordBatch]]:
    """All reads of the log, one after the other."""
    reads: list[list[RecordBatch]] = []
    offset = 0
    while found := reader.read(AT, offset, most_bytes, batch_records):
        reads.append(list(found))
        offset = found[-1].last_offset + 1
    return reads


@pytest.mark.parametrize(("most_bytes", "batch_records"), [(1, 500), (2_000, 7), (1 << 20, 500), (1 << 20, 1)])
def test_reads_that_follow_one_another_have_all_records_once(
    tmp_path: Path, most_bytes: int, batch_records: int
) -> None:
    sizes = [number * 37 % 400 for number in range(600)]
    reads = read_all(TopicBatchReader(log_of(tmp_path, sizes, appends=3)), most_bytes, batch_records)
    records = [record for read in reads for batch in read for record in decoded(batch.content).records]
    assert [(record.offset, len(record.value or b"")) for record in records] == list(enumerate(sizes))


def test_batches_have_as_many_records_as_a_client_wants(tmp_path: Path) -> None:
    reader = TopicBatchReader(log_of(tmp_path, [10] * 1_000))
    for wanted in (1, 30, 500, 5_000):
        sizes = [batch.last_offset - batch.base_offset + 1 for batch in reader.read(AT, 0, 1 << 20, wanted)]
        assert max(sizes) == min(wanted, 1_000)


def test_a_read_is_about_as_large_as_it_may_be(tmp_path: Path) -> None:
    reader = TopicBatchReader(log_of(tmp_path, [1_000] * 2_000))
    sizes = [sum(len(batch.content) for batch in read) for read in read_all(reader, 100_000, 500)]
    assert all(90_000 < size < 110_000 for size in sizes[:-1])


def test_a_file_is_not_opened_for_each_read_of_it(tmp_path: Path, opened: list[str]) -> None:
    reads = read_all(TopicBatchReader(log_of(tmp_path, [100] * 40_000)), 1 << 20, 500)
    assert (len(reads), len(opened)) == (6, 1)
