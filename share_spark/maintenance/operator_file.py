"""A file beside the state log by which operators direct the engine of a group: ``_share_spark/<what>/<group>``.

An operator writes it, the engine reads it at each micro-batch; so a running engine takes it over, and so does the next
one. It appears whole or not at all (``StorageFiles.put``), and says everything: of two operators who write at once the
last one counts. It is no part of the state, and needs no claim.
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
"""An idle engine has ten micro-batches a second, and an object store takes money for each read."""


@dataclass(frozen=True, slots=True)
class OperatorFile:
    """Of one group."""

    path: str
    files: StorageFiles

    @classmethod
    def beside(cls, log_directory: str, what: str, group_id: str, files: StorageFiles) -> OperatorFile:
        """``log_directory``: of the state log."""
        return cls(f"{log_directory.rstrip('/')}/_share_spark/{what}/{group_file_name(group_id)}", files)

    def read(self) -> bytes:
        """Its content, empty if there is none."""
        return self.files.read(self.path) or b""

    def write(self, content: Any) -> None:
        """In place of what it said before, as JSON; there is no file if that is nothing."""
        if not content:
            self.files.delete(self.path)
            return
        directory, _, name = self.path.rpartition("/")
        self.files.put(self.path, f"{directory}/.{name}.tmp", json.dumps(content).encode())


@dataclass(slots=True)
class OperatorFileReader:
    """For an engine: the content as of a second ago at most. If it cannot be read, what it was last."""

    file: OperatorFile
    clock: Callable[[], float] = time.monotonic
    _last: bytes | None = None
    _read_at: float = field(default=float("-inf"))

    def __call__(self) -> bytes:
        """Raises whatever the storage makes of the first read."""
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
