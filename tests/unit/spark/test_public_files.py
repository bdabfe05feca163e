"""Files of a storage that are looked at without Spark, while others write there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from share_spark.spark.public_files import LocalFiles


def test_a_file_that_goes_while_the_sizes_are_added_up_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_bytes(b"12345")
    (tmp_path / "goes.tmp").write_bytes(b"123")
    walk = os.walk

    def walked(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        found = list(walk(directory))
        (tmp_path / "goes.tmp").unlink()
        yield from found

    monkeypatch.setattr("share_spark.spark.public_files.os.walk", walked)
    assert LocalFiles().total_size(str(tmp_path)) == (1, 5)


def test_files_are_written_also_while_the_interpreter_ends(tmp_path: Path) -> None:
    program = f"""
import atexit
from share_spark.spark.public_files import LocalFiles
write = LocalFiles().begin_write
write("{tmp_path}/before", b"1")()
atexit.register(lambda: write("{tmp_path}/after", b"2")())
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [(tmp_path / name).read_bytes() for name in ("before", "after")] == [b"1", b"2"]
