"""A file beside the state log by which operators control the engine of a group: ``_share_spark/<what>/<group>``.

An operator writes it, the engine reads it at each micro-batch; so a running engine uses it, and so does the next one.
It appears whole or not at all (``StorageFiles.put``), and is complete: of two operators who write at once the last one
counts. It is not part of the state, and needs no claim.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from share_spark.spark.files import StorageFiles, group_file_name

_log = logging.getLogger(__name__)

_READ_EVERY_S = 1.0
"""The time between two reads: an idle engine has ten micro-batches a second, and object stores charge for each read."""


@dataclass(frozen=True, slots=True)
class OperatorFile:
    """The file of one group."""

    path: str
    files: StorageFiles

    @classmethod
    def beside(cls, log_directory: str, what: str, group_id: str, files: StorageFiles) -> OperatorFile:
        """Return the file of a group. ``log_directory``: the state log's."""
        return cls(f"{log_directory.rstrip('/')}/_share_spark/{what}/{group_file_name(group_id)}", files)

    def read(self) -> bytes:
        """Return its content, empty if there is none."""
        return self.files.read(self.path) or b""

    def write(self, content: Any) -> None:
        """Replace the content, as JSON; an empty content deletes the file."""
        if not content:
            self.files.delete(self.path)
            return
        directory, _, name = self.path.rpartition("/")
        self.files.put(self.path, f"{directory}/.{name}.tmp", json.dumps(content).encode())


@dataclass(slots=True)
class OperatorFileReader:
    """The file's content as an engine reads it, at most a second old. If it cannot be read, the last content counts."""

    file: OperatorFile
    clock: Callable[[], float] = time.monotonic
    _last: bytes | None = None
    _read_at: float = field(default=float("-inf"))

    def __call__(self) -> bytes:
        """Return the content. Raises whatever the storage raises at the first read."""
        now = self.clock()
        if self._last is not None and now - self._read_at < _READ_EVERY_S:
            return self._last
        try:
            self._last = self.file.read()
        except Exception as fault:
            if self._last is None:
                raise
            _log.warning("%s cannot be read (%s); what it said before counts", self.file.path, fault)
        self._read_at = now
        return self._last
