"""Producing to a real Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.chaos.world import KeyAndValue
from tests.kafka.test_kafka_topic_log import KafkaLab
from tests.support.topic_log_cases import Sent


class KafkaProducer:
    """See ``world.Producer``."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self._lab = KafkaLab(broker)

    def create(self, topic: str, partitions: int) -> None:
        self._lab.create(topic, partitions)

    def put(self, topic: str, records: Mapping[int, Sequence[KeyAndValue]]) -> None:
        sent = {at: [Sent(value.encode(), key=key) for key, value in some] for at, some in records.items()}
        self._lab.put(topic, sent)

    def ends(self, topic: str) -> Mapping[int, int]:
        return {at: end.end_offset for at, end in self._lab.log.log_ends(topic).items()}
