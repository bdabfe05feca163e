"""Directories of ledgers: one for each member of a group, in it one for the present delivery, in it a file per task.

    <state log>/_share_spark/ledgers/<group>/<member>/boot          boot id of the machine that wrote here
                                                     /stop          is there once its workers are to stop
                                                     /<delivery>/<task>

They are beside the state if that is on a file system that all machines of the job see as files, so that a repeat of a
task finds the ledger on any machine, and the next engine finds those of the one before. Otherwise, and if such a file
system does not support mapped memory, they are in the machine's directory for temporary files: then only a repeat on
the same machine finds them, and the next engine only in local mode.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from share_spark.delivery.ledger import CallLedger
from share_spark.model.errors import StateError, is_of_storage
from share_spark.spark.files import group_file_name

KEPT_RECORDS = "kept"
LEDGERS = "ledgers"
"""The directory of the ledgers, beside the journals; unlike a journal entry, a ledger left there is no unfinished
work."""

_MOST_TRIES = 3

_BOOT, _STOP_SIGN = "boot", "stop"

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPlace:
    """``shared``: the directory that all machines see, None if there is none. ``one_machine``: there is only one."""

    group: str
    member_id: str
    shared: str | None = None
    one_machine: bool = True

    @classmethod
    def beside(
        cls, table_directory: str, log_id: str, group_id: str, member_id: str, *, one_machine: bool
    ) -> LedgerPlace:
        """Return the place for a state log in ``table_directory``."""
        path = table_directory.removeprefix("file:")
        is_file_path = "://" not in path and ":/" not in path
        shared = f"{path.rstrip('/')}/_share_spark/{LEDGERS}" if is_file_path else None
        name = group_file_name(group_id)
        return cls(
            group=name if shared else f"{log_id}/{name}", member_id=member_id, shared=shared, one_machine=one_machine
        )

    @property
    def outlives_us(self) -> bool:
        """Whether the next engine, or a driver that was not on the worker's machine, can find the files."""
        return self.shared is not None or self.one_machine

    def start(self) -> None:
        """Write the boot id. While it is there, workers may begin calls, and a missing ledger means that no record was
        entered."""
        if self.outlives_us:
            own = self._group_directory() / self.member_id
            own.mkdir(parents=True, exist_ok=True)
            (own / _BOOT).write_text(_boot_id())

    @property
    def kept_directory(self) -> str | None:
        """The directory where workers may keep records for this engine; all of them and the driver see it. None if
        there is none."""
        if not self.outlives_us:
            return None
        return str(self._group_directory(KEPT_RECORDS) / self.member_id)

    def show_stop_sign(self, member_id: str) -> None:
        """Tell the workers of a member to begin no more calls, and to wait for nothing, if that is possible; those that
        do not see it go on to their end."""
        own = self._group_directory() / member_id
        if self.outlives_us and own.is_dir():
            with suppress(OSError):
                (own / _STOP_SIGN).touch()

    def is_stopping(self) -> bool:
        """Return whether a worker of this engine is to stop: the engine stops, or another one has taken its place, and
        perhaps has removed what was left of it."""
        own = self._group_directory() / self.member_id
        # Not whether the directory is there: a task that begins late makes it anew.
        return self.outlives_us and ((own / _STOP_SIGN).exists() or not (own / _BOOT).exists())

    def clear(self) -> None:
        """Remove the ledgers: the last delivery is over."""
        if self.outlives_us:
            for found in self.deliveries(self.member_id):
                shutil.rmtree(found, ignore_errors=True)

    def open(self, delivery: str, task: int, topic: str | None) -> tuple[CallLedger, bool]:
        """Open the ledger of a task, on a worker. Also return whether a ledger that an attempt on another machine left
        would have been found. Raises StateError: the disk is full."""
        for root, is_sure in self._roots():
            own = Path(root) / self.group / self.member_id
            try:
                ledger = CallLedger(own / delivery / str(task), topic)
            except OSError as fault:  # a shared file system may support neither locks nor mapped memory
                if is_of_storage(str(fault)):
                    raise StateError(f"the ledgers in {own} cannot be written: {fault.strerror}") from fault
                if root == _local_root():
                    raise
                continue
            if root == _local_root() and not (self.shared is None and self.one_machine):
                _keep_only(own, delivery)
            return ledger, is_sure
        raise AssertionError("unreachable")

    def directory(self, delivery: str) -> Path:
        """Return the directory of the ledgers that a process beside the driver is to write. Raises StateError."""
        ledger, _ = self.open(delivery, 0, None)  # where locks work
        ledger.close()
        for file in (ledger.path, ledger.beside("lock")):
            file.unlink()
        return ledger.path.parent

    def others(self) -> Iterator[str]:
        """Yield members whose ledgers can be trusted: written since the machine was started. Mapped memory that was not
        yet on disk is lost when the machine itself stops."""
        directory = self._group_directory()
        if not self.outlives_us or not directory.is_dir():
            return
        for found in sorted(directory.iterdir()):
            boot = found / _BOOT
            if found.name != self.member_id and boot.exists() and boot.read_text() == _boot_id():
                yield found.name

    def deliveries(self, member_id: str) -> list[Path]:
        """Return the directories of the deliveries of a member: the last one."""
        own = self._group_directory() / member_id
        return [found for found in own.iterdir() if found.is_dir()] if own.is_dir() else []

    def last_deliveries(self) -> list[tuple[str, Path]]:
        """Return (member, directory of its last delivery) of the others, the last one first."""
        found = [(member, at) for member in self.others() for at in self.deliveries(member)]
        return sorted(found, key=lambda one: one[1].stat().st_mtime_ns, reverse=True)

    def may_take_over(self, member_id: str) -> bool:
        """Count a try to take over the finished calls of a member, and return whether it is one of the first. If they
        bring down each engine that reads them, the next one begins without."""
        with (self._group_directory() / member_id / "taken").open("ab") as tries:
            tries.write(b".")
            return tries.tell() <= _MOST_TRIES

    def all_others(self) -> list[str]:
        """Return members that have left anything."""
        directory = self._group_directory()
        if not self.outlives_us or not directory.is_dir():
            return []
        return [found.name for found in directory.iterdir() if found.name != self.member_id]

    def forget(self, members: Iterable[str]) -> None:
        """Remove what they have left."""
        for member in members:
            for purpose in (LEDGERS, KEPT_RECORDS):
                shutil.rmtree(self._group_directory(purpose) / member, ignore_errors=True)

    def _group_directory(self, purpose: str = LEDGERS) -> Path:
        return Path(self.shared or _local_root()).with_name(purpose) / self.group

    def _roots(self) -> Iterator[tuple[str, bool]]:
        if self.shared is not None:
            yield self.shared, True
        yield _local_root(), self.one_machine


def task_files(delivery: Path) -> list[Path]:
    """Return the ledgers of a delivery."""
    return sorted(found for found in delivery.iterdir() if found.name.isdigit())


def _keep_only(own: Path, delivery: str) -> None:
    """Remove the ledgers of earlier deliveries: workers do this in directories that the driver cannot reach."""
    for found in own.iterdir():
        if found.is_dir() and found.name != delivery:
            shutil.rmtree(found, ignore_errors=True)


def _local_root() -> str:
    return f"{tempfile.gettempdir()}/share_spark-{os.getuid()}/{LEDGERS}"


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
