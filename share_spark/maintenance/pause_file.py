"""Where it is kept what of a group is paused: a file beside the state log, ``_share_spark/paused/<group>``.

An operator writes it, the engine reads it at each micro-batch; so a running engine takes it over, and so does the next
one. It appears whole or not at all (``StorageFiles.put``), and says everything: of two operators who write at once the
last one counts. It is no part of the state: what is paused changes no record.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from share_spark.engine.pauses import NOT_PAUSED, Pause, Pauses
from share_spark.model.errors import StateError
from share_spark.spark.files import StorageFiles

_log = logging.getLogger(__name__)

PAUSED = "paused"
"""The directory of these files."""

_READ_EVERY_S = 1.0
"""An idle engine has ten micro-batches a second, and an object store takes money for each read."""


@dataclass(frozen=True, slots=True)
class PauseFile:
    """Of one group."""

    path: str
    files: StorageFiles

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> PauseFile:
        """``log_directory``: of the state log."""
        return cls(f"{log_directory.rstrip('/')}/_share_spark/{PAUSED}/{quote(group_id, safe='')}", files)

    def read(self) -> Pauses:
        """Raises StateError: somebody else has written it."""
        content = self.files.read(self.path)
        if content is None:
            return NOT_PAUSED
        try:
            return Pauses(tuple(Pause(**fields) for fields in json.loads(content)))
        except (ValueError, TypeError):
            raise StateError(f"{self.path} does not say what is paused: remove it, and pause again") from None

    def write(self, pauses: Pauses) -> None:
        """In place of what was paused before."""
        if pauses:
            directory, _, name = self.path.rpartition("/")
            self.files.put(
                self.path, f"{directory}/.{name}.tmp", json.dumps([one._asdict() for one in pauses.entries]).encode()
            )
        else:
            self.files.delete(self.path)


@dataclass(slots=True)
class PauseReader:
    """For an engine: what the file says, as of a second ago at most. If it cannot be read, what it said last."""

    file: PauseFile
    clock: Callable[[], float] = time.monotonic
    _last: Pauses | None = None
    _read_at: float = field(default=float("-inf"))

    def __call__(self) -> Pauses:
        """Raises StateError as ``PauseFile.read``, and whatever the storage makes of the first read."""
        now = self.clock()
        if self._last is not None and now - self._read_at < _READ_EVERY_S:
            return self._last
        try:
            self._last = self.file.read()
        except StateError:
            raise
        except Exception as fault:
            if self._last is None:
                raise
            _log.warning("%s cannot be read (%s); paused as before: %s", self.file.path, fault, self._last)
        self._read_at = now
        return self._last
