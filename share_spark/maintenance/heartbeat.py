"""Small files beside the state log that name the processes at work: an engine's heartbeat, the lock of a compaction.

They lie in ``_share_spark`` in the log's directory, beside the journals (Delta ignores names that begin with an
underscore, VACUUM too), so they have a place in a schema as well as in a directory. A thread writes a file again and
again; a file that has not been written for long belongs to a process that has ended. Correctness depends on the log,
not on them: they keep a running engine from being fenced, and two compactions from conflicting.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from share_spark.delivery.ledger_place import KEPT_RECORDS, LEDGERS
from share_spark.delta.journal import WAITING_LETTERS
from share_spark.delta.location import Location
from share_spark.engine.ports import Claim
from share_spark.maintenance.operator_files import DynamicConfigFile, PauseFile
from share_spark.model.ids import NO_STAMP
from share_spark.spark.files import StorageFiles, group_file_name
from share_spark.spark.hadoop_files import files_at
from share_spark.spark.on_demand import AnySpark
from share_spark.state.tables import log_table

_log = logging.getLogger(__name__)

ALIVE = "alive"
"""The directory of the heartbeats."""

BEAT_MS = 10_000
"""The time between two writes of a heartbeat file."""

ALIVE_MS = 6 * BEAT_MS
"""An engine with a heartbeat within this time counts as running, unless its heartbeat says that it has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class SmallFile:
    """A file with a line of text."""

    path: str
    _files: StorageFiles

    @classmethod
    def of(cls, spark: AnySpark, path: str) -> SmallFile:
        """Return the file; nothing is opened or made."""
        return cls(path, files_at(spark, path))

    def write(self, text: str) -> None:
        """Write the text over whatever is there."""
        self._files.write(self.path, text.encode())

    def create(self, text: str) -> bool:
        """Create the file if there is none; return whether it did. Of two at once one does, if their texts differ."""
        return self._files.create(self.path, text.encode())

    def read(self) -> str:
        """Return the text; empty if there is none, or if it is being written just now."""
        try:
            return (self._files.read(self.path) or b"").decode()
        except Exception:  # noqa: BLE001 - no decision depends on the text
            return ""

    def modified_at_ms(self) -> int | None:
        """Return the time of the last write; None if there is no file."""
        return self._files.modified_at_ms(self.path)

    def delete(self) -> None:
        """Delete the file if it is there."""
        self._files.delete(self.path)


class EndKind(StrEnum):
    """The ways in which an engine ends. VANISHED is in no file: the heartbeat stopped without an end in it."""

    STOPPED = "stopped"
    WORKED_OFF = "worked off"
    FAILED = "failed"
    VANISHED = "vanished"


class EngineEnd(NamedTuple):
    """The end of an engine. ``at_ms``: when it reported the end, or its last heartbeat if it vanished; milliseconds
    since the epoch. ``error``: why it failed, one line."""

    kind: EndKind
    at_ms: int
    error: str = ""


MOST_ERROR_CHARACTERS = 500
"""The number of characters of an error that a heartbeat file keeps."""


class Beat(NamedTuple):
    """The heartbeat of an engine. ``since_ms``: when it began. ``kafka`` or ``table``: where its topics are;
    ``letters``: its dead-letter table. ``settings``: those of its job that are not the default, by key; None if it has
    none there. ``breaker_open_ms``: since when its circuit breaker is seen open, 0 while it is closed.
    ``unreachable_since_ms``: since when its topics do not answer, None if they do. ``calls``: its calls that outlast
    micro-batches, as a text, empty if it has none. ``ended``: it has stopped by itself; ``end``, ``ended_ms`` and
    ``error`` are then those of its ``EngineEnd``."""

    member_id: str
    writer_epoch: int = 0
    host: str = ""
    pid: int = 0
    since_ms: int = 0
    kafka: str | None = None
    table: str | None = None
    letters: str | None = None
    ended: bool = False
    settings: Mapping[str, str] | None = None
    breaker_open_ms: int = 0
    end: str = EndKind.STOPPED
    ended_ms: int = 0
    error: str = ""
    unreachable_since_ms: int | None = None
    calls: str = ""

    @classmethod
    def of_this_process(cls, claim: Claim, **said: Any) -> Beat:
        """Return a heartbeat that begins now. ``said``: further fields."""
        host, pid = socket.gethostname(), os.getpid()
        return cls(claim.member_id, claim.writer_epoch, host, pid, wall_clock_ms(), **said)

    def is_running(self, silent_ms: int) -> bool:
        """Return whether the engine runs. ``silent_ms``: the time since the heartbeat was written."""
        return not self.ended and silent_ms < ALIVE_MS

    def ended_by(self, end: EngineEnd) -> Beat:
        """Return the last heartbeat of the engine."""
        error = " ".join(end.error.split())[:MOST_ERROR_CHARACTERS]
        said = self._replace(ended=True, end=end.kind, ended_ms=end.at_ms, error=error)
        return said._replace(breaker_open_ms=0, unreachable_since_ms=None, calls="")

    def found_end(self, written_ms: int, silent_ms: int) -> EngineEnd | None:
        """Return how the engine has ended, None while it runs. ``written_ms``: when this was written."""
        if self.is_running(silent_ms):
            return None
        if not self.ended:
            return EngineEnd(EndKind.VANISHED, written_ms)
        kind = EndKind(self.end) if self.end in list(EndKind) else EndKind.STOPPED
        return EngineEnd(kind, self.ended_ms or written_ms, self.error)

    def to_text(self) -> str:
        """Return the heartbeat as one line."""
        return json.dumps(self._asdict())

    @classmethod
    def from_text(cls, text: str) -> Beat:
        """Parse a heartbeat. Any other text, or one that is being written just now, becomes the member id."""
        try:
            found = json.loads(text)
            return cls(**{name: found[name] for name in cls._fields if name in found})
        except (ValueError, TypeError):
            return cls(text)


