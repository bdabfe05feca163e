"""share_spark: Kafka's share groups (KIP-932) as an engine on PySpark Structured Streaming, its state in Delta tables.

The packages, from the ground up (imports go one way, a linter checks it):

    model        values: keys, offset ranges, requests, records, errors, settings
    partition    share-partition leader, pure: decide, evolve
    coordinator  share coordinator, pure: how durable state combines
    engine       the micro-batch and its ports
    spark        private API of Spark, Delta and the JVM, each with a fallback; session, jars
    delta        generic Delta: tables, commit files, transactions, journal
    state        the state log, the live state on the executors, the status table
    topics       topics in a Delta table, without a broker
    kafka        log ends, record ranges, dead letters on Kafka
    handlers     handlers as users write them, and their answers
    delivery     handlers are called inside Spark's workers
    output       output rows and dead letters, exactly once
    maintenance  compaction, retention, heartbeats
    audit        history, verify
    gateway      the share coordinator on Delta, for clients outside Spark
    testing      in-memory twins of the ports
    api          ShareGroup and its query
    cli          the command line

Public names are imported when first used: Python workers import this package for every fresh process, and need none
of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from share_spark.api.query import ShareGroupQuery
    from share_spark.api.share_group import ShareGroup
    from share_spark.audit.history import attempts, history
    from share_spark.handlers.acknowledgement import Ack
    from share_spark.handlers.handler import (
        Record,
        arrow_handler,
        frame_handler,
        pandas_handler,
        record_handler,
    )
    from share_spark.model.errors import ShareError
    from share_spark.spark.session import build_session
    from share_spark.state.state_view import state
    from share_spark.topics.topic_table import EmbeddedTopicLog

_HOME = {
    "Ack": "share_spark.handlers.acknowledgement",
    "EmbeddedTopicLog": "share_spark.topics.topic_table",
    "Record": "share_spark.handlers.handler",
    "ShareError": "share_spark.model.errors",
    "ShareGroup": "share_spark.api.share_group",
    "ShareGroupQuery": "share_spark.api.query",
    "arrow_handler": "share_spark.handlers.handler",
    "attempts": "share_spark.audit.history",
    "build_session": "share_spark.spark.session",
    "frame_handler": "share_spark.handlers.handler",
    "history": "share_spark.audit.history",
    "pandas_handler": "share_spark.handlers.handler",
    "record_handler": "share_spark.handlers.handler",
    "state": "share_spark.state.state_view",
}

__all__ = [
    "Ack",
    "EmbeddedTopicLog",
    "Record",
    "ShareError",
    "ShareGroup",
    "ShareGroupQuery",
    "arrow_handler",
    "attempts",
    "build_session",
    "frame_handler",
    "history",
    "pandas_handler",
    "record_handler",
    "state",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
