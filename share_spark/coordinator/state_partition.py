"""Which partition of the share-group state owns a key: the same arithmetic as Kafka's (R70, R71)."""

from __future__ import annotations

from share_spark.model.ids import SharePartitionKey

STATE_PARTITIONS = 50
"""``share.coordinator.state.topic.num.partitions`` by default (R69); another number sends keys elsewhere."""


def state_partition_of(key: SharePartitionKey, state_partitions: int = STATE_PARTITIONS) -> int:
    """0 to ``state_partitions`` - 1: the hash of ``group:topicId:partition``, the one text for both uses (O14)."""
    return _absolute(_java_hash(str(key))) % state_partitions


def _java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, wrapped to a signed 32-bit number."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8) + low) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _absolute(value: int) -> int:
    """Kafka's ``Utils.abs``: Java's smallest int, which has no positive counterpart, gives 0."""
    return 0 if value == -(1 << 31) else abs(value)
