"""Small files on any storage that Spark can reach. ``hadoop_files.files_at`` chooses the way: Python for local paths,
Hadoop for others, pyarrow where Hadoop's classes are missing. Paths are texts with or without a
scheme, all on the storage of the path it was called with.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

SETTLE_S = 1.0
"""An object store checks whether there is a file, then writes: of several writers at once the last one wins, and a
reader that reads the file this much later knows that."""

_COMPLETE_WHEN_SEEN = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "oss", "cosn", "obs"})
"""Object stores, where a file appears when it is complete."""


class NoHardLinksError(NotImplementedError):
    """Raised for a local file system without hard links, where a commit cannot be put only if it is absent."""


Ready = Callable[[], None]
"""A function that returns when something is safe that was begun."""


def written() -> None:
    """Return: it is safe already."""


class TotalSize(NamedTuple):
    """The size of all files below a directory."""

    files: int
    bytes: int


class StorageFiles(ABC):
    """The files of one storage."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether there is a file or a directory."""

    @abstractmethod
    def is_directory(self, path: str) -> bool:
        """Return whether it is a directory; False too if there is nothing."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, in any order; empty if it is not there. Omits Hadoop's checksum files."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write in place, over what is there; directories are made. Readers may see a part of it (see ``put``)."""

    def begin_write(self, path: str, content: bytes) -> Ready:
        """Begin to write a file as ``write`` does. It is there, and safe, when the function that is returned has
        returned; that raises what ``write`` does, and may be called again."""
        self.write(path, content)
        return written

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Create a file if there is none; return whether it did. Of two at once one does, if their contents differ."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory, with those above it, unless it is there; do nothing on an object store."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename over what is there. In one step on local disks and HDFS; where the storage cannot (Azure's), the
        target is missing for a moment."""

    @abstractmethod
    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete it, if it is there."""

    @abstractmethod
    def modified_at_ms(self, path: str) -> int | None:
        """Return the time of the last write; None if there is no file."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size of a file, in bytes; None if there is none."""

    @abstractmethod
    def total_size(self, directory: str) -> TotalSize:
        """Return the total size by a recursive listing."""

    @abstractmethod
    def shows_partial_writes(self, path: str) -> bool:
        """Return whether others may see a file here before it is complete."""

    def put(self, path: str, aside: str, content: bytes) -> None:
        """Write a file that appears whole, and replaces what is there.

        Where others see a file before it is complete (disks, HDFS, Azure) it is written aside, then renamed. On other
        object stores a rename is a copy, but an object appears when it is complete: written directly.
        """
        if not self.shows_partial_writes(path):
            self.write(path, content)
            return
        self.write(aside, content)
        self.rename(aside, path)

    @property
    def can_commit(self) -> bool:
        """Whether ``commit`` is possible, if that is known without a try."""
        return False

    def commit(self, path: str, content: bytes, ready: Ready = written) -> bool:
        """Write a file of a Delta log if there is none, so that one of several at once does; return whether it did. It
        appears whole, and after ``ready`` has returned, which is called in any case. Its directory is there; OSError if
        not. As safe as Delta's own commits to this storage.

        Raises NotImplementedError where that is impossible, NoHardLinksError if a local file system is the reason."""
        raise NotImplementedError(f"no file of a Delta log can be put to {path}")

    @property
    def keeps_commits(self) -> bool:
        """Whether a file that ``commit`` has written is safe from every other writer."""
        return True

    def _settled(self, path: str, content: bytes) -> bool:
        """Return whether the file is still ours a moment later."""
        time.sleep(SETTLE_S)
        return self.read(path) == content


def shows_partial_writes_by(scheme: str) -> bool:
    """Return the rule of Delta's log stores; an unknown storage counts as one that shows them."""
    return scheme not in _COMPLETE_WHEN_SEEN


_LONGEST_FILE_NAME = 200
"""The longest name in bytes. File systems take 255, and prefixes and suffixes need some of them."""


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
