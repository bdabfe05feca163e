"""The dynamic configs of a group, in a file of its operators, ``_share_spark/configs/<group>``.

They are limits for decisions to come. The log has what was decided, not the limits, and no state is folded by them. So
they may change between a micro-batch that was lost with its engine and the one that repeats it: what was appended
stands, and the rest is decided by the limits of that moment.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from share_spark.maintenance.operator_file import OperatorFile, OperatorFileReader
from share_spark.model.config import GroupConfig
from share_spark.model.dynamic_config import Texts, checked, over
from share_spark.model.errors import ConfigError, StateError
from share_spark.spark.files import StorageFiles

_log = logging.getLogger(__name__)

CONFIGS = "configs"
"""The directory of these files."""


@dataclass(frozen=True, slots=True)
class DynamicConfigFile:
    """The file of one group."""

    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> DynamicConfigFile:
        """Return the file of a group. ``log_directory``: the state log's."""
        return cls(OperatorFile.beside(log_directory, CONFIGS, group_id, files))

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
