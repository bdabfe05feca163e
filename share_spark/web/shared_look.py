"""A look that takes long, shared by all who ask within a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Found = TypeVar("Found")

_SERVES_MS = 1_000


@dataclass(slots=True)
class SharedLook(Generic[Found]):
    """The last result of ``look``. Raises what ``look`` raises; then nothing is kept. ``clock``: milliseconds since the
    epoch. Not for several threads at a time."""

    look: Callable[[], Found]
    clock: Callable[[], int]
    _last: Found | None = None
    _looked_at_ms: int = 0

    def __call__(self) -> Found:
        """Return a result that is a second old at most."""
        now_ms = self.clock()
        if self._last is None or now_ms - self._looked_at_ms >= _SERVES_MS:
            self._last, self._looked_at_ms = self.look(), now_ms
        return self._last
