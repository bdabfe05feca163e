"""Files beside the state log by which operators control a group: ``_share_spark/<what>/<group>``.

An operator writes a file, the engine reads it at each micro-batch; so a running engine uses it, and so does the next
one. A file appears whole or not at all (``StorageFiles.put``), and is complete: of two operators who write at once the
last one counts. It is not part of the state, and needs no claim.

- ``paused``: the pauses. A pause changes no record.
- ``configs``: the dynamic configs. They are limits for decisions to come. The log has what was decided, not the limits,
  and no state is folded by them. So they may change between a micro-batch that was lost with its engine and the one
  that repeats it: what was appended stands, and the rest is decided by the limits of that moment.
- ``empty``: a group without share-partitions that is kept. In Kafka a group whose offsets were deleted stays, empty,
  until it is deleted. The state log has rows of share-partitions only, so it cannot record this; and the settings of
  the group would wait, unseen, for the next group of that name. The file may exist for a group that has
  share-partitions again: then it has no effect.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from share_spark.engine.pauses import Pause, Pauses
from share_spark.model.config import GroupConfig
from share_spark.model.dynamic_config import Texts, checked, over
from share_spark.model.errors import ConfigError, StateError
from share_spark.spark.files import StorageFiles, group_file_name

_log = logging.getLogger(__name__)

_PAUSED, _CONFIGS, _EMPTY = "paused", "configs", "empty"
"""The directories of the files."""

_READ_EVERY_S = 1.0
"""The time between two reads: an idle engine has ten micro-batches a second, and object stores charge for each read."""


@dataclass(frozen=True, slots=True)
class OperatorFile:
    """A file of one group."""

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


@dataclass(frozen=True, slots=True)
class PauseFile:
    """The pauses of one group, in a file."""

    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> PauseFile:
        """Return the file of a group. ``log_directory``: the state log's."""
        return cls(OperatorFile.beside(log_directory, _PAUSED, group_id, files))

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


@dataclass(frozen=True, slots=True)
class DynamicConfigFile:
    """The dynamic configs of one group, in a file."""

    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> DynamicConfigFile:
        """Return the file of a group. ``log_directory``: the state log's."""
        return cls(OperatorFile.beside(log_directory, _CONFIGS, group_id, files))

    def read(self) -> dict[str, str]:
        """Return the values by key. Raises StateError: the file was not written by us."""
        return self.parsed(self.file.read())

    def parsed(self, content: bytes) -> dict[str, str]:
        """Return the values that ``content`` has. Raises StateError."""
        try:
            found = json.loads(content or b"{}")
            if not isinstance(found, dict):
                raise ConfigError("it is no JSON object")
            return checked(found)
        except (ValueError, ConfigError) as fault:
            raise StateError(
                f"{self.file.path} does not say the configs of a group ({fault}): remove it, and set them again"
            ) from None

    def write(self, configs: Texts) -> None:
        """Replace all values."""
        self.file.write(dict(configs))


@dataclass(slots=True)
class DynamicConfigReader:
    """The configs that an engine uses: the settings of its job, overridden by the file (``OperatorFileReader``). While
    the file is not valid, by itself or together with the job's settings, the last valid ones count."""

    file: DynamicConfigFile
    job: GroupConfig
    clock: Callable[[], float] = time.monotonic
    _content: OperatorFileReader = field(init=False)
    _seen: bytes = b""
    _valid: GroupConfig = field(init=False)

    def __post_init__(self) -> None:
        self._content = OperatorFileReader(self.file.file, self.clock)
        self._valid = self.job

    def __call__(self) -> GroupConfig:
        """Return the current configs. Raises whatever the storage raises at the first read."""
        content = self._content()
        if content != self._seen:
            self._seen = content
            self._take_over(content)
        return self._valid

    def _take_over(self, content: bytes) -> None:
        try:
            dynamic = self.file.parsed(content)
            self._valid = over(self.job, dynamic)
        except (StateError, ConfigError) as fault:
            _log.warning("%s; the settings stay as they are", fault)
        else:
            _log.info("dynamic group configs now: %s", dynamic or "none")


@dataclass(frozen=True, slots=True)
class EmptyGroupFile:
    """A file that keeps one group, even without share-partitions."""

    group_id: str
    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> EmptyGroupFile:
        """Return the file of a group. ``log_directory``: the state log's."""
        return cls(group_id, OperatorFile.beside(log_directory, _EMPTY, group_id, files))

    @staticmethod
    def groups(log_directory: str, files: StorageFiles) -> list[str]:
        """Return the ids of all groups that have such a file."""
        directory = f"{log_directory.rstrip('/')}/_share_spark/{_EMPTY}"
        contents = [files.read(f"{directory}/{name}") for name in files.names(directory) if not name.startswith(".")]
        return [json.loads(content)["group_id"] for content in contents if content]

    def is_there(self) -> bool:
        """Return whether the group is kept."""
        return bool(self.file.read())

    def write(self) -> None:
        """Keep the group."""
        self.file.write({"group_id": self.group_id})

    def delete(self) -> None:
        """Stop keeping the group."""
        self.file.write(None)
