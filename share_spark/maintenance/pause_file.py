"""Where it is kept what of a group is paused: a file of its operators, ``_share_spark/paused/<group>``. What is paused
changes no record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from share_spark.engine.pauses import Pause, Pauses
from share_spark.maintenance.operator_file import OperatorFile, OperatorFileReader
from share_spark.model.errors import StateError
from share_spark.spark.files import StorageFiles

PAUSED = "paused"
"""The directory of these files."""


@dataclass(frozen=True, slots=True)
class PauseFile:
    """Of one group."""

    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> PauseFile:
        """``log_directory``: of the state log."""
        return cls(OperatorFile.beside(log_directory, PAUSED, group_id, files))

    def read(self) -> Pauses:
        """Raises StateError: somebody else has written it."""
        return self.parsed(self.file.read())

    def parsed(self, content: bytes) -> Pauses:
        """What it says. Raises StateError."""
        try:
            return Pauses(tuple(Pause(**fields) for fields in json.loads(content or b"[]")))
        except (ValueError, TypeError):
            raise StateError(f"{self.file.path} does not say what is paused: remove it, and pause again") from None

    def write(self, pauses: Pauses) -> None:
        """In place of what was paused before."""
        self.file.write([one._asdict() for one in pauses.entries])


@dataclass(slots=True)
class PauseReader:
    """For an engine: what the file says (``OperatorFileReader``)."""

    file: PauseFile
    clock: Callable[[], float] = time.monotonic
    _content: OperatorFileReader = field(init=False)

    def __post_init__(self) -> None:
        self._content = OperatorFileReader(self.file.file, self.clock)

    def __call__(self) -> Pauses:
        """Raises StateError as ``PauseFile.read``, and whatever the storage makes of the first read."""
        return self.file.parsed(self._content())
