"""What the bytes of Kafka's protocol cost: a ShareFetch read and answered, and records encoded as record batches.

Processor time of this process, the least of some rounds, without sockets. The peer of an answer is the same by ``kio``,
the making of its dataclasses included, as ours are made as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pyarrow as pa
from kio.schema.errors import ErrorCode
from kio.schema.share_fetch.v2 import ShareFetchResponse
from kio.schema.share_fetch.v2 import response as kio

from share_spark.gateway.frames import answer_frame, read_head, read_request
from share_spark.gateway.share_fetch_answer import AcquiredRange, FetchedPartition, FetchedTopic, ShareFetchAnswer
from share_spark.kafka.record_batches import batch_headers
from share_spark.topics.batch_encoder import encode_batches
from tests.bench.harness import Measure, compare, report
from tests.support.requests_of_clients import request_frame, share_fetch

ROUNDS = 7
MOST_REQUEST_US = 100.0
"""Of a request with 4 partitions, and a batch acknowledged in each."""

TOPIC = UUID(int=1)
RECORDS = bytes(16 << 10)
VALUE = bytes(100)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def run(_spark: object, _bootstrap: str) -> bool:
    """Measure and report; are the goals met?"""
    requests = [_request(partitions, batches) for partitions, batches in ((1, 0), (4, 1), (4, 20), (64, 1))]
    answers = [_answer(partitions) for partitions in (1, 4, 64)]
    return report("wire", "What the bytes of Kafka's protocol cost", [*requests, *answers, *_batches()])


def _request(partitions: int, batches: int) -> Measure:
    frame = request_frame(share_fetch(partitions, batches))
    taken_us = _least_us(lambda: read_request(frame, read_head(frame)))
    is_goal = (partitions, batches) == (4, 1)
    return Measure(
        measure=f"read a ShareFetch: {partitions} partitions, {batches} batches each, us",
        ours=round(taken_us, 2),
        peer=None,
        ratio=None,
        goal=f"<= {MOST_REQUEST_US:.0f}" if is_goal else None,
        met=taken_us <= MOST_REQUEST_US if is_goal else None,
    )


def _answer(partitions: int) -> Measure:
    ours_us = _least_us(lambda: answer_frame(1, _ours(partitions)))
    kio_us = _least_us(lambda: answer_frame(1, _of_kio(partitions)))
    return compare(f"answer it: {partitions} partitions of 16 KiB, us (peer: kio)", ours_us, kio_us)


def _ours(partitions: int) -> ShareFetchAnswer:
    fetched = [FetchedPartition(number, (RECORDS,), (AcquiredRange(0, 99, 1),)) for number in range(partitions)]
    return ShareFetchAnswer([FetchedTopic(TOPIC, fetched)], acquisition_lock_timeout_ms=30_000)


def _of_kio(partitions: int) -> ShareFetchResponse:
    fetched = tuple(
        kio.PartitionData(
            partition_index=number,
            error_code=ErrorCode.none,
            acknowledge_error_code=0,
            current_leader=kio.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
            records=RECORDS,
            acquired_records=(kio.AcquiredRecords(first_offset=0, last_offset=99, delivery_count=1),),
        )
        for number in range(partitions)
    )
    return ShareFetchResponse(
        throttle_time=timedelta(),
        error_code=ErrorCode.none,
        acquisition_lock_timeout=timedelta(seconds=30),
        responses=(kio.ShareFetchableTopicResponse(topic_id=TOPIC, partitions=fetched),),
        node_endpoints=(),
    )


def _batches() -> list[Measure]:
    count = 10_000
    at = datetime(2026, 1, 1, tzinfo=UTC)
    records = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(count)),
            "timestamp": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array([VALUE] * count),
            "headers": pa.nulls(count, HEADERS),
        }
    )
    batches = [batch.content for batch in encode_batches(records)]
    content = b"".join(batches)
    each_us = _least_us(lambda: list(encode_batches(records)), times=3) / count
    header_us = _least_us(lambda: list(batch_headers(content)), times=10) / len(batches)
    values = {"encode a record of 100 bytes, us": each_us, "find a record batch by its header, us": header_us}
    return [
        Measure(measure=measure, ours=round(taken_us, 3), peer=None, ratio=None, goal=None, met=None)
        for measure, taken_us in values.items()
    ]


def _least_us(work: Callable[[], object], times: int = 200) -> float:
    """Microseconds of one time."""
    found = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - started) / times)
    return min(found) * 1e6
