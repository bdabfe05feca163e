"""The number of calls at a time, after a companion process was killed while no record's step ran.

Such a death is nobody's fault, or the fault of all: they may have needed too much memory together. So half as many run
at a time, down to one, until that has gone well for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

_CALM_S = 60.0
"""The time without such a death after which twice as many calls may run."""


@dataclass(slots=True)
class CallsAtATime:
    """A bound beside the setting. ``bound``: None if there is none."""

    bound: int | None = None
    _since_s: float = 0.0

    def of(self, most_calls: int, now_s: float) -> int:
        """Return how many calls may run, if ``most_calls`` are set."""
        bound = self.bound
        if bound is None or bound >= most_calls:  # it is kept: more calls may be allowed again soon
            return most_calls
        if now_s >= self._since_s + _CALM_S:
            self.bound, self._since_s = 2 * bound, now_s
        return min(most_calls, self.bound or most_calls)

    def killed(self, calls: int, now_s: float) -> None:
        """Halve the number: a process that was allowed so many ``calls`` was killed from outside."""
        self.bound, self._since_s = max(1, calls // 2), now_s
