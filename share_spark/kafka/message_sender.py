"""Messages to Kafka topics: sent by an idempotent producer, with the outcome of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import ConfigError

_CLIENT_LOG = logging.getLogger(f"{__name__}.librdkafka")
_CLIENT_LOG.setLevel(logging.CRITICAL)
"""The log of the client, silent: we report a message's error once."""

_LARGEST_MESSAGE = "1000000000"
"""The limit of librdkafka. Its default would refuse messages that the topic takes; the broker's limit counts."""

_ANY_PARTITION = -1
_POLL_S = 1.0

OF_ONE_MESSAGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError._UNKNOWN_PARTITION))
"""The errors of a single message. A broker then refuses all of a request: its messages are sent once more, one by
one."""


class KafkaMessage(NamedTuple):
    """A message to send. ``partition``: None where the key decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Outcomes(NamedTuple):
    """The outcomes of messages, by their places among those sent. ``refused``: the errors of single messages.
    ``fault``: why others were not sent, in one line without secrets; None if all others were."""

    delivered: Sequence[int]
    refused: dict[int, str]
    fault: str | None = None


@dataclass(slots=True)
class MessageSender:
    """A producer that partitions as Java's does, in order, and writes each message once during its life.
    ``request_timeout_ms``: the time after which a message counts as not sent."""

    options: KafkaOptions
    request_timeout_ms: int = 30_000
    _producer: Producer | None = field(default=None, repr=False)

    def send(self, messages: Sequence[KafkaMessage]) -> Outcomes:
        """Send the messages, and wait until their outcomes are known. Raises ConfigError: the options."""
        fates = self._fates(messages, range(len(messages)))
        alone = [at for at, error in fates.items() if error is not None and error.code() in OF_ONE_MESSAGE]
        for at in alone if len(alone) > 1 else ():
            fates |= self._fates(messages, [at])
        delivered = [at for at, error in sorted(fates.items()) if error is None]
        errors = {at: error for at, error in fates.items() if error is not None}
        refused = {at: self._text(error) for at, error in errors.items() if error.code() in OF_ONE_MESSAGE}
        if len(delivered) + len(refused) == len(messages):
            return Outcomes(delivered, refused)
        others = [self._text(error) for at, error in errors.items() if at not in refused]
        return Outcomes(delivered, refused, others[0] if others else "no answer in time")

    def _text(self, error: KafkaError) -> str:
        return self.options.without_secrets(error.str())

    def _fates(self, messages: Sequence[KafkaMessage], places: Iterable[int]) -> dict[int, KafkaError | None]:
        """Return the error by place, None for a message in its topic. Unknown outcomes are left out."""
        producer = self._producer = self._producer or self._connected()
        fates: dict[int, KafkaError | None] = {}
        for at in places:
            try:
                _produce(producer, messages[at], partial(_note, fates, at))
            except KafkaException as fault:
                fates[at] = fault.args[0]
        producer.flush(self.request_timeout_ms / 1_000 + 1)
        return dict(fates)

    def _connected(self) -> Producer:
        config: dict[str, Any] = {
            **self.options.librdkafka(),
            "enable.idempotence": True,
            "message.max.bytes": _LARGEST_MESSAGE,
            "message.timeout.ms": self.request_timeout_ms,
            "partitioner": "murmur2_random",
        }
        try:
            return Producer(config, logger=_CLIENT_LOG)
        except KafkaException as fault:
            raise ConfigError(f"Kafka options: {self.options.without_secrets(fault.args[0].str())}") from None


def _produce(producer: Producer, message: KafkaMessage, note: Callable[..., None]) -> None:
    partition = _ANY_PARTITION if message.partition is None else message.partition
    headers: list[tuple[str, str | bytes | None]] = list(message.headers)
    while True:
        try:
            producer.produce(message.topic, message.value, message.key, partition, on_delivery=note, headers=headers)
            return
        except BufferError:  # its queue is full
            producer.poll(_POLL_S)


def _note(fates: dict[int, KafkaError | None], at: int, error: KafkaError | None, _message: object) -> None:
    fates[at] = error
