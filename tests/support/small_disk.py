"""A disk of a megabyte, to be full, or read-only. Needs root on Linux."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, size: str = "1m") -> Iterator[Path]:
    """A tmpfs in ``directory``. Skips the test where it cannot be mounted."""
    directory.mkdir()
    _mount("-o", f"size={size}", directory)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=False)


def fill(disk: Path) -> None:
    """To the last byte."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while file.write(b"x" * 4_096):
            pass


def make_read_only(disk: Path) -> None:
    """It stays so."""
    _mount("-o", "remount,ro", disk)


def _mount(*arguments: str | Path) -> None:
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
