"""An outage: the brokers, or another place of the topics, do not answer. It does not end an engine.

    reached         a request gets no answer                                        ->  an outage
    an outage       all requests of a micro-batch are answered, letters too         ->  reached

During an outage the engine commits what it knows, by the log ends that it saw last, and acquires nothing. Each
micro-batch tries again. An outage ends the engine only if ``outage.timeout.ms`` says so.
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
"""The time to the first reminder in the engine's log. Each later one comes after twice the time so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An outage. ``since_ms``: when it began, by the clock. ``what``: what does not answer. ``reason``: the reason of
    the last try. ``reminder_ms``: its duration at the next reminder in the engine's log."""

    since_ms: int
    what: str
    reason: str
    reminder_ms: int = 0

    def lasts_ms(self, now_ms: int) -> int:
        """Return how long it has lasted."""
        return max(0, now_ms - self.since_ms)

    def text(self, now_ms: int) -> str:
        """Return a text for people, without the reason."""
        return f"{self.what} unreachable for {self.lasts_ms(now_ms) // 1_000} s"

    def is_to_be_told(self, now_ms: int) -> bool:
        """Return whether it is time to log it (again)."""
        return self.lasts_ms(now_ms) >= self.reminder_ms

    def told(self, now_ms: int) -> Outage:
        """Return the outage after it was logged."""
        return replace(self, reminder_ms=max(_FIRST_REMINDER_MS, 2 * self.lasts_ms(now_ms)))


@dataclass(slots=True, kw_only=True)
class Reach:
    """The requests of one engine to its topics, and whether they are answered. Mutable: an outage lasts for several
    micro-batches. ``limit_ms``: the longest one, 0 for no limit; then TopicUnreachableError is raised. ``_is_unknown``:
    the topics were not asked in this micro-batch, or gave no answer."""

    topics: SubscribedTopics
    letters: DeadLetterSink
    clock: Clock
    outage: Outage | None = None
    _is_unknown: bool = False

    def log_ends(self, limit_ms: int) -> Mapping[SharePartitionKey, LogEnds]:
        """Return the log ends, in an outage the last known ones. Raises TopicError, DeadLetterError."""
        self._is_unknown = False
        with self._riding_out(limit_ms):
            self.letters.check()
            self.topics.log_ends()
        return self.topics.last_ends

    def last_ends(self) -> Mapping[SharePartitionKey, LogEnds]:
        """Return the log ends for an engine that stops: in an outage it does not ask."""
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
        """Return (``ends``, initial offsets of new share-partitions). In an outage no share-partition begins, and
        ``ends`` is without new ones. This ends an outage if all requests of this micro-batch were answered."""
        found: Mapping[SharePartitionKey, int] = {}
        if not self._is_unknown:
            with self._riding_out(limit_ms):
                found = self.topics.initial_offsets(summaries, ends, reset, self.clock())
                self._settle()
        return (ends, found) if self.outage is None else (begun(summaries, ends), {})

    def lost(self, fault: TopicUnreachableError, since_ms: int, limit_ms: int) -> None:
        """Note that there is no answer. ``since_ms``: the start of the outage, if this is a new one."""
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
        """Wait until dead letters are written, but not in an outage. Raises DeadLetterError."""
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
