"""Small files without Hadoop: local paths by Python, others by pyarrow."""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from share_spark.model.errors import ConfigError
from share_spark.spark.files import NoHardLinksError, Ready, StorageFiles, TotalSize, shows_partial_writes_by, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_OF_PYARROW = {"s3a": "s3", "s3n": "s3"}
"""The schemes of Hadoop that have another name in pyarrow."""


def public_files(spark: SparkSession, path: str) -> StorageFiles:
    """Return the files of the storage of ``path``. Raises ConfigError where that is not known: on a cluster a path
    without a scheme is on Hadoop's default file system, which only Hadoop knows."""
    scheme = scheme_of(path)
    if scheme is None and not str(spark.sparkContext.master).startswith("local"):
        raise ConfigError(f"{path}: without Hadoop's file system a path needs its scheme (file:/, s3a:/, ...)")
    return files_without_spark(path)


def files_without_spark(path: str) -> StorageFiles:
    """Return the files of the storage of ``path``; without a scheme it is one of this machine."""
    return LocalFiles() if scheme_of(path) in (None, "file") else ArrowFiles(path)


def scheme_of(path: str) -> str | None:
    """Return the scheme of a path, None if it has none."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else None


def local_path(path: str) -> str | None:
    """Return the path of a local file or directory, for programs other than Spark; None for another scheme."""
    return str(_local(path)) if scheme_of(path) in (None, "file") else None


def create_local(path: str, content: bytes) -> bool:
    """Create a local file, if there is none; return whether it did. Its directory is there."""
    try:
        with Path(path).open("xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def write_durably(path: Path, content: bytes) -> None:
    """Write a file; its content is on the disk when this returns. Its directory is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Put the names in the directory on the disk: a power cut can take a link or a rename that was not synced, and
    leave a later one."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as fault:
        if fault.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a directory
            raise
    finally:
        os.close(descriptor)


def make_durable_directory(directory: Path) -> None:
    """Make the directory, with those above it, unless it is there; its name is on the disk when this returns."""
    if directory.is_dir():
        return
    make_durable_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


@functools.cache
def _beside() -> ThreadPoolExecutor:
    """Return threads for writes beside others: what two of them put on a disk at a time takes little longer than what
    one does. They stay, as a new one takes as long as a write."""
    return ThreadPoolExecutor(thread_name_prefix="share-spark-files")


