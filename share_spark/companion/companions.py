"""The companions of one delivery: one beside the driver, or one beside each executor of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from share_spark.companion.hand_overs import HandOvers
from share_spark.companion.link import Link
from share_spark.companion.messages import Limits
from share_spark.companion.pace import Pace
from share_spark.companion.shares import Calling, shares
from share_spark.engine.delivery_port import CallsLook, RunningCall
from share_spark.model.ids import TopicPartition

LOOK_AGAIN_S = 0.2
"""The time between two looks at a companion that was cut off."""


@dataclass(slots=True, kw_only=True, eq=False)
class Companion:
    """A companion with what it has. ``ledger``: its first one. ``is_leaving``: its executor has ended, and it takes no
    more records. ``is_cut_off``: its connection has ended, and it may still be there. ``entered``: records that were
    called, as it said. ``holds_places``: those of throttled calls, until it gets limits (``SetLimits``). ``taken``: its
    messages with answers; ``known``: those of which the answers were returned. ``returned``: hand-overs of which all
    answers were."""

    link: Link
    ledger: Path
    limits: Limits
    is_leaving: bool = False
    is_cut_off: bool = False
    hand_overs: HandOvers = field(default_factory=HandOvers)
    entered: int = 0
    pace: Pace = field(default_factory=Pace)
    has_failed: bool = False
    holds_places: bool = False
    taken: int = 0
    known: int = 0
    returned: tuple[int, ...] = ()

    @property
    def takes_records(self) -> bool:
        """Whether it takes records."""
        return not (self.is_leaving or self.is_cut_off)

    @property
    def calling(self) -> Calling:
        """The calls that it makes, at most: it reports them now and then."""
        told = self.link.calls_now
        return Calling(self.limits.most_calls, min(told.running if told is not None else 0, self.hand_overs.in_flight))


@dataclass(slots=True)
class Companions:
    """The companions that are not known to have ended. ``heard`` is notified of what comes from any of them."""

    heard: threading.Condition = field(default_factory=threading.Condition)
    _all: list[Companion] = field(default_factory=list)
    _is_woken: bool = False

    def __iter__(self) -> Iterator[Companion]:
        return iter([*self._all])

    def add(self, one: Companion) -> None:
        """Add a new one."""
        self._all.append(one)

    def remove(self, one: Companion) -> None:
        """Remove one that has ended."""
        self._all.remove(one)

    @property
    def taking(self) -> Sequence[Companion]:
        """Those that take records."""
        return [one for one in self._all if one.takes_records]

    @property
    def in_flight(self) -> int:
        """The number of offsets without an answer."""
        return sum(one.hand_overs.in_flight for one in self._all)

    def note_pace(self, now_s: float) -> None:
        """Note how many records each of them has called."""
        for one in self._all:
            one.pace.note(one.entered, now_s)

    def shares(self, most_calls: int) -> list[int]:
        """Return the shares of those that take records, if so many calls may run."""
        return shares(most_calls, [one.calling for one in self.taking], self._elsewhere)

    def free(self, most_calls: int) -> int:
        """Return how many of so many calls are left for companions that take records."""
        return max(0, most_calls - self._elsewhere)

    def wait(self, seconds: float) -> None:
        """Wait until there is something to take, or ``wake`` is called; at most so long."""
        if any(one.is_cut_off for one in self._all):
            seconds = min(seconds, LOOK_AGAIN_S)
        with self.heard:
            self.heard.wait_for(self._is_to_end_wait, max(0.0, seconds))
            self._is_woken = False

    def wake(self) -> None:
        """End the present ``wait``, or the next one if there is none. From any thread."""
        with self.heard:
            self._is_woken = True
            self.heard.notify_all()

    def end(self) -> None:
        """End all connections."""
        for one in self:
            one.link.end()

    def look(self, most_calls: int) -> CallsLook:
        """Return the calls as the companions have told them last, which they do twice a second. From any thread."""
        told = [now for one in self if (now := one.link.calls_now) is not None]
        running, waiting = sum(now.running for now in told), sum(now.waiting for now in told)
        oldest = max((call for now in told for call in now.oldest[:1]), key=lambda call: call[3], default=None)
        if oldest is None:
            return CallsLook(running, waiting, most_calls)
        topic, partition, offset, age_s = oldest
        return CallsLook(running, waiting, most_calls, RunningCall(TopicPartition(topic, partition), offset, age_s))

    def _is_to_end_wait(self) -> bool:
        return self._is_woken or any(one.link.has_news for one in self._all if not one.is_cut_off)

    @property
    def _elsewhere(self) -> int:
        """The most calls of those that take no records. They are unknown until it is known that they have ended."""
        others = [one for one in self._all if not one.takes_records]
        return sum(min(max(one.calling), one.hand_overs.in_flight) for one in others)
