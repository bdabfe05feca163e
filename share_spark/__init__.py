"""share_spark: Kafka's share groups (KIP-932) as an engine on PySpark Structured Streaming, its state in Delta tables.

What to import, by task:

    run a share group     ShareGroup, ShareGroupQuery, MicroBatchProgress, build_session, Tls
    write a handler       Record, Ack, record_handler, list_handler, arrow_handler, pandas_handler, frame_handler
    topics without Kafka  EmbeddedTopicLog, Message
    read the state        read_state, record_history, record_attempts
    look at groups        ShareGroupAdmin, GroupListing, PartitionOffsets, GroupMember, ConfigEntry, RecordHistory,
                          RecordEvent
    dead letters          DeadLetters, LetterFilter, Letter, LettersByError, LetterCount
    send them again       KafkaTopics, TableTopics, RedrivePlan, RedriveProgress, RedriveReport
    keep it in order      verify, compact, CompactionOrder, VerifyReport, CompactionReport
    catch errors          ShareError, and below it ConfigError, HandlerError, TopicError, TopicUnreachableError,
                          StateError, FencedError, SinkError, DeadLetterError, EnvironmentFault

The packages, from the ground up (imports go one way, a linter checks it):

    model        values: keys, offset ranges, requests, records, errors, settings
    partition    share-partition leader, pure: decide, evolve
    coordinator  share coordinator, pure: how durable state combines
    engine       the micro-batch and its ports
    spark        private API of Spark, Delta and the JVM, each with a fallback; session, jars
    delta        generic Delta: tables, commit files, transactions, journal
    state        the state log, the live state, the status table
    topics       topics in a Delta table, without a broker
    kafka        log ends, record ranges, dead letters on Kafka
    metrics      what Prometheus scrapes from a running engine
    handlers     handlers as users write them, and their answers
    delivery     handlers are called inside Spark's workers
    output       output rows and dead letters, exactly once
    maintenance  compaction, retention, heartbeats, changes of idle groups
    audit        history, verify
    admin        share groups as Kafka's tools show them, and dead letters, without Spark
    web          share groups as a page, in a file or served live
    testing      a test kit for handlers, without Spark
    api          ShareGroup and its query
    cli          the command line

Public names are imported when first used: Python workers import this package for every fresh process, and need none
of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from share_spark.admin.dead_letters import DeadLetters, LetterCount
    from share_spark.admin.group_details import GroupListing, GroupMember, PartitionOffsets
    from share_spark.admin.letters import Letter, LetterFilter
    from share_spark.admin.letters_by_error import LettersByError
    from share_spark.admin.redrive import RedrivePlan, RedriveProgress, RedriveReport
    from share_spark.admin.redrive_targets import KafkaTopics, TableTopics
    from share_spark.admin.share_group_admin import ShareGroupAdmin
    from share_spark.api.query import ShareGroupQuery
    from share_spark.api.share_group import ShareGroup
    from share_spark.audit.history import record_attempts, record_history
    from share_spark.audit.record_events import RecordEvent, RecordHistory
    from share_spark.audit.verify import VerifyReport, verify
    from share_spark.engine.progress import MicroBatchProgress
    from share_spark.gateway.tls import Tls
    from share_spark.handlers.acknowledgement import Ack
    from share_spark.handlers.handler import (
        Record,
        arrow_handler,
        frame_handler,
        list_handler,
        pandas_handler,
        record_handler,
    )
    from share_spark.maintenance.compaction import CompactionReport, compact
    from share_spark.maintenance.compaction_order import CompactionOrder
    from share_spark.model.dynamic_config import ConfigEntry
    from share_spark.model.errors import (
        ConfigError,
        DeadLetterError,
        EnvironmentFault,
        FencedError,
        HandlerError,
        ShareError,
        SinkError,
        StateError,
        TopicError,
        TopicUnreachableError,
    )
    from share_spark.spark.session import build_session
    from share_spark.state.state_view import read_state
    from share_spark.topics.topic_producer import Message
    from share_spark.topics.topic_table import EmbeddedTopicLog

_MODULES = {
    "admin.dead_letters": ("DeadLetters", "LetterCount"),
    "admin.letters": ("Letter", "LetterFilter"),
    "admin.letters_by_error": ("LettersByError",),
    "admin.redrive": ("RedrivePlan", "RedriveProgress", "RedriveReport"),
    "admin.redrive_targets": ("KafkaTopics", "TableTopics"),
    "admin.group_details": ("GroupListing", "GroupMember", "PartitionOffsets"),
    "admin.share_group_admin": ("ShareGroupAdmin",),
    "api.query": ("ShareGroupQuery",),
    "api.share_group": ("ShareGroup",),
    "audit.history": ("record_attempts", "record_history"),
    "audit.record_events": ("RecordEvent", "RecordHistory"),
    "audit.verify": ("VerifyReport", "verify"),
    "engine.progress": ("MicroBatchProgress",),
    "gateway.tls": ("Tls",),
    "handlers.acknowledgement": ("Ack",),
    "handlers.handler": (
        "Record",
        "arrow_handler",
        "frame_handler",
        "list_handler",
        "pandas_handler",
        "record_handler",
    ),
    "maintenance.compaction": ("CompactionReport", "compact"),
    "maintenance.compaction_order": ("CompactionOrder",),
    "model.dynamic_config": ("ConfigEntry",),
    "model.errors": (
        *("ConfigError", "DeadLetterError", "EnvironmentFault", "FencedError", "HandlerError", "ShareError"),
        *("SinkError", "StateError", "TopicError", "TopicUnreachableError"),
    ),
    "spark.session": ("build_session",),
    "state.state_view": ("read_state",),
    "topics.topic_producer": ("Message",),
    "topics.topic_table": ("EmbeddedTopicLog",),
}
_MODULE_OF = {name: f"share_spark.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "Ack",
    "CompactionOrder",
    "CompactionReport",
    "ConfigEntry",
    "ConfigError",
    "DeadLetterError",
    "DeadLetters",
    "EmbeddedTopicLog",
    "EnvironmentFault",
    "FencedError",
    "GroupListing",
    "GroupMember",
    "HandlerError",
    "KafkaTopics",
    "Letter",
    "LetterCount",
    "LetterFilter",
    "LettersByError",
    "Message",
    "MicroBatchProgress",
    "PartitionOffsets",
    "Record",
    "RecordEvent",
    "RecordHistory",
    "RedrivePlan",
    "RedriveProgress",
    "RedriveReport",
    "ShareError",
    "ShareGroup",
    "ShareGroupAdmin",
    "ShareGroupQuery",
    "SinkError",
    "StateError",
    "TableTopics",
    "Tls",
    "TopicError",
    "TopicUnreachableError",
    "VerifyReport",
    "arrow_handler",
    "build_session",
    "compact",
    "frame_handler",
    "list_handler",
    "pandas_handler",
    "read_state",
    "record_attempts",
    "record_handler",
    "record_history",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("share_spark")  # 20 ms in each worker otherwise
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names too, although they are not imported yet."""
    return sorted({*globals(), *__all__})
