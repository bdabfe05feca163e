"""The pauses of a group, in a file of its operators, ``_share_spark/paused/<group>``. A pause changes no record."""

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
    """The file of one group."""

    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> PauseFile:
        """Return the file of a group. ``log_directory``: the state log's."""
        return cls(OperatorFile.beside(log_directory, PAUSED, group_id, files))

    def read(self) -> Pauses:
        """Return the pauses. Raises StateError: the file was not written by us."""
        return self.parsed(self.file.read())

    def parsed(self, content: bytes) -> Pauses:
        """Return the pauses that ``content`` has. Raises StateError."""
        try:
            return Pauses(tuple(Pause(**fields) for fields in json.loads(content or b"[]")))
        except (ValueError, TypeError):
            raise StateError(f"{self.file.path} does not say what is paused: remove it, and pause again") from None

    def write(self, pauses: Pauses) -> None:
        """Replace all pauses."""
        self.file.write([one._asdict() for one in pauses.entries])


@dataclass(slots=True)
class PauseReader:
    """The pauses as an engine reads them (``OperatorFileReader``)."""

    file: PauseFile
    clock: Callable[[], float] = time.monotonic
    _content: OperatorFileReader = field(init=False)

    def __post_init__(self) -> None:
        self._content = OperatorFileReader(self.file.file, self.clock)

    def __call__(self) -> Pauses:
        """Return the pauses. Raises StateError as ``PauseFile.read``, and a storage error at the first read."""
        return self.file.parsed(self._content())
