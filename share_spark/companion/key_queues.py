"""The records that wait where they are delivered in order of their keys: of each key one is called at a time, by itself
or in a list with records of other keys.

    waiting     a@10   b@11   a@12   b@13   a@14
    ready       a@10   b@11
    behind             a: a@12, a@14     b: b@13

    a@10 is accepted    ->  a@12 is ready
    b@11 is released    ->  b@13 is held back: it comes again with b@11

The driver acquires more records before it knows all answers. It takes for granted that a record which it has handed
over comes before its successors. So what is behind a record that comes back stays held back until the driver acquires
with the knowledge of that answer:

    companion    b@11 released, b@13 held back     Answered 7
    driver                                                      HandOver (answers 6)    has b@15: held back as well
    driver                                         takes 7      HandOver (answers 7)    has b@11, b@13, b@15

What is before it does not: two records of a key that become free at different times would hold back each other for
ever, each time one is acquired before the answer for the other one is known.

``engine.key_order`` has the rule for records that were not handed over, and hold back others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from share_spark.companion.ledger import CallBlock
from share_spark.companion.reading import Handed, OffsetRun, ReadBatch
from share_spark.companion.waiting import HeldBack, Waiting, WaitingRecords
from share_spark.engine.key_order import FREE
from share_spark.model.ids import TopicPartition

_Place = tuple[TopicPartition, bytes]


@dataclass(slots=True)
class _Key:
    """A key with a record that is ready or is called (``head``), and those ``behind`` it. ``wait_ms``: how long these
    wait once that call has ended."""

    head: Waiting
    behind: deque[Waiting] = field(default_factory=deque)
    wait_ms: int = FREE


class KeyQueues(WaitingRecords):
    """The records that wait, in order of their keys. ``_held``: offsets of records that came back, what is behind them
    is held back until the driver knows the answers up to this message; ``_barred``: the same for all keys. ``_ended``:
    keys whose call has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[_Place, _Key] = {}
        self._held: dict[_Place, dict[int, int]] = {}
        self._barred = 0
        self._ended: list[_Place] = []

    def __len__(self) -> int:
        return len(self._records) + sum(len(key.behind) for key in self._keys.values())

    def add(self, handed: Handed, block: CallBlock, read: ReadBatch, now: float, sent: int) -> list[HeldBack]:
        """Add the records of a batch, and return those that are held back."""
        known = handed.message.answers_known
        self._forget_known(known)
        waits_ms = read.waits_ms or [FREE] * len(read.records)
        held = []
        for position, record in enumerate(read.records):
            one, wait_ms = Waiting(handed, block, position, record, now), waits_ms[position]
            place = _place(one)
            if place is None:
                self._records.append(one)
            elif wait_ms != FREE or self._is_held(place, record.offset) or known < self._barred:
                self._hold_behind(place, record.offset, sent + 1)
                held.append(HeldBack(one, max(wait_ms, 0)))
            elif place in self._keys:
                self._keys[place].behind.append(one)
            else:
                self._keys[place] = _Key(one)
                self._records.append(one)
        return held

    def ended(self, one: Waiting, *, is_finished: bool, delay_ms: int | None) -> None:
        """Note how the call of a record has ended; if that is said twice, the last time is valid."""
        place = _place(one)
        if place is not None:
            self._keys[place].wait_ms = FREE if is_finished else max(delay_ms or 0, 0)
            self._ended.append(place)

    def follow(self, sent: int) -> list[HeldBack]:
        """Let the successors of what has ended be called. Return those that are held back instead."""
        held = []
        ended, self._ended = self._ended, []
        for place in dict.fromkeys(ended):
            if self._keys[place].wait_ms == FREE:
                self._follow(place)
                continue
            key = self._keys.pop(place)
            self._hold_behind(place, key.head.record.offset, sent + bool(key.behind))
            held += [HeldBack(one, key.wait_ms) for one in key.behind]
        return held

    def bar(self, sent: int) -> None:
        """Hold back all keys of what was acquired without knowing the next answers."""
        self._barred = sent + 1

    def clear(self) -> Iterator[tuple[Handed, Iterator[OffsetRun]]]:
        """Take all; yield their offsets by hand-over and topic-partition."""
        for place in filter(None, [_place(one) for one in self._records]):
            self._records += self._keys.pop(place).behind
        for key in self._keys.values():
            self._records += key.behind
            key.behind.clear()
        yield from super().clear()

    def drop_forgotten(self) -> None:
        """Take those of hand-overs that were forgotten. The calls of these have no successors any more."""
        super().drop_forgotten()
        for place, key in [*self._keys.items()]:
            key.behind = deque(one for one in key.behind if not one.handed.is_forgotten)
            if key.head.handed.is_forgotten:
                self._follow(place)

    def _hold_behind(self, place: _Place, offset: int, number: int) -> None:
        self._held.setdefault(place, {})[offset] = number

    def _is_held(self, place: _Place, offset: int) -> bool:
        return min(self._held.get(place, ()), default=offset) < offset

    def _forget_known(self, known: int) -> None:
        """Forget what the driver knows: it holds back successors itself."""
        left = {
            place: {offset: number for offset, number in numbers.items() if number > known}
            for place, numbers in self._held.items()
        }
        self._held = {place: numbers for place, numbers in left.items() if numbers}

    def _follow(self, place: _Place) -> None:
        key = self._keys.pop(place)
        if key.behind:
            head = key.behind.popleft()
            if self.most > 1:  # it waits for others from now on
                head = head._replace(since=time.monotonic())
            self._keys[place] = _Key(head, key.behind)
            self._records.append(head)


def _place(one: Waiting) -> _Place | None:
    """Return where the record has its order; None: without a key it has none."""
    return None if one.record.key is None else (one.at, one.record.key)
