"""Requests as clients send them, as frames; and what is made of them by bad luck or bad will."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO
from random import Random
from uuid import UUID

from kio.schema.api_versions.v4 import ApiVersionsRequest
from kio.schema.find_coordinator.v6 import FindCoordinatorRequest
from kio.schema.metadata.v1 import MetadataRequest as OldMetadataRequest
from kio.schema.metadata.v1.request import MetadataRequestTopic as OldMetadataRequestTopic
from kio.schema.metadata.v13 import MetadataRequest
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest
from kio.schema.share_acknowledge.v1 import ShareAcknowledgeRequest
from kio.schema.share_acknowledge.v1 import request as acknowledge
from kio.schema.share_fetch.v2 import ShareFetchRequest
from kio.schema.share_fetch.v2 import request as fetch
from kio.schema.share_group_heartbeat.v1 import ShareGroupHeartbeatRequest
from kio.serial import entity_writer
from kio.static.protocol import RequestPayload

from tests.support.gateway_client import head

MEMBER = "vQ2/U/tR+dG0mYc0hG5Zgw"
TOPIC = UUID(int=0x1234_5678_9ABC_DEF0)


def request_frame(request: RequestPayload) -> bytes:
    """The frame without its length."""
    content = BytesIO()
    entity_writer(type(request))(content, request)
    tags = b"\0" if request.__header_schema__.__flexible__ else b""
    return head(request.__api_key__, request.__version__) + tags + content.getvalue()


def share_fetch(partitions: int, batches: int) -> ShareFetchRequest:
    """``batches``: acknowledged, of each partition."""
    acknowledged = tuple(
        fetch.AcknowledgementBatch(first_offset=5 * n, last_offset=5 * n + 4, acknowledge_types=(1,))
        for n in range(batches)
    )
    numbered = tuple(
        fetch.FetchPartition(partition_index=n, acknowledgement_batches=acknowledged) for n in range(partitions)
    )
    return ShareFetchRequest(
        group_id="group",
        member_id=MEMBER,
        share_session_epoch=1,
        max_wait=timedelta(milliseconds=500),
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=500,
        batch_size=500,
        topics=(fetch.FetchTopic(topic_id=TOPIC, partitions=numbered),),
        forgotten_topics_data=(fetch.ForgottenTopic(topic_id=TOPIC, partitions=(7, 8)),),
    )


def share_acknowledge() -> ShareAcknowledgeRequest:
    batch = acknowledge.AcknowledgementBatch(first_offset=0, last_offset=2, acknowledge_types=(1, 2, 3))
    partition = acknowledge.AcknowledgePartition(partition_index=0, acknowledgement_batches=(batch,))
    topic = acknowledge.AcknowledgeTopic(topic_id=TOPIC, partitions=(partition,))
    return ShareAcknowledgeRequest(group_id="group", member_id=MEMBER, share_session_epoch=-1, topics=(topic,))


LOGIN: tuple[RequestPayload, ...] = (
    SaslHandshakeRequest(mechanism="SCRAM-SHA-256"),
    SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL"),
)

REQUESTS: tuple[RequestPayload, ...] = (
    *LOGIN,
    ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.1"),
    MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=TOPIC, name=None), MetadataRequestTopic(topic_id=None, name="topic")),
        include_topic_authorized_operations=False,
    ),
    OldMetadataRequest(topics=(OldMetadataRequestTopic(name="topic"),)),
    FindCoordinatorRequest(coordinator_keys=("group", "other")),
    ShareGroupHeartbeatRequest(
        group_id="group", member_id=MEMBER, member_epoch=0, subscribed_topic_names=("topic", "other")
    ),
    share_fetch(4, 1),
    share_acknowledge(),
)

FRAMES = tuple(map(request_frame, REQUESTS))


def hostile_frame(random: Random) -> bytes:
    """A frame of one of the requests above with one to three faults, or none of them."""
    frame = bytearray(random.choice(FRAMES))
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        frame = _with_fault(frame, random)
    return bytes(frame)


def _with_fault(frame: bytearray, random: Random) -> bytearray:
    place = random.randrange(len(frame) + 1)
    match random.randrange(7):
        case 0:
            return frame[:place]
        case 1 if place < len(frame):
            frame[place] ^= 1 << random.randrange(8)
        case 2:
            frame[place:place] = random.randbytes(random.randrange(20))
        case 3:
            frame[place : place + random.randrange(20)] = b""
        case 4:
            # The longest numbers: of an array with fixed lengths, of a text, and of either as a varint.
            frame[place : place + 4] = random.choice((b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xff\xff\xff\xff\x0f"))
        case 5:
            other = random.choice(FRAMES)
            return frame[:place] + other[random.randrange(len(other)) :]
        case 6:
            return frame[: random.choice((0, 4, 8, 14))] + random.randbytes(random.randrange(200))
    return frame
