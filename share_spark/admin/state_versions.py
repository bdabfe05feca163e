"""The readable earlier versions of a state log, and the time of each commit. No Spark.

How far back they go depends on Delta: commits are cleaned up after ``delta.logRetentionDuration`` (30 days), and files
that have left the table are removed by VACUUM, which the compaction does (``vacuum retention``, 7 days).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from share_spark.admin.table_files import commits_without_spark, state_log_without_spark
from share_spark.delta.commit_files import CommitFiles
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.errors import ConfigError
from share_spark.model.moments import milliseconds, moment


class StateVersion(NamedTuple):
    """A version. ``committed_at_ms``: by the writer's clock, 0 if only a checkpoint of it is left."""

    number: int
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class StateVersions:
    """The versions of the state log in ``location`` (a directory). A version's time never changes and is read once.

    Methods raise ConfigError: the location is no path; there is no such version, or none so early; a time in the
    future.
    """

    location: str
    _times: dict[int, int] = field(default_factory=dict, repr=False)

    def asked(self, number: str | None, at: str | None) -> StateVersion | None:
        """Return the version that a user named: a number, or else a time; None if neither is given."""
        if at:
            at_ms = milliseconds(moment(at))
            if at_ms > wall_clock_ms():
                raise ConfigError(f"{at} is in the future")
            return self.at(at_ms)
        if not number:
            return None
        if not (number.isascii() and number.isdecimal()):
            raise ConfigError(f"version {number!r} is not a number from 0 up")
        return self.version(int(number))

    def version(self, number: int) -> StateVersion:
        """Return the version with this number."""
        files = self._files()
        known = files.readable_versions()
        if number not in known:
            raise ConfigError(f"version {number} of the state log is not there: {self._span(files, known)}")
        return StateVersion(number, self._time_ms(files, number))

    def at(self, at_ms: int) -> StateVersion:
        """Return the newest version that was committed by then (milliseconds since the epoch)."""
        files = self._files()
        known = files.readable_versions()
        found = bisect_right(known, at_ms, key=lambda number: self._time_ms(files, number)) - 1
        if found < 0 or self._time_ms(files, known[0]) > at_ms:
            raise ConfigError(f"the state at {_text(at_ms)} is not known: {self._span(files, known)}")
        return StateVersion(known[found], self._time_ms(files, known[found]))

    def some(self, most: int) -> Sequence[StateVersion]:
        """Return at most so many versions, evenly among all, the first and the last among them."""
        files = self._files()
        known = files.readable_versions()
        last = len(known) - 1
        numbers = known if len(known) <= most else sorted({known[last * at // (most - 1)] for at in range(most)})
        return [StateVersion(number, self._time_ms(files, number)) for number in numbers]

    def _files(self) -> CommitFiles:
        return commits_without_spark(state_log_without_spark(self.location))

    def _time_ms(self, files: CommitFiles, number: int) -> int:
        if number not in self._times:
            commit = files.read(number)
            self._times[number] = 0 if commit is None else commit.committed_at_ms
        return self._times[number]

    def _span(self, files: CommitFiles, known: range) -> str:
        if not known:
            return "the state log has no version that can be read"
        first, last = (f"{number} ({_text(self._time_ms(files, number))})" for number in (known[0], known[-1]))
        return f"it has versions {first} to {last}"


def _text(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}" if at_ms else "time not known"
