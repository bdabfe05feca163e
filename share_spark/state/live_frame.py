"""The live state of a group as a cached frame on the executors.

Its lineage is cut at every micro-batch (a local checkpoint, the one before unpersisted), so a lost executor makes it
unreadable; it is then rebuilt from the log inside the same micro-batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from share_spark.spark.checkpointed_frame import unpersist
from share_spark.spark.errors import is_lost_block
from share_spark.state.buckets import FRAME_COLUMNS, HEADER, LIVE_COLUMNS, OUTCOME, STATE, Advance
from share_spark.state.loading import payloads_in
from share_spark.state.state_view import NOT_LOADED, LiveState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

_REBUILD_ATTEMPTS = 3


@dataclass(slots=True)
class LiveFrame:
    """``state``: as of the last micro-batch; its frame is None before the first load, and once it was lost."""

    state: LiveState = NOT_LOADED
    _lent: DataFrame | None = None
    _lending: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, function: Advance, rebuild: Callable[[], object]) -> tuple[DataFrame, list[bytes]]:
        """The frame that ``function`` makes of this one, and its outcomes. ``rebuild`` adopts the frame that the log
        gives."""
        for attempt in range(1, _REBUILD_ATTEMPTS + 1):
            if self.state.frame is None:
                rebuild()
            assert self.state.frame is not None
            live = self.state.frame.where(f"row IN ({HEADER}, {STATE})").selectExpr(*LIVE_COLUMNS)
            tentative = live.mapInArrow(function, FRAME_COLUMNS).localCheckpoint(eager=False)
            try:
                return tentative, payloads_in(tentative, OUTCOME)
            except Exception as fault:
                if not is_lost_block(fault) or attempt == _REBUILD_ATTEMPTS:
                    raise
                _log.warning("an executor took part of the live state with it; rebuilding it from the log")
                self.state = self.state._replace(frame=None)
        raise AssertionError("unreachable")

    def adopt(self, state: LiveState) -> None:
        """From now on this is the live state; the frame before is freed unless another thread reads it."""
        with self._lending:
            previous, self.state = self.state.frame, state
            stale = previous is not None and previous is not state.frame and previous is not self._lent
        if stale and previous is not None:
            unpersist(previous)

    @contextmanager
    def borrow(self) -> Iterator[LiveState]:
        """The state as of the last commit, kept readable until given back. From any thread."""
        with self._lending:
            lent = self.state
            self._lent = lent.frame
        try:
            yield lent
        finally:
            with self._lending:
                self._lent = None
                if lent.frame is not None and lent.frame is not self.state.frame:
                    unpersist(lent.frame)
