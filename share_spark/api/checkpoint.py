"""Spark's checkpoint directory of a group, and the note in it that names its owner.

The checkpoint holds nothing that the state needs: it is Spark's own count of micro-batches. Deleting it loses
nothing; a checkpoint of another group or another query is refused.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from share_spark.delta.location import Location
from share_spark.model.errors import ConfigError
from share_spark.spark.files import StorageFiles, group_file_name
from share_spark.spark.hadoop_files import files_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_NOTE = "share_group.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint directory, on whatever storage Spark can reach."""

    spark: SparkSession
    directory: str

    @classmethod
    def at(cls, spark: SparkSession, given: str | None, state: Location, group_id: str) -> Checkpoint:
        """Return ``given``, or ``_checkpoints/<group>`` below a state directory. Raises ConfigError without both."""
        if given is not None:
            return cls(spark, given)
        if state.path is None:
            raise ConfigError("state in a schema needs option checkpointLocation: a schema has no directory for it")
        return cls(spark, f"{state.path.rstrip('/')}/_checkpoints/{group_file_name(group_id)}")

    def check(self, group_id: str) -> None:
        """Refuse a checkpoint that belongs to another group or query. Raises ConfigError."""
        note = self._note()
        if note is not None and note.get("group_id") != group_id:
            raise ConfigError(
                f"checkpoint {self.directory} belongs to group {note.get('group_id')!r}, not {group_id!r}"
            )
        if note is None and self._exists("metadata"):
            raise ConfigError(f"checkpoint {self.directory} belongs to another streaming query")

    @property
    def writer_epoch(self) -> int:
        """The writer epoch of the last claim that this checkpoint has seen, 0 for a new one."""
        return int((self._note() or {}).get("writer_epoch", 0))

    def sign(self, group_id: str, handler: str, writer_epoch: int, *, has_state: bool) -> None:
        """Write the owner of this checkpoint and the claim it has seen; log what is new."""
        note = self._note()
        if note is None and has_state:
            _log.warning("checkpoint %s is new; group %s goes on from its state", self.directory, group_id)
        if note is not None and note.get("handler") != handler:
            _log.warning("the handler of group %s has changed: was %s, is %s", group_id, note.get("handler"), handler)
        self._write(json.dumps({"group_id": group_id, "handler": handler, "writer_epoch": writer_epoch}))

    def _note(self) -> dict[str, Any] | None:
        text = self._files().read(self._path(_NOTE))
        if text is None:
            return None
        try:
            return dict(json.loads(text))
        except ValueError:
            raise ConfigError(f"checkpoint {self.directory}: {_NOTE} is damaged") from None

    def _write(self, text: str) -> None:
        self._files().write(self._path(_NOTE), text.encode())

    def _exists(self, name: str) -> bool:
        return self._files().exists(self._path(name))

    def _files(self) -> StorageFiles:
        return files_at(self.spark, self.directory)

    def _path(self, name: str) -> str:
        return f"{self.directory.rstrip('/')}/{name}"
