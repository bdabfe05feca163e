"""Small files on whatever storage Spark can reach. ``hadoop_files.files_at`` chooses the way: by Python for local
paths, through Hadoop for others, by pyarrow where Hadoop's classes are not to be had. Paths are texts with or without a
scheme, all on the storage of the path it was called with.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from typing import NamedTuple
from urllib.parse import quote

SETTLE_S = 1.0
"""An object store only looks whether there is a file, then writes: of those who have done so at once the last one has
it, and whoever reads it so much later knows that."""

_COMPLETE_WHEN_SEEN = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "oss", "cosn", "obs"})
"""Object stores, where a file appears when it is complete."""


class NoHardLinksError(NotImplementedError):
    """A local file system on which a commit cannot be put only if it is absent."""


class TotalSize(NamedTuple):
    """Of all files below a directory."""

    files: int
    bytes: int


class StorageFiles(ABC):
    """Files of one storage."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """A file or a directory."""

    @abstractmethod
    def is_directory(self, path: str) -> bool:
        """False too if there is nothing."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """What lies in it, in any order; empty if it is not there. Hadoop's checksum files are left out."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """All of a file; None if there is none."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """In place, over what is there; directories are made. A reader may see a part of it (``put`` hides that)."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Only if there is none; did it? Two at once: one does, if they say different things."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """With those above it, unless it is there; nothing on an object store."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Over what is there. In one step on local disks and HDFS; where the storage cannot (Azure's), the target is
        away for a moment."""

    @abstractmethod
    def delete(self, path: str, *, recursive: bool = False) -> None:
        """If it is there."""

    @abstractmethod
    def modified_at_ms(self, path: str) -> int | None:
        """When it was written last; None if there is none."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Of a file, in bytes; None if there is none."""

    @abstractmethod
    def total_size(self, directory: str) -> TotalSize:
        """A recursive listing."""

    @abstractmethod
    def shows_partial_writes(self, path: str) -> bool:
        """May others see a file here before it is complete?"""

    def put(self, path: str, aside: str, content: bytes) -> None:
        """Write a file that appears whole, and replaces what is there.

        Where others see a file before it is complete (disks, HDFS, Azure): written aside, then renamed. On other
        object stores a rename is a copy, but an object appears when it is complete: written directly.
        """
        if not self.shows_partial_writes(path):
            self.write(path, content)
            return
        self.write(aside, content)
        self.rename(aside, path)

    @property
    def can_commit(self) -> bool:
        """Is ``commit`` to be had, as far as it is known without trying?"""
        return False

    def commit(self, path: str, content: bytes) -> bool:
        """Write a file of a Delta log, only if there is none, so that of several at once exactly one does; did it? It
        appears whole. Its directory is there; OSError if not. As safe as Delta's own commits to this storage.

        Raises NotImplementedError where that cannot be had, NoHardLinksError if a local file system is the reason."""
        raise NotImplementedError(f"no file of a Delta log can be put to {path}")

    @property
    def keeps_commits(self) -> bool:
        """Is a file that ``commit`` has written safe from every other writer?"""
        return True

    def _settled(self, path: str, content: bytes) -> bool:
        """Is it still ours a moment later?"""
        time.sleep(SETTLE_S)
        return self.read(path) == content


def shows_partial_writes_by(scheme: str) -> bool:
    """As Delta's log stores judge it; an unknown storage is taken for one that shows them."""
    return scheme not in _COMPLETE_WHEN_SEEN


_LONGEST_FILE_NAME = 200
"""Bytes. File systems take 255, and what is put in front or behind needs some of them."""


def group_file_name(group_id: str) -> str:
    """Return the name of the files and directories of a group: its id, escaped. Ids that a file system would take for
    another directory are escaped as well, and long ones end with their digest."""
    name = quote(group_id, safe="")
    if name in (".", ".."):
        return name.replace(".", "%2E")
    if len(name) <= _LONGEST_FILE_NAME:
        return name
    digest = hashlib.sha256(group_id.encode()).hexdigest()[:32]
    return f"{name[: _LONGEST_FILE_NAME - len(digest) - 1]}%{digest}"
