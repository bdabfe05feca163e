"""Requests to a Kafka broker, each answered in bounded time or with one clear error.

A thin layer over librdkafka's AdminClient: it knows which errors are transient (a leader is being elected, a topic was
just created) and which are not, and raises this project's errors for the latter. It does not interpret the answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._topic import TopicDescription as KafkaTopicDescription

from share_spark.kafka.options import KafkaOptions
from share_spark.model.errors import ConfigError, TopicError, TopicUnreachableError

EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_CLIENT_LOG = logging.getLogger(f"{__name__}.librdkafka")
_CLIENT_LOG.setLevel(logging.CRITICAL)
"""librdkafka logs every failed attempt to connect; our error has it once. Lower the level to see all of them."""

_RETRY_PAUSE_S = 0.1

_CHUNK = 500
"""The number of partitions per request: librdkafka's time for one grows with the square of their number (10,000
partitions at once 1.0 s, in chunks 0.25 s)."""

_TRANSIENT = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._NOENT,
    )
)
"""Answers of a running broker while a partition's leader changes. ``_NOENT``: librdkafka knows no leader."""

_NOT_REACHED = frozenset(
    (
        *_TRANSIENT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
    )
)

_REFUSED = frozenset((KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED))
"""Errors after which another try would not help."""

_LOOK_S, _GRACE_S = 0.2, 1.0
"""The time between two looks at whether to stop, and the time for which an answer is waited for after it."""

_REASONS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "does not exist",
    KafkaError._UNKNOWN_TOPIC: "does not exist",
    KafkaError._UNKNOWN_PARTITION: "does not have that partition",
    KafkaError.TOPIC_EXCEPTION: "is not a valid topic name",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "is not open to this user",
}

_T = TypeVar("_T")


