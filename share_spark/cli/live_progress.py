"""The progress of `share-spark run` on stderr, while it runs: in a terminal a table that is drawn again each second,
in the style of `share-spark top`; else a line a second, if anything has happened.

In a terminal the cursor stays where the table begins. So text of others, the JVM's too, is written over the table, and
stays: the next drawing begins below it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TextIO

from share_spark.cli.command import table
from share_spark.cli.groups import UNKNOWN
from share_spark.cli.run_report import RunTotals, progress_line
from share_spark.cli.top import to_go
from share_spark.engine.progress import EngineLook, MicroBatchProgress, lag_of
from share_spark.maintenance.heartbeat import wall_clock_ms

_log = logging.getLogger(__name__)

EVERY_S = 1.0
_RATE_OVER_S = 30.0
"""The time over which a rate is computed: a micro-batch may take ten seconds, and is counted at its end."""

_MOST_ERRORS = 5
COLUMNS = ("LAG", "FINISHED/S", "TO GO", "ACQUIRED", "ACCEPTED", "RELEASED", "REJECTED", "GIVEN UP")
_BOLD, _RED, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_CLEAR = "\r\x1b[J"


class TextLine(NamedTuple):
    """A line of the table. ``colour``: its start in a terminal with colours, empty for none."""

    text: str
    colour: str = ""


def lines_of(totals: RunTotals, rate: float, look: EngineLook, now_ms: int) -> list[TextLine]:
    """Return all lines. ``rate``: records finished in a second. ``now_ms``: by the wall clock."""
    lag = lag_of(look.summaries, look.ends) if look.summaries else None
    counts = (totals.acquired, totals.accepted, totals.released, totals.rejected, totals.limit_reached)
    row = (
        UNKNOWN if lag is None else f"{lag:,}",
        f"{rate:,.0f}",
        UNKNOWN if _is_held(look, now_ms) else to_go(lag, rate),
        *(f"{count:,}" for count in counts),
    )
    head, figures = table(COLUMNS, [row]).splitlines()
    found = [TextLine(head, _BOLD), TextLine(figures), *_error_lines(totals.errors)]
    if look.calls:
        found.append(TextLine(str(look.calls)))
    if look.pauses:
        found.append(TextLine(f"paused: {look.pauses}", _YELLOW))
    if look.breaker:
        found.append(TextLine(look.breaker, _YELLOW))
    if look.outage:
        found.append(TextLine(f"{look.outage.text(now_ms)}: {look.outage.reason}", _RED))
    return found


def _is_held(look: EngineLook, now_ms: int) -> bool:
    """Return whether there are unfinished records and none of them can be acquired now."""
    if look.outage:
        return True
    unfinished = [key for key, end in look.ends.items() if key in look.summaries and look.summaries[key].lag(end)]
    names = {key: look.summaries[key].topic for key in unfinished}
    return bool(unfinished) and all(look.pauses.holds(names[key], key.partition, now_ms) for key in unfinished)


def _error_lines(errors: Mapping[str, int]) -> list[TextLine]:
    most = sorted(errors.items(), key=lambda found: -found[1])[:_MOST_ERRORS]
    if not most:
        return []
    head, *rows = table(
        ("FAILED", "ERROR"), [(f"{count:,}", " ".join(error.split())) for error, count in most]
    ).splitlines()
    return [TextLine(head, _BOLD), *(TextLine(row, _RED) for row in rows)]


def drawn(lines: Sequence[TextLine], width: int, *, colours: bool) -> str:
    """Return ``lines``, cut to the width of the terminal: the rest of a longer one would not be cleared."""
    cut = [line._replace(text=line.text[: max(1, width - 1)]) for line in lines]
    return "\n".join(f"{line.colour}{line.text}{_PLAIN}" if colours and line.colour else line.text for line in cut)


class _Moment(NamedTuple):
    at_s: float
    finished: int


@dataclass(slots=True)
class LiveProgress:
    """The progress of one run."""

    clock: Callable[[], float] = time.monotonic
    wall_ms: Callable[[], int] = wall_clock_ms
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    totals: RunTotals = field(default_factory=RunTotals)
    _look: Callable[[], EngineLook] = field(init=False)
    _shown: RunTotals = field(default_factory=RunTotals)
    _began: float = 0.0
    _shown_at: float = 0.0
    _recent: deque[_Moment] = field(default_factory=deque)

    def begin(self, look: Callable[[], EngineLook]) -> None:
        """Start the clock of the run. ``look``: returns the state of its engine."""
        self._look = look
        self._began = self._shown_at = now = self.clock()
        self._recent.append(_Moment(now, 0))

    def note(self, progress: MicroBatchProgress) -> None:
        """Add a micro-batch; called on the query's thread."""
        self.totals = self.totals.plus(progress)
        steps = "  ".join(f"{name} {seconds:.2f}" for name, seconds in progress.steps.items())
        _log.info("micro-batch %s, seconds: %s", progress.batch_id, steps)

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return self.clock() - self._began

    def show(self) -> None:
        """Show the progress if a second has passed; called on the main thread."""
        if self.clock() - self._shown_at >= EVERY_S:
            self._show()

    def finish(self) -> None:
        """Show the last progress, which stays in the terminal."""
        lines = self._show()
        self.stream.write("\n" * lines)
        self.stream.flush()

    @contextmanager
    def beside_logs(self) -> Iterator[None]:
        """Write log lines in place of the table, not mixed with it."""
        handlers = [one for one in logging.getLogger().handlers if getattr(one, "stream", None) is self.stream]
        for handler in handlers:
            handler.addFilter(self._make_room)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(self._make_room)

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.stream.write(f"{_CLEAR if self._is_terminal else ''}share-spark: {text}\n")
        self.stream.flush()

    @property
    def _is_terminal(self) -> bool:
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    def _make_room(self, _record: logging.LogRecord) -> bool:
        if self._is_terminal:
            self.stream.write(_CLEAR)
        return True

    def _show(self) -> int:
        """Draw; return the number of lines below the cursor."""
        lines = 0
        if self._is_terminal:
            lines = self._draw()
        elif self.totals.micro_batches != self._shown.micro_batches:
            seconds = max(EVERY_S, self.clock() - self._shown_at)
            self.stream.write(f"{progress_line(self.totals, self._shown, seconds)}\n")
        else:
            return 0  # the next line includes the progress until then
        self.stream.flush()
        self._shown, self._shown_at = self.totals, self.clock()
        return lines

    def _draw(self) -> int:
        now = self.clock()
        self._recent.append(_Moment(now, self.totals.finished))
        while len(self._recent) > 2 and self._recent[1].at_s <= now - _RATE_OVER_S:
            self._recent.popleft()
        first, last = self._recent[0], self._recent[-1]
        rate = (last.finished - first.finished) / max(last.at_s - first.at_s, 1e-3)
        lines = lines_of(self.totals, rate, self._look(), self.wall_ms())
        text = drawn(lines, _width(self.stream), colours="NO_COLOR" not in os.environ)
        self.stream.write(f"{_CLEAR}{text}\r\x1b[{len(lines) - 1}A")
        return len(lines)


def _width(stream: TextIO) -> int:
    return os.get_terminal_size(stream.fileno()).columns or 80
