"""The number of calls at a time to a service that throttles: it is raised slowly while the service answers, and lowered
when it asks to wait. Pure.

    ramps    each success makes room for two more calls      throttled, or at the setting  ->  follows
    follows  a fiftieth more each second                     throttled  ->  a tenth to half less, by how much of it was

One decrease a round: the throttles of calls that began before the last decrease do not count again, as a service that
refuses one call refuses all that were under way. An engine begins with a ramp, as it knows nothing of the service.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

FIRST_CALLS = 16
"""The calls at a time of an engine that begins."""

_RAMP = 2
"""The calls that a success makes room for during the ramp: the number triples in the time of a call."""

_SHARE_PER_S, _LEAST_PER_S = 0.02, 0.2
"""The increase in a second: a share of the calls, and at least so many. A service of ten calls at a time is then asked
for one too many every few seconds."""

_LONGEST_S = 1.0
"""The most time between two micro-batches that counts as one without throttles."""

_LEAST_LEFT, _MOST_LEFT = 0.5, 0.9
"""The share of the calls that is left by a decrease."""


class CallAnswers(NamedTuple):
    """The answers of a delivery. ``throttled``: those of calls that began in the present round; ``others``: not
    throttled. ``is_used``: all calls that are allowed were in use, so their number was put to the test."""

    throttled: int
    others: int
    is_used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """The calls at a time. ``most``: the setting. ``calls``: how many the service seems to bear. ``good``: the
    answers of the present round, ``round_number``, that were not throttled. ``at_ms``: the time of the last answers."""

    most: int = FIRST_CALLS
    calls: float = FIRST_CALLS
    ramps: bool = True
    round_number: int = 0
    good: int = 0
    at_ms: int | None = None

    @property
    def most_calls(self) -> int:
        """The calls that may run now, at least 1."""
        return max(1, min(self.most, int(self.calls)))

    @property
    def most_soon(self) -> int:
        """The calls for which records are acquired: in the ramp more may run before the next are there."""
        return self.most if self.ramps else self.most_calls

    def under(self, most: int) -> Concurrency:
        """Return the value under this setting."""
        return self if most == self.most else replace(self, most=most, calls=min(self.calls, max(most, FIRST_CALLS)))

    def after(self, answers: CallAnswers, now_ms: int) -> Concurrency:
        """Return the value after a delivery."""
        good = self.good + answers.others
        if answers.throttled:
            left = good / (good + answers.throttled)
            before = min(self.calls, self.most)
            calls = max(1.0, min(before - 1, before * min(_MOST_LEFT, max(_LEAST_LEFT, left))))
            return replace(self, calls=calls, ramps=False, round_number=self.round_number + 1, good=0, at_ms=now_ms)
        calls = min(self.calls + self._gain(answers, now_ms), max(self.most, FIRST_CALLS))
        return replace(self, calls=calls, good=good, at_ms=now_ms)

    def _gain(self, answers: CallAnswers, now_ms: int) -> float:
        """Return how many more calls may run. A number that was not used says nothing of the service."""
        if not answers.is_used:
            return 0.0
        if self.ramps:
            return float(_RAMP * answers.others)
        passed_s = 0.0 if self.at_ms is None else min((now_ms - self.at_ms) / 1_000, _LONGEST_S)
        return passed_s * max(_LEAST_PER_S, _SHARE_PER_S * self.calls)
