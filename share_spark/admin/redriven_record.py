"""A dead letter as a record that is sent again: its present payload, its own headers, and headers that tell its origin
and its earlier deliveries. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from share_spark.admin.letters import Letter, microseconds
from share_spark.kafka.letter_headers import HEADER_PREFIX, Headers, Origin, origin_headers

REDRIVE_ID = "share_spark.redrive.id"
"""A header: the same each time that the same letter is sent with the same content, unless it was marked in between. A
consumer that has seen it has seen the record."""

DELIVERY_COUNT = "share_spark.redrive.delivery.count"
"""A header: how often the record was delivered before, under all its offsets."""

_ID_LENGTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivenRecord:
    """A record to send. ``partition``: None where the key decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def redriven_record(letter: Letter, to_topic: str | None = None) -> RedrivenRecord:
    """Return the record for the letter's own topic and partition, or for another topic, where its key decides."""
    return RedrivenRecord(
        topic=to_topic or letter.topic,
        partition=letter.partition if to_topic in (None, letter.topic) else None,
        key=letter.key,
        value=letter.value_to_send,
        headers=_headers(letter),
    )


def redrive_id(letter: Letter) -> str:
    """Return the id of a letter with its content after its last redrive. Nothing else is in it, so a repeated redrive
    that was not marked gives the same id."""
    content = hashlib.sha256()
    for part in (letter.key, letter.value_to_send, *(value for _, value in letter.headers)):
        content.update(b"-" if part is None else b"%d:" % len(part) + part)
    names = [name for name, _ in letter.headers]
    identity = json.dumps([*letter.identity, letter.redrive_id, names, content.hexdigest()])
    return hashlib.sha256(identity.encode()).hexdigest()[:_ID_LENGTH]


def _headers(letter: Letter) -> Headers:
    """Return the headers. Its own come first, without those of an earlier redrive: the new ones replace them."""
    timestamp_ms = 0 if letter.timestamp is None else microseconds(letter.timestamp) // 1_000
    origin = Origin(
        group_id=letter.group_id,
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        timestamp_ms=timestamp_ms,
        delivery_count=letter.delivery_count,
        message=letter.message,
    )
    added = [
        *origin_headers(origin),
        (REDRIVE_ID, redrive_id(letter).encode()),
        (DELIVERY_COUNT, str(delivered_before(letter) + letter.delivery_count).encode()),
    ]
    names = {name for name, _ in added}
    own = [one for one in letter.headers if one[0] not in names and not one[0].startswith(HEADER_PREFIX)]
    return [*own, *added]


def delivered_before(letter: Letter) -> int:
    """Return how often it was delivered under other offsets, before it was redriven to this one."""
    said = dict(letter.headers).get(DELIVERY_COUNT) or b""
    return int(said) if said.isdigit() else 0