class LocalFiles(StorageFiles):
    """The files on the disks of this machine."""

    def exists(self, path: str) -> bool:
        return os.path.exists(_local_text(path))  # noqa: PTH110 - some times in each commit; a Path takes longer

    def is_directory(self, path: str) -> bool:
        return _local(path).is_dir()

    def names(self, directory: str) -> list[str]:
        at = _local(directory)
        if not at.is_dir():
            return [at.name] if at.exists() else []
        return [child.name for child in at.iterdir() if not _is_checksum(child.name)]

    def read(self, path: str) -> bytes | None:
        try:
            with open(_local_text(path), "rb", buffering=0) as file:  # noqa: PTH123 - likewise
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, content: bytes) -> None:
        at = _local(path)
        make_durable_directory(at.parent)
        write_durably(at, content)
        sync_directory(at.parent)

    def begin_write(self, path: str, content: bytes) -> Ready:
        try:
            return _beside().submit(self.write, path, content).result
        except RuntimeError:  # the interpreter ends, and begins nothing any more
            return super().begin_write(path, content)

    def create(self, path: str, content: bytes) -> bool:
        at = _local(path)
        at.parent.mkdir(parents=True, exist_ok=True)
        return create_local(str(at), content)

    def make_directory(self, path: str) -> None:
        make_durable_directory(_local(path))

    def rename(self, source: str, target: str) -> None:
        at = _local(target)
        _local(source).replace(at)
        sync_directory(at.parent)

    @property
    def can_commit(self) -> bool:
        return True

    def commit(self, path: str, content: bytes, ready: Ready = written) -> bool:
        at = _local(path)
        aside = at.with_name(f".{at.name}.{uuid.uuid4().hex}.tmp")
        try:
            write_durably(aside, content)
            ready()
            is_made = _linked(aside, at)
            if is_made:
                sync_directory(at.parent)
        finally:
            aside.unlink(missing_ok=True)
        return is_made

    @property
    def keeps_commits(self) -> bool:
        """Whether commits are safe: Delta's own writer looks first, and then renames over what has come between."""
        return False

    def delete(self, path: str, *, recursive: bool = False) -> None:
        at = _local(path)
        if at.is_dir() and recursive:
            shutil.rmtree(at, ignore_errors=True)
        elif at.is_dir():
            at.rmdir()
        else:
            at.unlink(missing_ok=True)

    def modified_at_ms(self, path: str) -> int | None:
        try:
            return _local(path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        try:
            return _local(path).stat().st_size
        except FileNotFoundError:
            return None

    def total_size(self, directory: str) -> TotalSize:
        walk = os.walk(_local(directory))
        found = (f"{at}/{name}" for at, _, names in walk for name in names if not _is_checksum(name))
        # Other programs write beside us: a file may go between the two looks.
        sizes = [size for path in found if (size := self.size(path)) is not None]
        return TotalSize(len(sizes), sum(sizes))

    def shows_partial_writes(self, path: str) -> bool:  # noqa: ARG002 - of any
        return True


class ArrowFiles(StorageFiles):
    """The files of a storage that pyarrow knows, found by ``path``."""

    def __init__(self, path: str) -> None:
        scheme, _, rest = path.partition(":")
        self._scheme = scheme.lower()
        uri = f"{_OF_PYARROW.get(self._scheme, self._scheme)}:{rest}"
        self._files, inside = fs.FileSystem.from_uri(uri)
        self._before = path[: len(path) - len(inside)] if path.endswith(inside) else ""

    def exists(self, path: str) -> bool:
        return self._info(path).type != fs.FileType.NotFound

    def is_directory(self, path: str) -> bool:
        return self._info(path).type == fs.FileType.Directory

    def names(self, directory: str) -> list[str]:
        found = self._files.get_file_info(fs.FileSelector(self._inside(directory), allow_not_found=True))
        return [info.base_name for info in found]

    def read(self, path: str) -> bytes | None:
        try:
            with self._files.open_input_stream(self._inside(path)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        inside = self._inside(path)
        if shows_partial_writes_by(self._scheme):  # an object store has no directories
            self._files.create_dir(inside.rpartition("/")[0], recursive=True)
        with self._files.open_output_stream(inside) as stream:
            stream.write(content)

    def create(self, path: str, content: bytes) -> bool:
        """Create a file. Nothing here checks and creates in one step: of two writers at once, the last one wins."""
        if self.exists(path):
            return False
        self.write(path, content)
        return self._settled(path, content)

    def make_directory(self, path: str) -> None:
        self._files.create_dir(self._inside(path), recursive=True)

    def rename(self, source: str, target: str) -> None:
        """Rename. HDFS and Azure do not move over a file: it is deleted first."""
        try:
            self._files.move(self._inside(source), self._inside(target))
        except OSError:
            self.delete(target)
            self._files.move(self._inside(source), self._inside(target))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        info = self._info(path)
        if info.type == fs.FileType.Directory and recursive:
            self._files.delete_dir(self._inside(path))
        elif info.type != fs.FileType.NotFound:
            self._files.delete_file(self._inside(path))

    def modified_at_ms(self, path: str) -> int | None:
        info = self._info(path)
        return None if info.type == fs.FileType.NotFound else (info.mtime_ns or 0) // 1_000_000

    def size(self, path: str) -> int | None:
        return self._info(path).size

    def total_size(self, directory: str) -> TotalSize:
        selector = fs.FileSelector(self._inside(directory), allow_not_found=True, recursive=True)
        sizes = [info.size or 0 for info in self._files.get_file_info(selector) if info.is_file]
        return TotalSize(len(sizes), sum(sizes))

    def shows_partial_writes(self, path: str) -> bool:  # noqa: ARG002 - of any
        return shows_partial_writes_by(self._scheme)

    def _info(self, path: str) -> fs.FileInfo:
        return self._files.get_file_info(self._inside(path))

    def _inside(self, path: str) -> str:
        """Return the path as the file system names it."""
        return path.removeprefix(self._before).rstrip("/")


def _linked(source: Path, target: Path) -> bool:
    """Link ``target`` to ``source`` if there is no such file; return whether it is linked now. Unlike a rename, a link
    fails where there is a file. NFS repeats a request whose answer was lost, and the repeat finds the result of the
    first one: so the files are checked, not the error.
    Raises NoHardLinksError, OSError.
    """
    try:
        os.link(source, target)
    except OSError as fault:
        if target.exists() and source.samefile(target):
            return True
        if isinstance(fault, FileExistsError):
            return False
        if fault.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise NoHardLinksError(f"no hard links on the file system of {target}") from fault
    return True


def _local(path: str) -> Path:
    return Path(_local_text(path))


def _local_text(path: str) -> str:
    """Return a plain path, or one with the scheme ``file``, which Spark writes as ``file:/`` and as ``file:///``. As in
    Hadoop's ``Path``, it has no escapes."""
    return path if ":/" not in path or scheme_of(path) != "file" else "/" + path.partition(":")[2].lstrip("/")


def _is_checksum(name: str) -> bool:
    """Return whether it is Hadoop's, beside each local file."""
    return name.startswith(".") and name.endswith(".crc")
