"""Order by key inside a delivery: keys that wait for a record that is not finished. Pure.

Records come in the order of their offsets: acquired ones and, between them, those that are not finished and not
acquired (``AcquiredSpan.earlier``). The latter are not delivered; they hold back their key. An acquired record whose
key is held back is not entered, and waits as long as the record before it. A record that is neither accepted nor
rejected holds back its key as well:

    offset      10       11       12       13       14          10 is delayed for another 5 s
    key          a        b        a        b        c
                 |     released    |        |     accepted
    outcome    (not     by the    not      not
              acquired) handler  entered  entered
    waits                         5 s       -                   13 comes again with 11

Keys are equal if their bytes are. A record without a key has no order. A record that is no longer in the log (it was
compacted, or has expired) holds back nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType

FREE = -1
"""The wait of a key that waits for nothing."""

FINISHED = (int(AcknowledgeType.ACCEPT), int(AcknowledgeType.REJECT))
"""Answers that hold back nothing."""


@dataclass(slots=True)
class KeyOrder:
    """The keys that are held back in one delivery, or in one task of it."""

    _waits_ms: dict[tuple[TopicPartition, bytes], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether any key is held back."""
        return bool(self._waits_ms)

    def hold_back(self, at: TopicPartition, key: bytes | None, wait_ms: int = 0) -> None:
        """Hold back this key: a record of it will not be finished for at least ``wait_ms``; 0 if that is not known."""
        if key is not None:
            place = at, key
            self._waits_ms[place] = max(wait_ms, self._waits_ms.get(place, FREE))

    def wait_ms(self, at: TopicPartition, key: bytes | None) -> int:
        """Return how long a record of this key has to wait at least; FREE if it may be delivered now."""
        return self._waits_ms.get((at, key), FREE) if key is not None else FREE
