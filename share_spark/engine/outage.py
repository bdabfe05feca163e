"""An outage: the brokers, or whatever else holds the topics, give no answer. It does not end an engine.

    reached         asked, and no answer                                            ->  an outage
    an outage       all that is asked in a micro-batch is answered, letters too     ->  reached

During an outage the engine commits what it knows, by the log ends that it saw last, and acquires nothing. With each
micro-batch it asks again. It ends by that only where ``outage.timeout.ms`` says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from share_spark.engine.ports import Clock, DeadLetterSink
from share_spark.engine.step import PartitionSummary
from share_spark.engine.topics import SubscribedTopics, begun
from share_spark.model.config import OffsetReset
from share_spark.model.errors import TopicUnreachableError
from share_spark.model.ids import LogEnds, SharePartitionKey

_log = logging.getLogger(__name__)

_FIRST_REMINDER_MS = 30_000
"""The log is told at the beginning, after so long, and then whenever it has lasted twice as long as the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """``since_ms``: from when on nothing has answered, by the clock. ``what``: does not answer. ``reason``: of the last
    try. ``reminder_ms``: how long it lasts when the log is told next."""

    since_ms: int
    what: str
    reason: str
    reminder_ms: int = 0

    def lasts_ms(self, now_ms: int) -> int:
        """So far."""
        return max(0, now_ms - self.since_ms)

    def text(self, now_ms: int) -> str:
        """For people, without the reason."""
        return f"{self.what} unreachable for {self.lasts_ms(now_ms) // 1_000} s"

    def is_to_be_told(self, now_ms: int) -> bool:
        """Has it lasted so long that the log says it (again)?"""
        return self.lasts_ms(now_ms) >= self.reminder_ms

    def told(self, now_ms: int) -> Outage:
        """The log has been told."""
        return replace(self, reminder_ms=max(_FIRST_REMINDER_MS, 2 * self.lasts_ms(now_ms)))


@dataclass(slots=True, kw_only=True)
class Reach:
    """What one engine asks its topics, and whether they answer. Mutable: an outage goes from one micro-batch to the
    next. ``limit_ms``: how long one may last, 0 for ever; then TopicUnreachableError is raised. ``_is_unknown``: the
    topics were not asked in this micro-batch, or gave no answer."""

    topics: SubscribedTopics
    letters: DeadLetterSink
    clock: Clock
    outage: Outage | None = None
    _is_unknown: bool = False

    def log_ends(self, limit_ms: int) -> Mapping[SharePartitionKey, LogEnds]:
        """At the begin of a micro-batch. In an outage those that were seen last. Raises TopicError, DeadLetterError."""
        self._is_unknown = False
        with self._riding_out(limit_ms):
            self.letters.check()
            self.topics.log_ends()
        return self.topics.last_ends

    def last_ends(self) -> Mapping[SharePartitionKey, LogEnds]:
        """The same for an engine that stops: in an outage it does not ask."""
        self._is_unknown = self.outage is not None
        if self.outage is None:
            with self._riding_out(0):
                self.topics.log_ends_or_last()
        return self.topics.last_ends

    def beginnings(
        self,
        summaries: Mapping[SharePartitionKey, PartitionSummary],
        ends: Mapping[SharePartitionKey, LogEnds],
        reset: OffsetReset,
        limit_ms: int,
    ) -> tuple[Mapping[SharePartitionKey, LogEnds], Mapping[SharePartitionKey, int]]:
        """(``ends``, where those begin that have not begun.) In an outage none begins, and ``ends`` are without them.
        This ends an outage if all that was asked in this micro-batch was answered."""
        found: Mapping[SharePartitionKey, int] = {}
        if not self._is_unknown:
            with self._riding_out(limit_ms):
                found = self.topics.initial_offsets(summaries, ends, reset, self.clock())
                self._settle()
        return (ends, found) if self.outage is None else (begun(summaries, ends), {})

    def lost(self, fault: TopicUnreachableError, since_ms: int, limit_ms: int) -> None:
        """No answer. ``since_ms``: from when on, if there is no outage yet."""
        self._is_unknown = True
        began = self.outage or Outage(since_ms=since_ms, what=fault.what, reason="")
        outage, now_ms = replace(began, reason=str(fault)), self.clock()
        if limit_ms and outage.lasts_ms(now_ms) >= limit_ms:
            self.outage = outage
            raise TopicUnreachableError(f"{outage.text(now_ms)}, as long as outage.timeout.ms allows: {fault}")
        if outage.is_to_be_told(now_ms):
            _log.warning("%s; it is tried again and again: %s", outage.text(now_ms), fault)
            outage = outage.told(now_ms)
        self.outage = outage

    def wait_for_letters(self) -> None:
        """Until they are written; not in an outage. Raises DeadLetterError."""
        if self.outage is None:
            self.letters.wait()
        elif not self.letters.is_settled():
            _log.warning("dead letters wait to be written, by the next run with a dead-letter target")

    @contextmanager
    def _riding_out(self, limit_ms: int) -> Iterator[None]:
        began_ms = self.clock()
        try:
            yield
        except TopicUnreachableError as fault:
            self.lost(fault, began_ms, limit_ms)

    def _settle(self) -> None:
        if self.outage is not None and self.letters.is_settled():
            _log.warning("%s answers again, after %s s", self.outage.what, self.outage.lasts_ms(self.clock()) // 1_000)
            self.outage = None
