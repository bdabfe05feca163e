"""Times of records in a topic table, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from share_spark import EmbeddedTopicLog, Message
from share_spark.admin.log_ends import EmbeddedEnds
from share_spark.delta.location import Location
from share_spark.model.errors import TopicError

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
BEGIN_MS = round(BEGIN.timestamp() * 1_000)

MINUTES = [0, 1, 2, 9, 3, 4]
"""The records of partition 0 in the order of their offsets, in files of two; partition 1 has none."""


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedTopicLog:
    log = EmbeddedTopicLog(None, str(tmp_path / "topics"))
    log.create_topic("orders", 2)
    for at in range(0, len(MINUTES), 2):
        times = (BEGIN + timedelta(minutes=minutes) for minutes in MINUTES[at : at + 2])
        log.append("orders", [Message(b"x", partition=0, timestamp=time) for time in times])
    return log


@pytest.mark.parametrize(
    ("minutes", "offset"), [(-1, 0), (0, 0), (0.5, 1), (2, 2), (2.001, 3), (4, 3), (9, 3), (9.001, 6)]
)
def test_the_first_record_that_is_not_older(log: EmbeddedTopicLog, tmp_path: Path, minutes: float, offset: int) -> None:
    at_ms = BEGIN_MS + round(minutes * 60_000)
    assert log.offsets_at("orders", at_ms) == {0: offset, 1: 0}
    assert EmbeddedEnds.of(str(tmp_path / "topics")).offsets_at("orders", at_ms) == {0: offset, 1: 0}


def test_records_below_the_log_start_do_not_count(log: EmbeddedTopicLog) -> None:
    log.delete_records("orders", {0: 4})
    assert log.offsets_at("orders", BEGIN_MS) == {0: 4, 1: 0}
    assert log.offsets_at("orders", BEGIN_MS + 5 * 60_000) == {0: 6, 1: 0}


def test_files_that_are_too_old_are_not_opened(log: EmbeddedTopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = pq.ParquetFile.read

    def noted(file: pq.ParquetFile, *arguments: object) -> object:
        read.append("a file")
        return original(file, *arguments)

    monkeypatch.setattr(pq.ParquetFile, "read", noted)
    assert log.offsets_at("orders", BEGIN_MS + 5 * 60_000)[0] == 3
    assert len(read) == 1


def test_a_time_of_less_than_a_millisecond(tmp_path: Path) -> None:
    log = EmbeddedTopicLog(None, str(tmp_path / "topics"))
    log.create_topic("orders", 1)
    log.append("orders", [Message(b"x", timestamp=BEGIN + timedelta(microseconds=1_999))])
    assert [log.offsets_at("orders", BEGIN_MS + ms)[0] for ms in (1, 2)] == [0, 1]


def test_an_unknown_topic(log: EmbeddedTopicLog, tmp_path: Path) -> None:
    with pytest.raises(TopicError, match="'no-such' does not exist"):
        log.offsets_at("no-such", 0)
    with pytest.raises(TopicError, match="'no-such' does not exist"):
        EmbeddedEnds.of(str(Location.parse(str(tmp_path / "topics")))).offsets_at("no-such", 0)
