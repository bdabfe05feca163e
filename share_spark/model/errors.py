"""Errors, few, named by what is at fault. Each carries its Kafka error code and whether a retry can help ("Error
codes" of KIP-932). Expected faults of a request are response values (``ErrorCode``); exceptions are for the person
who runs the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's numbers for the errors this project answers with."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    GROUP_MAX_SIZE_REACHED = 81
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    SHARE_SESSION_LIMIT_REACHED = 133


class ShareError(Exception):
    """Base of all errors of this project. The message is one line that names the cause."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: bool = False


class ConfigError(ShareError):
    """The user's settings: an unknown key, a value out of range, a choice that is missing."""

    code = ErrorCode.INVALID_CONFIG


class TopicError(ShareError):
    """The topic log: the topic does not exist, was created again under another id, or cannot be reached."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicUnreachableError(TopicError):
    """The silence of the broker or the table (``what``) behind the topic log: no answer in time."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True

    def __init__(self, message: str, what: str = "broker") -> None:
        super().__init__(message)
        self.what = what


class HandlerError(ShareError):
    """A handler that broke its contract (import, length, type, unknown record). Not: it raised for a record."""

    code = ErrorCode.INVALID_REQUEST


class StateError(ShareError):
    """The state tables: not ours, of a newer version, damaged, or of another group."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


def no_such_group(group_id: str, place: str) -> StateError:
    """Make the error that the state in ``place`` has no such group; the beginning is Kafka's own wording."""
    return StateError(f"Group '{group_id}' does not exist: the state in {place} has none of that name.")


def no_such_topic(group_id: str, topic: str) -> ConfigError:
    """Make the error that the group has no such topic."""
    return ConfigError(f"group {group_id!r} has no topic {topic!r}")


def no_such_partition(group_id: str, topic: str, partition: int) -> ConfigError:
    """Make the error that the group has no such partition."""
    return ConfigError(f"group {group_id!r} has no partition {partition} of topic {topic!r}")


class FencedError(ShareError):
    """The claim of another engine on the group; this one must stop."""

    code = ErrorCode.FENCED_STATE_EPOCH


class DeadLetterError(ShareError):
    """The dead-letter topic or table: not there, not ours, or it cannot be read or written."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class SinkError(ShareError):
    """Rows that the table for output refused: its schema, missing rights, a full disk. No record is the cause."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class OutputUnknownError(SinkError):
    """Rows of which it cannot be found out whether the table for output has them; the next engine looks again."""

    retriable = True


class OutputLostError(ShareError):
    """Output rows with which executors died before a sink had read them: their delivery counts as lost."""

    retriable = True


class OutputRefusedError(OutputLostError):
    """Output of single records that the sink refuses, while all other output is there. ``errors``: by topic, partition
    and offset."""

    def __init__(self, errors: Mapping[tuple[str, int, int], str]) -> None:
        super().__init__(f"output of {len(errors)} records is refused: {next(iter(errors.values()))}")
        self.errors = errors


_OF_STORAGE = ("No space left on device", "Read-only file system", "Disk quota exceeded", "Input/output error")
"""The words of the operating system, which Java and Arrow repeat."""


def is_of_storage(text: str) -> bool:
    """Return whether an error says that a disk is full, or cannot be written.

    No setting mends that, and no record caused it.
    """
    return any(reason in text for reason in _OF_STORAGE)


class EnvironmentFault(ShareError):  # noqa: N818 - the fault is the machine's
    """The machine: no Java or the wrong one, a jar that cannot be had."""
