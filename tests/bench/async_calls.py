"""Processor time of an async call in a companion, against one of asyncio without records: the calls of ``waiting``, in
pairs, without Spark.

``python -m tests.bench.async_calls [PAIRS]``
"""

from __future__ import annotations

import asyncio
import pickle
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from share_spark.companion.delivery import LEAST_ROOM
from share_spark.companion.messages import Answered, Forget, HandOver
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.record_reader import RecordReader
from share_spark.model.ids import TopicPartition
from share_spark.topics.topic_file_rows import RecordFile, TopicFileReader
from tests.bench.harness import processor_s
from tests.bench.waiting import CALLS, SECONDS, WARM_UP_S, ask, bare_calls
from tests.support.companion_process import CompanionProcess, companion

PARTITIONS, RECORDS = 4, 200_000
"""Of the topic; the records of each of its partitions."""

MOST_RECORDS = 2 * CALLS
"""The records that the companion has at a time, as a driver hands them over."""

MICRO_BATCH_S = 0.06


def main(pairs: int) -> None:
    """Print the time of each pair, and the medians."""
    found = [(companion_us(), asyncio.run(bare_calls()).busy_us) for _ in range(pairs)]
    for ours_us, bare_us in found:
        print(f"companion {ours_us:.1f} µs, asyncio {bare_us:.1f} µs: {ours_us / bare_us:.2f}")
    ours_us, bare_us, ratio = (
        statistics.median(column) for column in zip(*((a, b, a / b) for a, b in found), strict=True)
    )
    print(f"median: companion {ours_us:.1f} µs, asyncio {bare_us:.1f} µs: {ratio:.2f}")


def companion_us() -> float:
    """Processor time of the companion for a call, in µs."""
    with tempfile.TemporaryDirectory() as place, companion(Path(place) / "ledger", ask, most_calls=CALLS) as process:
        driver = _Driver(process, _topic(Path(place)))
        driver.drive(WARM_UP_S)
        before, busy_s = driver.answers, processor_s(process.process.pid)
        driver.drive(SECONDS)
        return (processor_s(process.process.pid) - busy_s) / (driver.answers - before) * 1e6


def _topic(place: Path) -> RecordReader:
    """An embedded log of a file for each partition."""
    files = {}
    for number in range(PARTITIONS):
        at, path = TopicPartition("asked", number), place / f"{number}.parquet"
        offsets = np.arange(RECORDS)
        columns = {
            "offset": offsets,
            "timestamp": pa.array(offsets, pa.timestamp("us", "UTC")),
            "key": [b"%d" % (offset % 10_000) for offset in range(RECORDS)],
            "value": [b""] * RECORDS,
            "headers": pa.nulls(RECORDS, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
        pq.write_table(pa.table(columns), path)
        files[at] = [RecordFile(str(path), at, 0, RECORDS - 1)]
    return TopicFileReader(files)


class _Driver:
    """Hands over, a few times a second, as many records as were answered, and forgets these."""

    def __init__(self, process: CompanionProcess, topic: RecordReader) -> None:
        self._process, self._topic, self._number, self.answers = process, topic, 0, 0
        self._next, self._left = [0] * PARTITIONS, dict[int, int]()

    def drive(self, seconds: float) -> None:
        """Go on for so long."""
        end, next_batch = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < end:
            if now >= next_batch:
                self._hand_over(MOST_RECORDS - sum(self._left.values()))
                next_batch = now + MICRO_BATCH_S
            message = self._process.next()
            assert isinstance(message, Answered), message
            self.answers += len(message.answers)
            for answer in message.answers:
                self._left[answer.number] -= 1

    def _hand_over(self, records: int) -> None:
        answered = [number for number, left in self._left.items() if not left]
        if answered:
            self._process.send(Forget(tuple(answered)))
            for number in answered:
                del self._left[number]
        some = records // PARTITIONS
        if records < LEAST_ROOM * CALLS:
            return
        acquired = []
        for number, first in enumerate(self._next):
            self._next[number] += some
            ranges = np.array([[first, first + some - 1, 1]])
            acquired.append(AcquiredSpan(TopicPartition("asked", number), ranges))
        self._number += 1
        self._left[self._number] = PARTITIONS * some
        part = pickle.dumps(self._topic.part(acquired), protocol=5)
        self._process.send(HandOver(self._number, acquired, part))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
