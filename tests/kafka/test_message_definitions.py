"""Our reader, kio's writer and our own encoder, by Kafka's definitions of its messages."""

from __future__ import annotations

import re
import struct
from dataclasses import fields, is_dataclass
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from share_spark.gateway.apis import SHARE_FETCH, served_versions
from share_spark.gateway.frames import answer_frame, read_head, read_request
from share_spark.gateway.message_fields import shape
from share_spark.gateway.message_maker import make_message
from share_spark.gateway.message_reader import MalformedRequestError
from share_spark.gateway.share_fetch_answer import (
    AcquiredRange,
    FetchedPartition,
    FetchedTopic,
    NodeEndpoint,
    ShareFetchAnswer,
)
from tests.support.message_definitions import Values, definition, encoded, random_message, varint

SERVED = [pytest.param(api.key, version, id=f"{api.name}-{version}") for api, version in served_versions()]


def kio_name(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def plain(message: Any) -> Any:
    """A message of kio in the form of the definitions, with kio's names."""
    if is_dataclass(message):
        return {field.name: plain(getattr(message, field.name)) for field in fields(message)}
    if isinstance(message, tuple):
        return [plain(each) for each in message]
    return message


def kio_form(value: Any) -> Any:
    """A message by its definition, as ``plain`` gives it."""
    if isinstance(value, dict):
        return dict(kio_item(name, each) for name, each in value.items())
    if isinstance(value, list):
        return [kio_form(each) for each in value]
    return None if value == UUID(int=0) else value


def kio_item(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("Ms"):
        return kio_name(name.removesuffix("Ms")), timedelta(milliseconds=value)
    return kio_name(name), kio_form(value)


def frame(key: int, version: int, body: bytes, flexible: bool, random: Random) -> bytes:
    tags = b"\x01\x07" + varint(200) + random.randbytes(200) if flexible else b""
    return struct.pack(">hhih", key, version, 4711, 3) + b"rdk" + tags + body


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_requests_are_read(key: int, version: int) -> None:
    of, random = definition(key, "request", version), Random(version)
    for _ in range(60):
        values = random_message(of, random)
        sent = frame(key, version, encoded(of, values, strangers=random), of.flexible, random)
        head = read_head(sent)
        assert head == (key, version, 4711)
        client_id, message = read_request(sent, head)
        assert client_id == "rdk"
        assert plain(message) == kio_form(values)


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_a_request_that_is_cut_anywhere_is_refused(key: int, version: int) -> None:
    of, random = definition(key, "request", version), Random(version)
    body = min((encoded(of, random_message(of, random)) for _ in range(30)), key=lambda body: abs(len(body) - 400))
    sent = frame(key, version, body, of.flexible, random)
    for end in range(8, len(sent)):
        with pytest.raises(MalformedRequestError):
            read_request(sent[:end], read_head(sent))
    with pytest.raises(MalformedRequestError, match="1 bytes follow"):
        read_request(sent + b"\0", read_head(sent))


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_responses_are_written(key: int, version: int) -> None:
    of, random = definition(key, "response", version), Random(version)
    kind = load_response_schema(key, version)
    for _ in range(60):
        values = random_message(of, random)
        if key == SHARE_FETCH.key:
            values["Responses"] = values["Responses"][:3]
        written = b"".join(answer_frame(4711, make_message(kind, for_kio(kind, values))))
        assert written == response_frame(key, of.flexible, encoded(of, values))


def for_kio(kind: Any, values: Values) -> dict[str, Any]:
    """Values for kio's classes: error codes are of its enum, as ``make_message`` takes them."""
    named = dict(kio_item(name, value) for name, value in values.items())
    for field in fields(kind):
        of = shape(field.type)
        original = next(value for name, value in values.items() if kio_item(name, value)[0] == field.name)
        if field.metadata.get("kafka_type") == "error_code":
            named[field.name] = ErrorCode(original)
        elif of.is_message and original is not None:
            some = [for_kio(of.kind, each) for each in (original if of.is_array else [original])]
            named[field.name] = some if of.is_array else some[0]
    return named


def response_frame(key: int, flexible: bool, body: bytes) -> bytes:
    content = struct.pack(">i", 4711) + (b"\0" if flexible and key != 18 else b"") + body
    return struct.pack(">i", len(content)) + content


@pytest.mark.parametrize("version", SHARE_FETCH.versions)
def test_our_own_answer_to_a_share_fetch(version: int) -> None:
    of, random = definition(SHARE_FETCH.key, "response", version), Random(version)
    for _ in range(60):
        values = random_message(of, random)
        written = b"".join(answer_frame(4711, share_fetch_answer(values, random)))
        assert written == response_frame(SHARE_FETCH.key, True, encoded(of, values))


def share_fetch_answer(values: Values, random: Random) -> ShareFetchAnswer:
    topics = [
        FetchedTopic(topic["TopicId"], [fetched(partition, random) for partition in topic["Partitions"]])
        for topic in values["Responses"]
    ]
    return ShareFetchAnswer(
        topics,
        values["ErrorCode"],
        values["ErrorMessage"],
        values["AcquisitionLockTimeoutMs"],
        [NodeEndpoint(*node.values()) for node in values["NodeEndpoints"]],
        values["ThrottleTimeMs"],
    )


def fetched(partition: Values, random: Random) -> FetchedPartition:
    records = memoryview(partition["Records"])
    cut = random.randint(0, len(records))
    return FetchedPartition(
        partition["PartitionIndex"],
        [records[:cut], records[cut:]],
        [AcquiredRange(*range_.values()) for range_ in partition["AcquiredRecords"]],
        partition["ErrorCode"],
        partition["ErrorMessage"],
        partition["AcknowledgeErrorCode"],
        partition["AcknowledgeErrorMessage"],
        *partition["CurrentLeader"].values(),
    )
