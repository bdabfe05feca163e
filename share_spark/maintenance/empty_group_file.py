"""That a group is kept though it has no share-partitions any more: a file ``_share_spark/empty/<group>``.

In Kafka a group whose offsets were deleted stays, empty, until it is deleted. The state log has rows of
share-partitions only, so it cannot say so; and what is set for the group would wait, unseen, for the next group of that
name. The file may be there for a group that has got share-partitions again: then it says nothing.
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
    """Of one group."""

    group_id: str
    file: OperatorFile

    @classmethod
    def beside(cls, log_directory: str, group_id: str, files: StorageFiles) -> EmptyGroupFile:
        """``log_directory``: of the state log."""
        return cls(group_id, OperatorFile.beside(log_directory, EMPTY, group_id, files))

    @staticmethod
    def groups(log_directory: str, files: StorageFiles) -> list[str]:
        """Return the ids of all groups that have such a file."""
        directory = f"{log_directory.rstrip('/')}/_share_spark/{EMPTY}"
        contents = [files.read(f"{directory}/{name}") for name in files.names(directory) if not name.startswith(".")]
        return [json.loads(content)["group_id"] for content in contents if content]

    def is_there(self) -> bool:
        """Is the group kept?"""
        return bool(self.file.read())

    def write(self) -> None:
        """Keep the group."""
        self.file.write({"group_id": self.group_id})

    def delete(self) -> None:
        """Keep it no longer."""
        self.file.write(None)