class BrokerAdmin:
    """One long-lived admin client. Safe to use from several threads, as librdkafka is."""

    def __init__(self, options: KafkaOptions, request_timeout_ms: int) -> None:
        self._options = options
        self._servers = options.bootstrap_servers
        self._timeout_s = request_timeout_ms / 1000
        self._last_error = ""
        self._is_refused = False
        self._stop = threading.Event()
        config: dict[str, Any] = {**options.librdkafka(), "error_cb": self._note_error}
        try:
            self._client = AdminClient(config, logger=_CLIENT_LOG)
        except KafkaException as exception:
            raise ConfigError(f"Kafka options: {self._reason(exception.args[0].str())}") from None

    def stop_waiting(self) -> None:
        """Let threads that wait for an answer wait a second longer at most. Any thread may call it."""
        self._stop.set()

    def describe(self, topic: str) -> KafkaTopicDescription:
        """Return the topic with its id and partitions. Raises TopicError, TopicUnreachableError."""

        def ask(timeout_s: float) -> KafkaTopicDescription:
            names = TopicCollection([topic])
            answers = self._client.describe_topics(names, request_timeout=timeout_s)
            description: KafkaTopicDescription = self._result(answers[topic], time.monotonic() + timeout_s + 1)
            return description

        return self._ask(topic, ask)

    def offsets(
        self, topic: str, partitions: Iterable[int], specs: Iterable[OffsetSpec], *, committed: bool
    ) -> list[dict[int, int]]:
        """Return offsets per partition, for each of ``specs``; -1 where a timestamp matches none.

        All requests are in flight at once. ``committed``: the latest offset is the last stable one. Raises TopicError,
        TopicUnreachableError.
        """
        places = [TopicPartition(topic, partition) for partition in partitions]
        chunks = [places[i : i + _CHUNK] for i in range(0, len(places), _CHUNK)]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask(timeout_s: float) -> list[dict[int, int]]:
            deadline = time.monotonic() + timeout_s + 1
            how = {"isolation_level": level, "request_timeout": timeout_s}
            answers = [
                [self._client.list_offsets(dict.fromkeys(chunk, spec), **how) for chunk in chunks] for spec in specs
            ]
            return [self._offsets(of_spec, deadline) for of_spec in answers]

        return self._ask(topic, ask)

    def describe_all(self) -> list[KafkaTopicDescription]:
        """Return all topics that are not the cluster's own, in two requests. Raises TopicError,
        TopicUnreachableError."""

        def ask(timeout_s: float) -> list[KafkaTopicDescription]:
            deadline = time.monotonic() + timeout_s + 1
            names = [name for name in self._client.list_topics(timeout=timeout_s).topics if not name.startswith("__")]
            if not names:
                return []
            answers = self._client.describe_topics(TopicCollection(sorted(names)), request_timeout=timeout_s)
            return [found for answer in answers.values() if (found := self._unless_deleted(answer, deadline))]

        return self._ask("", ask)

    def _unless_deleted(self, answer: Future[Any], deadline: float) -> KafkaTopicDescription | None:
        try:
            found: KafkaTopicDescription = self._result(answer, deadline)
        except KafkaException as exception:
            if exception.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        return found

    def brokers(self) -> list[tuple[int, str, int]]:
        """Return number, host and port of each broker. Raises TopicUnreachableError."""
        found = self._ask("", lambda timeout_s: self._client.list_topics(timeout=timeout_s).brokers.values())
        return sorted((one.id, str(one.host), one.port) for one in found)

    def broker_setting(self, broker: int, name: str) -> str | None:
        """Return a setting of a broker, None if it has no such setting. Raises TopicUnreachableError."""
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        found = self._ask(
            "",
            lambda timeout_s: self._client.describe_configs([resource], request_timeout=timeout_s)[resource].result(
                timeout_s + 1
            ),
        )
        return found[name].value if name in found else None

    def _ask(self, topic: str, ask: Callable[[float], _T]) -> _T:
        """Repeat ``ask`` while the broker answers with a transient error, within the time limit."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._client.poll(0)  # runs the error callback: without a poll ``_last_error`` would stay empty
            try:
                answer = ask(max(deadline - time.monotonic(), _RETRY_PAUSE_S))
                self._is_refused = False
                return answer
            except FutureTimeoutError:
                raise self._unreachable("") from None
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if (
                    error.code() not in _TRANSIENT
                    or self._stop.is_set()
                    or time.monotonic() + _RETRY_PAUSE_S > deadline
                ):
                    raise self._translated(topic, error) from None
            time.sleep(_RETRY_PAUSE_S)

    def _translated(self, topic: str, error: KafkaError) -> TopicError:
        self._is_refused |= error.code() in _REFUSED
        if error.code() in _NOT_REACHED | _REFUSED:
            return self._unreachable(error.str())
        reason = _REASONS.get(error.code(), f"cannot be read: {self._reason(error.str())}")
        return TopicError(f"topic {topic!r} {reason} (Kafka at {self._servers})")

    def _unreachable(self, reason: str) -> TopicError:
        """Return a TopicUnreachableError, or a TopicError if the broker has refused the login."""
        self._client.poll(0)
        # The callback has the reason (connection refused, authentication); the future only has a timeout.
        reason = self._reason(self._last_error or reason)
        error = TopicError if self._is_refused else TopicUnreachableError
        return error(
            f"Kafka at {self._servers} gave no answer within {self._timeout_s:g} s{f' ({reason})' if reason else ''}"
        )

    def _offsets(self, answers: Iterable[Mapping[TopicPartition, Future[Any]]], deadline: float) -> dict[int, int]:
        found = {
            place.partition: self._result(future, deadline).offset
            for answer in answers
            for place, future in answer.items()
        }
        if OFFSET_INVALID in found.values():
            # librdkafka's result, without an error, for a partition whose leader did not answer in time.
            raise KafkaException(KafkaError(KafkaError._NOENT, "no answer from a partition's leader"))
        return found

    def _result(self, future: Future[Any], deadline: float) -> Any:
        """Wait for an answer. Raises FutureTimeoutError past the deadline (of ``time.monotonic``), or once
        ``stop_waiting`` was called."""
        while not self._stop.is_set() and time.monotonic() < deadline:
            with suppress(FutureTimeoutError):
                return future.result(_LOOK_S)
        return future.result(min(_GRACE_S, max(deadline - time.monotonic(), 0)))

    def _reason(self, text: str) -> str:
        return _one_line(self._options.without_secrets(text))

    def _note_error(self, error: KafkaError) -> None:
        # Reported after the errors of the single brokers, which say more.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str()
            self._is_refused = error.code() in _REFUSED


def topic_id_text(topic_id: Uuid | None) -> str | None:
    """Return the id as Kafka's Java tools print it: 22 characters of URL-safe base64.

    None for brokers that have no topic ids (before 2.8). librdkafka's own text has ``+`` and ``/``.
    """
    text = str(topic_id or "").replace("+", "-").replace("/", "_")
    return text if text.strip("A") else None


def at_timestamp(timestamp_ms: int) -> OffsetSpec:
    """Return the spec of the first offset stamped at or after ``timestamp_ms``."""
    spec: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
    return spec


def _one_line(text: str) -> str:
    return " ".join(text.split())
