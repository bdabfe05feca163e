"""The age of the oldest unfinished record of a share-partition, as far as it can be seen from outside.

The timestamps of records are in the topic log, and to read them would cost more than a micro-batch. So the ends of the
logs are noted whenever somebody looks: a record is as old as the first look that saw the log end above it. That is too
young by at most the time between two looks, and for records that were there before the engine began, by more.

    marks       (t1, 100)  (t2, 140)  (t3, 200)        log end at each look
    SPSO                120                            the record at 120 was first seen at t2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.model.ids import SharePartitionKey

MOST_MARKS = 64
"""The marks per share-partition. Beyond that every other one is dropped, which makes an age at most one look's gap
younger."""


class Mark(NamedTuple):
    """The end of a log, ``end_offset`` (exclusive), as of ``at_ms``."""

    at_ms: int
    end_offset: int


class Front(NamedTuple):
    """The front of a share-partition: the first offset that may be unfinished, and the end of its log (exclusive)."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LogEndMarks:
    """Marks by share-partition, ascending; of each the first is the earliest one above its SPSO."""

    marks: Mapping[SharePartitionKey, tuple[Mark, ...]] = field(default_factory=dict)

    def looked(self, fronts: Iterable[tuple[SharePartitionKey, Front]], now_ms: int) -> LogEndMarks:
        """Return marks with the fronts of now, without share-partitions that are worked off."""
        found = {
            key: _with_mark(self.marks.get(key, ()), front, now_ms)
            for key, front in fronts
            if front.end_offset > front.start_offset
        }
        return LogEndMarks(found)

    def age_ms(self, key: SharePartitionKey, now_ms: int) -> int:
        """Return the time since the oldest unfinished record was seen first; 0 if there is none."""
        marks = self.marks.get(key, ())
        return max(0, now_ms - marks[0].at_ms) if marks else 0


def _with_mark(marks: tuple[Mark, ...], front: Front, now_ms: int) -> tuple[Mark, ...]:
    kept = tuple(mark for mark in marks if mark.end_offset > front.start_offset)
    if kept and kept[-1].end_offset >= front.end_offset:
        return kept
    if len(kept) >= MOST_MARKS:
        kept = (kept[0], *kept[2::2])
    return (*kept, Mark(now_ms, front.end_offset))
