"""Requests about a cluster's own share groups that librdkafka's admin client does not have: ListGroups for share groups
(16), ShareGroupDescribe (77), DescribeShareGroupOffsets (90). All in their flexible versions of Kafka 4.2; the fields
are those of the broker's own message definitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from share_spark.kafka.broker_connection import BrokerConnection
from share_spark.kafka.message_fields import NO_TAGS, AnswerFields, Field, array, array_of, string, struct, unsigned

API_VERSIONS, LIST_GROUPS, DESCRIBE_GROUPS, DESCRIBE_OFFSETS = 18, 16, 77, 90
VERSIONS = {API_VERSIONS: 3, LIST_GROUPS: 5, DESCRIBE_GROUPS: 1, DESCRIBE_OFFSETS: 1}
"""That are sent. DescribeShareGroupOffsets 1 has the lag (KIP-1226)."""

_FAULT = {"error": AnswerFields.int16, "message": AnswerFields.string}
_ASSIGNED = struct(topic_id=AnswerFields.uuid, topic=AnswerFields.string, partitions=array(AnswerFields.int32))
_MEMBER = struct(
    member_id=AnswerFields.string,
    rack=AnswerFields.string,
    epoch=AnswerFields.int32,
    client_id=AnswerFields.string,
    host=AnswerFields.string,
    topics=array(AnswerFields.string),
    assignment=struct(assigned=array(_ASSIGNED)),
)
_GROUP = struct(
    **_FAULT,
    group_id=AnswerFields.string,
    state=AnswerFields.string,
    epoch=AnswerFields.int32,
    assignment_epoch=AnswerFields.int32,
    assignor=AnswerFields.string,
    members=array(_MEMBER),
    operations=AnswerFields.int32,
)
_PARTITION = struct(
    partition=AnswerFields.int32,
    start_offset=AnswerFields.int64,
    leader_epoch=AnswerFields.int32,
    lag=AnswerFields.int64,
    **_FAULT,
)
_TOPIC = struct(topic=AnswerFields.string, topic_id=AnswerFields.uuid, partitions=array(_PARTITION))

_ANSWERS: dict[int, Field] = {
    API_VERSIONS: lambda answer: {
        "error": answer.int16(),
        "versions": array(struct(key=AnswerFields.int16, least=AnswerFields.int16, most=AnswerFields.int16))(answer),
    },
    LIST_GROUPS: struct(
        throttle_ms=AnswerFields.int32,
        error=AnswerFields.int16,
        groups=array(
            struct(
                group_id=AnswerFields.string,
                protocol=AnswerFields.string,
                state=AnswerFields.string,
                kind=AnswerFields.string,
            )
        ),
    ),
    DESCRIBE_GROUPS: struct(throttle_ms=AnswerFields.int32, groups=array(_GROUP)),
    DESCRIBE_OFFSETS: struct(
        throttle_ms=AnswerFields.int32,
        groups=array(struct(group_id=AnswerFields.string, topics=array(_TOPIC), **_FAULT)),
    ),
}


def asked_versions() -> bytes:
    """The body of ApiVersions."""
    return string("share-spark") + string("0") + NO_TAGS


def asked_groups() -> bytes:
    """The body of ListGroups: share groups in any state."""
    return array_of([]) + array_of([string("share")]) + NO_TAGS


def asked_descriptions(group_ids: Iterable[str]) -> bytes:
    """The body of ShareGroupDescribe."""
    return array_of(list(map(string, group_ids))) + b"\0" + NO_TAGS


def asked_offsets(group_ids: Iterable[str]) -> bytes:
    """The body of DescribeShareGroupOffsets: of all topics."""
    all_topics = unsigned(0)
    return array_of([string(group_id) + all_topics + NO_TAGS for group_id in group_ids]) + NO_TAGS


def ask(broker: BrokerConnection, key: int, body: bytes) -> dict[str, Any]:
    """The answer to one request. Raises OSError, and ValueError for an answer that is none of a Kafka broker."""
    answer = AnswerFields(broker.exchange(key, VERSIONS[key], NO_TAGS + body))
    if key != API_VERSIONS:  # its answer begins without, so that old clients understand it
        answer.tags()
    found: dict[str, Any] = _ANSWERS[key](answer)
    return found
