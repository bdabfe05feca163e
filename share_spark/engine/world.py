"""The world as one engine sees it: its ports, and the time by which it decides."""

from __future__ import annotations

from dataclasses import dataclass

from share_spark.engine.client_asks import Clients
from share_spark.engine.delivery_port import Delivery
from share_spark.engine.pauses import Pauses
from share_spark.engine.ports import Clock, CurrentConfig, DeadLetterSink, OutputSink, PauseSource, ShareStateStore
from share_spark.engine.topics import SubscribedTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one engine."""

    topics: SubscribedTopics
    store: ShareStateStore
    delivery: Delivery
    dead_letters: DeadLetterSink
    clock: Clock
    config: CurrentConfig
    sink: OutputSink | None = None
    pauses: PauseSource = Pauses
    clients: Clients | None = None


@dataclass(slots=True)
class EngineTime:
    """The time by which an engine decides: it continues from one engine of a group to the next, and never goes back.
    ``now_ms``: milliseconds since the epoch, as of the last ``read``; ``clock_ms``: what the clock showed then.

    Clocks of machines differ, and may be set. A successor whose clock is an hour behind must neither end locks early
    nor wait for an hour: its time begins at the last time of the engine before, and then passes as its own clock does.
    """

    now_ms: int = 0
    clock_ms: int = 0

    def start(self, clock_ms: int, last_time_ms: int) -> None:
        """Begin. ``last_time_ms``: when the engine before decided its last micro-batch, 0 if there was none."""
        self.now_ms, self.clock_ms = max(clock_ms, last_time_ms), clock_ms

    def read(self, clock_ms: int) -> int:
        """Add the time since the last call, and return the sum. A clock that was set back adds nothing."""
        self.now_ms += max(0, clock_ms - self.clock_ms)
        self.clock_ms = clock_ms
        return self.now_ms
