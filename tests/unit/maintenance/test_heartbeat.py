"""What an engine says of itself beside the state log, and what is made of its silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from share_spark.maintenance.heartbeat import (
    ALIVE_MS,
    MOST_ERROR_CHARACTERS,
    Beat,
    EndKind,
    EngineEnd,
    Heartbeat,
    SmallFile,
)
from share_spark.spark.public_files import LocalFiles

WRITTEN_MS = 1_763_820_000_000
BEAT = Beat("spark-1", 3, breaker_open_ms=5)


@pytest.mark.parametrize("kind", [EndKind.STOPPED, EndKind.WORKED_OFF, EndKind.FAILED])
def test_the_end_is_what_the_engine_said_last(kind: EndKind) -> None:
    end = EngineEnd(kind, WRITTEN_MS - 7, "SinkError: full" if kind is EndKind.FAILED else "")
    said = Beat.from_text(BEAT.ended_by(end).to_text())
    assert [said.found_end(WRITTEN_MS, silent_ms) for silent_ms in (0, 10 * ALIVE_MS)] == [end, end]
    assert said.breaker_open_ms == 0


def test_who_falls_silent_without_a_word_has_vanished_with_the_last_heartbeat() -> None:
    assert BEAT.found_end(WRITTEN_MS, ALIVE_MS - 1) is None
    assert BEAT.found_end(WRITTEN_MS, ALIVE_MS) == EngineEnd(EndKind.VANISHED, WRITTEN_MS)


@pytest.mark.parametrize("said", [{"ended": True}, {"ended": True, "end": "of a later release"}])
def test_an_end_of_another_release_is_a_stop(said: dict[str, object]) -> None:
    beat = Beat.from_text(json.dumps({"member_id": "spark-1", **said}))
    assert beat.found_end(WRITTEN_MS, 0) == EngineEnd(EndKind.STOPPED, WRITTEN_MS)


def test_an_error_is_one_line_of_bounded_length() -> None:
    said = BEAT.ended_by(EngineEnd(EndKind.FAILED, WRITTEN_MS, "first\n  second " + "x" * 10_000))
    assert said.error.startswith("first second xxx")
    assert len(said.error) == MOST_ERROR_CHARACTERS


def test_the_last_word_is_not_written_over_a_successors(tmp_path: Path) -> None:
    file = SmallFile(str(tmp_path / "billing"), LocalFiles())
    heartbeat = Heartbeat(file=file, say=lambda: "first")
    heartbeat.start()
    file.write("successor")
    heartbeat.close("first, at the end")
    assert file.read() == "successor"
    other = Heartbeat(file=file, say=lambda: "third")
    other.start()
    other.close("third, at the end")
    other.close("again")
    assert file.read() == "third, at the end"
