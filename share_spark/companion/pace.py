"""The pace of a companion: how many records it has called lately, and so how many should wait ahead.

Between two hand-overs the engine commits, and Spark may take its time between two triggers. Short calls would end
meanwhile, and leave the companion without records, if only as many waited ahead as can be called at a time:

    4 calls of 20 ms at a time, 8 records in flight    ■■··········■■··········■■          a hand-over in 0.1 s
    as many as were called in the last second          ■■■■■■■■■■■■■■■■■■■■■■■■■■
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_WINDOW_S = 1.0
_LEAST_LOOKS = 2
"""The calls of the last second count, and at least those since the look before the last one: commits may be slow. So
the number of records grows until the companion is never without them."""


@dataclass(slots=True)
class Pace:
    """Looks at the number of records that were called, as (time, number)."""

    _looks: deque[tuple[float, int]] = field(default_factory=lambda: deque([(float("-inf"), 0)]))

    def note(self, called: int, now_s: float) -> None:
        """Note how many were called until now."""
        self._looks.append((now_s, called))
        while len(self._looks) > _LEAST_LOOKS + 1 and self._looks[1][0] <= now_s - _WINDOW_S:
            self._looks.popleft()

    @property
    def recent(self) -> int:
        """The records that were called lately."""
        return self._looks[-1][1] - self._looks[0][1]
