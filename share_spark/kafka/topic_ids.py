"""Topic ids between messages of Kafka's protocol and the text by which Kafka's tools, and all else here, know them."""

from __future__ import annotations

import base64
from uuid import UUID

NO_TOPIC_ID = 22 * "A"
"""The zero id, of no topic: what brokers without topic ids (before Kafka 2.8) say."""


def uuid_of(topic_id: str) -> UUID:
    """Return the topic id as it is on the wire; ours is its text, as Kafka's tools print it."""
    return UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))


def topic_id_of(wire_id: UUID | None) -> str:
    """Undo ``uuid_of``. None is the zero id, which no topic has."""
    content = bytes(16) if wire_id is None else wire_id.bytes
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
