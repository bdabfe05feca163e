"""The file that says what of a group is paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark.engine.pauses import NOT_PAUSED
from share_spark.maintenance.operator_files import PauseFile, PauseReader
from share_spark.model.errors import StateError
from share_spark.spark.public_files import files_without_spark

PAUSES = NOT_PAUSED.paused({"orders": [0]}, 77).paused(None, None)


@pytest.fixture
def file(tmp_path: Path) -> PauseFile:
    return PauseFile.beside(str(tmp_path), "a/group", files_without_spark(str(tmp_path)))


def test_what_was_written_is_read(file: PauseFile) -> None:
    assert file.read() == NOT_PAUSED
    file.write(PAUSES)
    assert file.read() == PAUSES
    file.write(NOT_PAUSED)
    assert not Path(file.file.path).exists()
    assert file.read() == NOT_PAUSED
    file.write(NOT_PAUSED)


def test_the_group_is_one_file(file: PauseFile, tmp_path: Path) -> None:
    file.write(PAUSES)
    assert [path.name for path in (tmp_path / "_share_spark" / "paused").iterdir()] == ["a%2Fgroup"]


@pytest.mark.parametrize("content", ["nonsense", '{"a": 1}', "[1]", '[{"topics": "a"}]'])
def test_what_somebody_else_has_written_pauses_nothing_silently(file: PauseFile, content: str) -> None:
    file.write(PAUSES)
    Path(file.file.path).write_text(content)
    with pytest.raises(StateError, match="does not say what is paused"):
        file.read()


def test_an_engine_reads_it_once_a_second(file: PauseFile) -> None:
    now = [100.0]
    reader = PauseReader(file, clock=lambda: now[0])
    assert reader() == NOT_PAUSED
    file.write(PAUSES)
    now[0] += 0.9
    assert reader() == NOT_PAUSED
    now[0] += 0.1
    assert reader() == PAUSES


def test_a_storage_that_does_not_answer_changes_nothing(file: PauseFile) -> None:
    file.write(PAUSES)
    now = [0.0]
    reader = PauseReader(file, clock=lambda: now[0])
    assert reader() == PAUSES
    Path(file.file.path).unlink()
    Path(file.file.path).mkdir()  # cannot be read
    now[0] = 5.0
    assert reader() == PAUSES
    with pytest.raises(OSError, match="a%2Fgroup"):
        PauseReader(file)()
