"""A file ``_share_spark/empty/<group>`` that keeps a group without share-partitions.

In Kafka a group whose offsets were deleted stays, empty, until it is deleted. The state log has rows of
share-partitions only, so it cannot record this; and the settings of the group would wait, unseen, for the next group of
that name. The file may exist for a group that has share-partitions again: then it has no effect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from share_spark.maintenance.operator_file import OperatorFile
from share_spark.spark.files import StorageFiles

EMPTY = "empty"
"""The directory of these files."""


@dataclass(frozen=True, slots=True)
class EmptyGroupFile:
    """The file of one group."""

    group_id: str
    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> EmptyGroupFile:
        """Return the file of a group. ``log_directory``: the state log's."""
        return cls(group_id, OperatorFile.beside(log_directory, EMPTY, group_id, files))

    @staticmethod
    def groups(log_directory: str, files: StorageFiles) -> list[str]:
        """Return the ids of all groups that have such a file."""
        directory = f"{log_directory.rstrip('/')}/_share_spark/{EMPTY}"
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
