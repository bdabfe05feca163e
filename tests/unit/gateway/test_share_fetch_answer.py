"""Our encoder of ShareFetch answers: the same bytes as kio's writer, whatever is in them."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.share_fetch import v1, v2

from share_spark.gateway.frames import answer_frame
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.share_fetch_answer import (
    AcquiredRange,
    FetchedPartition,
    FetchedTopic,
    NodeEndpoint,
    ShareFetchAnswer,
    share_fetch_buffers,
)

int16, int32, int64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))
error_codes = st.sampled_from([int(code) for code in ErrorCode])
texts = st.none() | st.text(max_size=5) | st.just("x" * 200)
buffers = st.binary(max_size=5) | st.sampled_from([b"r" * 130, b"r" * 17_000]) | st.binary(max_size=9).map(memoryview)
acquired = st.lists(st.builds(AcquiredRange, int64, int64, int16), max_size=3) | st.just([AcquiredRange(0, 0, 1)] * 130)
partitions = st.builds(
    FetchedPartition,
    int32,
    st.lists(buffers, max_size=3),
    acquired,
    error_codes,
    texts,
    int16,
    texts,
    int32,
    int32,
)
topics = st.builds(FetchedTopic, st.uuids() | st.just(UUID(int=0)), st.lists(partitions, max_size=4))
nodes = st.builds(NodeEndpoint, int32, st.text(max_size=5), int32, texts)
answers = st.builds(
    ShareFetchAnswer, st.lists(topics, max_size=3), error_codes, texts, int32, st.lists(nodes, max_size=2), int32
)


def as_kio(answer: ShareFetchAnswer, kind: type) -> object:
    topics = [
        {
            "topic_id": topic.topic_id,
            "partitions": [
                partition._asdict()
                | {
                    "partition_index": partition.partition,
                    "error_code": ErrorCode(partition.error_code),
                    "records": b"".join(partition.records),
                    "current_leader": {"leader_id": partition.leader_id, "leader_epoch": partition.leader_epoch},
                    "acquired_records": [range_._asdict() for range_ in partition.acquired],
                }
                for partition in topic.partitions
            ],
        }
        for topic in answer.topics
    ]
    values = answer._asdict() | {
        "error_code": ErrorCode(answer.error_code),
        "throttle_time": timedelta(milliseconds=answer.throttle_time_ms),
        "acquisition_lock_timeout": timedelta(milliseconds=answer.acquisition_lock_timeout_ms),
        "responses": topics,
        "node_endpoints": [node._asdict() for node in answer.node_endpoints],
    }
    return make_message(kind, values)


@pytest.mark.parametrize("kind", [v1.ShareFetchResponse, v2.ShareFetchResponse])
@given(answers, int32)
def test_the_bytes_are_those_of_kio(kind: type, answer: ShareFetchAnswer, correlation_id: int) -> None:
    ours, theirs = (answer_frame(correlation_id, some) for some in (answer, as_kio(answer, kind)))
    assert b"".join(ours) == b"".join(theirs)


def test_records_are_not_copied() -> None:
    records = [memoryview(b"first"), b"second"]
    topic = FetchedTopic(UUID(int=1), [FetchedPartition(0, records, [AcquiredRange(0, 9, 1)])])
    buffers = share_fetch_buffers(ShareFetchAnswer([topic]))
    assert [buffer for buffer in buffers if any(buffer is some for some in records)] == records
