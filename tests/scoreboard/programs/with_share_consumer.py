"""Kafka's share group: ``confluent_kafka.ShareConsumer`` that writes into Delta, and then acknowledges.

The same program runs against a broker and against share_spark's gateway. Kafka 4.2 has no dead letters, so the consumer
writes the letter of a record whose last delivery has failed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from tests.scoreboard.programs.surroundings import GROUP, TOPIC, append, call, source
from tests.scoreboard.records import AT_A_TIME, LIMIT, OK


def answer(message: Message) -> AcknowledgeType:
    """Ask the service, and return what to acknowledge."""
    count = message.delivery_count() or 0
    if call(number_of(message), count) == OK:
        return AcknowledgeType.ACCEPT
    return AcknowledgeType.REJECT if count >= LIMIT else AcknowledgeType.RELEASE


def number_of(message: Message) -> int:
    """Return the number of its record."""
    return int(message.value() or b"")


def numbers_of(messages: list[Message], answers: list[AcknowledgeType], chosen: AcknowledgeType) -> list[int]:
    """Return the numbers of the records with this answer."""
    return [number_of(message) for message, said in zip(messages, answers, strict=True) if said is chosen]


def main() -> None:
    """Run until killed."""
    settings = {
        "bootstrap.servers": source(),
        "group.id": GROUP,
        "share.acknowledgement.mode": "explicit",
        "log_level": 2,  # without it the client says that its share consumer is a preview
    }
    with ShareConsumer(settings) as consumer, ThreadPoolExecutor(AT_A_TIME) as threads:
        consumer.subscribe([TOPIC])
        while True:
            messages = [message for message in consumer.poll(timeout=0.5) if message.error() is None]
            answers = list(threads.map(answer, messages))
            append("rows", numbers_of(messages, answers, AcknowledgeType.ACCEPT))
            append("letters", numbers_of(messages, answers, AcknowledgeType.REJECT))
            for message, said in zip(messages, answers, strict=True):
                consumer.acknowledge(message, said)
            if messages:
                consumer.commit_sync()


if __name__ == "__main__":
    main()
