"""All ports of an engine together."""

from __future__ import annotations

from dataclasses import dataclass

from share_spark.engine.pauses import Pauses
from share_spark.engine.ports import (
    Clock,
    CurrentConfig,
    DeadLetterSink,
    Delivery,
    OutputSink,
    PauseSource,
    ShareStateStore,
)
from share_spark.engine.topics import SubscribedTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world as one engine sees it."""

    topics: SubscribedTopics
    store: ShareStateStore
    delivery: Delivery
    dead_letters: DeadLetterSink
    clock: Clock
    config: CurrentConfig
    sink: OutputSink | None = None
    pauses: PauseSource = Pauses
