"""share_spark: Kafka's share groups (KIP-932) as an engine on PySpark Structured Streaming, its state in Delta tables.

The house, from the ground up (imports go one way, a linter checks it):

    model        values: keys, offset ranges, requests, records, errors, settings
    partition    share-partition leader, pure: decide, evolve
    coordinator  share coordinator, pure: combining of state batches
    engine       the micro-batch and its ports, with in-memory twins
    delta        edge: state log, live state on the executors, tables for people, embedded topics
    kafka        edge: log ends, record ranges, dead letters
    process      the public API: ShareGroup, handlers
    cli, session, jars   the command line, the one session builder, the jars

Public names are imported when first used: Python workers import this package for every fresh process, and need none
of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from share_spark.delta.history import attempts, history
    from share_spark.delta.state_view import state
    from share_spark.delta.topic_table import EmbeddedTopicLog
    from share_spark.model.errors import ShareError
    from share_spark.process.acknowledgement import Ack
    from share_spark.process.handlers import (
        Record,
        arrow_handler,
        frame_handler,
        pandas_handler,
        record_handler,
    )
    from share_spark.process.query import ShareGroupQuery
    from share_spark.process.share_group import ShareGroup
    from share_spark.session import build_session

_HOME = {
    "Ack": "share_spark.process.acknowledgement",
    "EmbeddedTopicLog": "share_spark.delta.topic_table",
    "Record": "share_spark.process.handlers",
    "ShareError": "share_spark.model.errors",
    "ShareGroup": "share_spark.process.share_group",
    "ShareGroupQuery": "share_spark.process.query",
    "arrow_handler": "share_spark.process.handlers",
    "attempts": "share_spark.delta.history",
    "build_session": "share_spark.session",
    "frame_handler": "share_spark.process.handlers",
    "history": "share_spark.delta.history",
    "pandas_handler": "share_spark.process.handlers",
    "record_handler": "share_spark.process.handlers",
    "state": "share_spark.delta.state_view",
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