@dataclass(slots=True, kw_only=True, eq=False)
class Heartbeat:
    """A thread that writes what ``say`` returns into ``file``, again and again from ``start`` to ``close``. A write
    that fails is only late."""

    file: SmallFile
    say: Callable[[], str]
    every_ms: int = BEAT_MS
    _written: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Write the file once, and start the thread."""
        self._write(self.say)
        self._thread = threading.Thread(target=self._run, name="share-spark-heartbeat", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Write the file now, as its content has changed."""
        self._write(self.say)

    def close(self, last_text: str | None = None) -> None:
        """End the thread. The file is not deleted, as a successor may own the heartbeat by then; ``last_text`` is
        written if nobody else has written meanwhile. Safe to call twice."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if last_text is not None and self.file.read() == self._written:
            self._write(lambda: last_text)

    def _run(self) -> None:
        while not self._stop.wait(self.every_ms / 1_000):
            self._write(self.say)

    def _write(self, say: Callable[[], str]) -> None:
        try:
            text = say()
            self.file.write(text)
            self._written = text
        except Exception:  # noqa: BLE001 - a failed heartbeat must not end the engine
            _log.warning("%s could not be written; it will be tried again", self.file.path, exc_info=True)


def heartbeat_file(spark: AnySpark, location: Location, group_id: str) -> SmallFile:
    """Return the heartbeat of a group's engine: there and young while one runs."""
    return SmallFile.of(spark, f"{_beside_log(spark, location)}/{ALIVE}/{group_file_name(group_id)}")


def pause_file(spark: AnySpark, location: Location, group_id: str) -> PauseFile:
    """Return the file of the group's pauses."""
    directory = log_table(location).directory(spark)
    return PauseFile.beside(directory, group_id, files_at(spark, directory))


def dynamic_config_file(spark: AnySpark, location: Location, group_id: str) -> DynamicConfigFile:
    """Return the file of the group's dynamic configs."""
    directory = log_table(location).directory(spark)
    return DynamicConfigFile.beside(directory, group_id, files_at(spark, directory))


_CLAIM = f"-{NO_STAMP.batch_id}"
"""The end of the name of a claim's entry (``journal``)."""

_ASIDE = "."
"""The start of the name of an entry that was never finished, so that nothing can have followed it."""


def has_journals(spark: AnySpark, location: Location, group_id: str) -> bool:
    """Return whether an engine of the group has left a journal entry that the next one has to compare with the log. Not
    meant are a claim that it noted, dead letters that are judged and wait, entries that it died before finishing
    (``Journal.put``), or records that it has kept so that nobody has to read them again."""
    top = _beside_log(spark, location)
    files = files_at(spark, top)
    purposes = [name for name in files.names(top) if name not in (LEDGERS, KEPT_RECORDS, WAITING_LETTERS)]
    journals = [f"{top}/{purpose}/{group_file_name(group_id)}" for purpose in purposes]
    left = [name for at in journals if files.is_directory(at) for name in files.names(at)]
    return any(not name.startswith(_ASIDE) and not name.endswith(_CLAIM) for name in left)


def lock_file(spark: AnySpark, location: Location) -> SmallFile:
    """Return the lock that one compaction at a time holds on a state location."""
    return SmallFile.of(spark, f"{_beside_log(spark, location)}/compaction")


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch, by the wall clock: the only clock that the engine gets."""
    return time.time_ns() // 1_000_000


def age_ms(file: SmallFile) -> int | None:
    """Return the milliseconds since the last write; None if there is no such file."""
    at = file.modified_at_ms()
    return None if at is None else wall_clock_ms() - at


def _beside_log(spark: AnySpark, location: Location) -> str:
    return f"{log_table(location).directory(spark).rstrip('/')}/_share_spark"
