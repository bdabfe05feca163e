"""The newest letters of a table: how many files are read, and that none is read twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from share_spark.admin import recent_letters
from share_spark.admin.recent_letters import RecentLetters, newest_files
from share_spark.admin.stored_letters import StoredLetters
from share_spark.delta.table_log import ActiveFile
from share_spark.model.errors import DeadLetterError
from share_spark.model.moments import FIRST_MOMENT, LAST_MOMENT
from tests.support.letter_tables import NOON, add_letters, make_letters, row, set_columns


@pytest.fixture
def recent(tmp_path: Path) -> RecentLetters:
    table = make_letters(
        tmp_path / "dead",
        [row(0), row(1), row(2, error="TimeoutError: 30 s")],
        [row(3), row(4, group_id="audit"), row(5, error=None, reason="rejected")],
    )
    return RecentLetters(table)


def test_errors_of_one_group_over_all_files(recent: RecentLetters) -> None:
    found = recent.by_error("billing")
    assert [(one.error, one.count) for one in found.errors] == [
        ("ValueError: no city #", 3),
        ("TimeoutError: # s", 1),
        (None, 1),
    ]
    assert not found.is_cut
    assert recent.by_error("nobody").errors == []


def test_the_newest_letters_of_an_error(recent: RecentLetters) -> None:
    cities, _, rejected = recent.by_error("billing").errors
    assert [letter.offset for letter in recent.letters(cities, 10)] == [3, 1, 0]
    assert [letter.offset for letter in recent.letters(cities, 2)] == [3, 1]
    assert [letter.offset for letter in recent.letters(rejected, 2)] == [5]


def test_a_letter_of_a_record_of_any_year(tmp_path: Path) -> None:
    """A producer that takes microseconds for milliseconds is in the year 58,000."""
    rows = [row(0, timestamp=1_700_000_000_000_000_000), row(1, timestamp=-(2**62)), row(2, timestamp=None)]
    recent = RecentLetters(make_letters(tmp_path / "dead", rows))
    (errors,) = recent.by_error("billing").errors
    times = {letter.offset: letter.timestamp for letter in recent.letters(errors, 10)}
    assert times == {0: LAST_MOMENT, 1: FIRST_MOMENT, 2: None}


def test_a_file_is_read_once_and_a_new_one_is_found(recent: RecentLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    scan = StoredLetters.scan

    def noted(own: StoredLetters, *given: Any) -> Any:
        read.append(given)
        return scan(own, *given)

    monkeypatch.setattr(StoredLetters, "scan", noted)
    recent.by_error("billing")
    recent.by_error("audit")
    assert len(read) == 2
    add_letters(Path(recent.place), [row(7)])
    assert recent.by_error("billing").errors[0].count == 4
    assert len(read) == 3


def test_a_correction_is_seen(recent: RecentLetters) -> None:
    (cities, *_) = recent.by_error("billing").errors
    set_columns(recent.place, 1, corrected_value=b"corrected", redriven_at=NOON, redrive_id="r")
    assert [letter.corrected_value for letter in recent.letters(cities, 2)] == [None, b"corrected"]
    assert recent.by_error("billing").errors[0].redriven == 1


def test_of_a_large_table_only_the_newest_are_read(recent: RecentLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_letters, "MOST_LETTERS", 3)
    found = recent.by_error("billing")
    assert found.is_cut
    assert [(one.error, one.count) for one in found.errors] == [("ValueError: no city #", 1), (None, 1)]


def file(latest: str, *, size: int = 10, letters: int = 1) -> ActiveFile:
    stats = {"numRecords": letters, "maxValues": {"archived_at": latest}}
    return ActiveFile({}, size, True, json.dumps(stats))


def test_which_files_are_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    active = {
        "a": file("2026-01-01T00:00:00.000Z"),
        "b": file("2026-01-03T00:00:00.000Z"),
        "c": ActiveFile({}, 1, True, None, 1_767_400_000_000),
        "d": ActiveFile({}, 1, True, None, 1_767_500_000_000),
    }
    assert newest_files(active) == ["d", "c", "b", "a"]
    monkeypatch.setattr(recent_letters, "MOST_FILES", 2)
    assert newest_files(active) == ["d", "c"]
    assert newest_files({"a": file("2026-01-01T00:00:00.000Z", letters=10**9)}) == ["a"]
    assert newest_files({"a": file("2026-01-01T00:00:00.000Z", size=10**9)}) == []


def test_what_is_no_table_of_letters(tmp_path: Path) -> None:
    with pytest.raises(DeadLetterError, match="there is no dead-letter table at"):
        RecentLetters(str(tmp_path / "none")).check()
