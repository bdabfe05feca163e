"""The letters of a table without Spark: looked at, filtered, grouped by error, deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from share_spark.admin.dead_letters import DeadLetters
from share_spark.admin.letters import LetterFilter
from share_spark.delta.table_rows import TableRows
from share_spark.model.errors import ConfigError, DeadLetterError
from share_spark.model.texts import error_pattern
from tests.support.letter_tables import NOON, add_letters, make_letters, row

SOME = [
    [row(0), row(1), row(2, topic="bills", partition=3)],
    [row(3, error=None, reason="rejected", headers=[{"key": "tenant", "value": b"a"}])],
    [row(4, group_id="audit"), row(5, partition=1, error="TimeoutError: 30 s")],
]

CHOSEN: dict[str, tuple[dict[str, Any], list[int]]] = {
    "all": ({}, [5, 4, 3, 2, 1, 0]),
    "a group": ({"group": "audit"}, [4]),
    "a topic": ({"topics": {"bills": []}}, [2]),
    "partitions": ({"topics": {"orders": [1], "bills": [3]}}, [5, 2]),
    "offsets": ({"offsets": (1, 3)}, [3, 2, 1]),
    "a reason": ({"reason": "Reject"}, [3]),
    "an error": ({"error": "timeouterror"}, [5]),
    "a header": ({"header": ("tenant", None)}, [3]),
    "a header's value": ({"header": ("tenant", b"a")}, [3]),
    "another value": ({"header": ("tenant", b"b")}, []),
    "since": ({"since": NOON + timedelta(minutes=4)}, [5, 4]),
    "until": ({"until": NOON + timedelta(minutes=1)}, [0]),
    "all that is said": ({"group": "billing", "topics": {"orders": [0]}, "error": "city"}, [1, 0]),
    "not redriven": ({"redriven": False}, [5, 4, 3, 2, 1, 0]),
    "redriven": ({"redriven": True}, []),
}


@pytest.fixture
def letters(tmp_path: Path) -> DeadLetters:
    return DeadLetters(make_letters(tmp_path / "dead", *SOME))


def offsets(found: DeadLetters, **where: Any) -> list[int]:
    return [letter.offset for letter in found.letters(LetterFilter(**where))]


@pytest.mark.parametrize("case", CHOSEN)
def test_which_letters_are_meant(letters: DeadLetters, case: str) -> None:
    where, expected = CHOSEN[case]
    assert offsets(letters, **where) == expected
    assert letters.count(LetterFilter(**where)).letters == len(expected)
    assert sum(found.count for found in letters.by_error(LetterFilter(**where))) == len(expected)


def test_a_letter_is_as_it_was_written(letters: DeadLetters) -> None:
    (letter,) = letters.letters(LetterFilter(offsets=(3, 3)))
    assert (letter.key, letter.value, letter.value_to_send) == (b"key", b"3", b"3")
    assert letter.headers == (("tenant", b"a"),)
    assert (letter.message, letter.timestamp) == ("rejected", NOON)
    assert (letter.corrected_value, letter.redriven_at, letter.redrive_id) == (None, None, None)
    assert [letter.offset for letter in letters.letters(limit=2)] == [5, 4]


def test_errors_that_differ_in_numbers_are_one(letters: DeadLetters) -> None:
    cities, *others = letters.by_error()
    assert (cities.group_id, cities.error, cities.count) == ("billing", "ValueError: no city #", 3)
    assert (cities.first_seen, cities.last_seen) == (NOON, NOON + timedelta(minutes=2))
    assert (cities.topic, cities.partition, cities.offset) == ("bills", 3, 2)
    assert [(other.group_id, other.error, other.count) for other in others] == [
        ("audit", "ValueError: no city #", 1),
        ("billing", "TimeoutError: # s", 1),
        ("billing", None, 1),
    ]


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        ("order 17 of 2026-01-02", "order # of #-#-#"),
        ("id 0A6F3C1E-77aa-4b5d-9f00-0123456789ab gone", "id # gone"),
        ("at 0x7f3a", "at #"),
        ("commit deadbeef01", "commit #"),
        ("a feedback defaced", "a feedback defaced"),
        ("HTTP503 from v2", "HTTP# from v#"),
    ],
)
def test_what_counts_as_a_number(error: str, pattern: str) -> None:
    assert error_pattern(error) == pattern


def test_a_purge_takes_what_is_meant_and_nothing_else(letters: DeadLetters) -> None:
    assert letters.purge(LetterFilter(error="city", group="billing")) == 3
    assert offsets(letters) == [5, 4, 3]
    assert letters.purge(LetterFilter(error="city", group="billing")) == 0


def test_a_purge_leaves_what_an_engine_appends_meanwhile(
    letters: DeadLetters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_before_the_commit(monkeypatch, lambda: add_letters(tmp_path / "dead", [row(6)]))
    assert letters.purge(LetterFilter(topics={"orders": [0]}, group="billing")) == 3
    assert offsets(letters) == [6, 5, 4, 2]


def append_before_the_commit(monkeypatch: pytest.MonkeyPatch, append: Callable[[], None]) -> None:
    exchanged = TableRows._exchanged
    waiting = [append]

    def late(*given: Any) -> bool:
        while waiting:
            waiting.pop()()
        return exchanged(*given)

    monkeypatch.setattr(TableRows, "_exchanged", late)


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "group": ({"group": "shipping"}, "has no letter of group 'shipping': it has audit, billing"),
    "topic": ({"topics": {"flights": []}}, "has no letter of topic 'flights': it has bills, orders"),
    "partition": ({"topics": {"orders": [0, 7]}}, "has no letter of topic 'orders', partition 7"),
    "topic of the group": ({"group": "audit", "topics": {"bills": []}}, "no letter of topic 'bills': it has orders"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_the_table_does_not_have_is_said(letters: DeadLetters, case: str) -> None:
    where, message = UNKNOWN[case]
    calls: list[Callable[[LetterFilter], object]] = [letters.letters, letters.by_error, letters.count, letters.purge]
    for call in [*calls, letters.plan_redrive]:
        with pytest.raises(ConfigError, match=message):
            call(LetterFilter(**where))


def test_an_empty_table_has_none(tmp_path: Path) -> None:
    letters = DeadLetters(make_letters(tmp_path / "dead"))
    assert (letters.letters(), letters.by_error(), letters.count().letters) == ([], [], 0)
    assert letters.purge(LetterFilter()) == 0
    with pytest.raises(ConfigError, match="has no letter of group 'billing': it is empty"):
        letters.count(LetterFilter(group="billing"))


def test_what_is_no_table_of_letters_is_refused(tmp_path: Path) -> None:
    cases = {
        "no table": "^there is no dead-letter table at ",
        "foreign": "is not a dead-letter table of share_spark$",
        "newer": "was written by a newer share_spark ",
        "incomplete": "^dead-letter table .* its file .* is gone$",
        "damaged": "^dead-letter table .*: .*[Pp]arquet",
    }
    make_letters(tmp_path / "foreign", properties={})
    newer = {"share_spark.table": "dead_letters", "share_spark.format.version": "99"}
    make_letters(tmp_path / "newer", properties=newer)
    for name in ("incomplete", "damaged"):
        make_letters(tmp_path / name, [row(1)])
        (file,) = (tmp_path / name).glob("*.parquet")
        file.unlink() if name == "incomplete" else file.write_bytes(b"PAR1")
    for name, message in cases.items():
        with pytest.raises(DeadLetterError, match=message):
            DeadLetters(str(tmp_path / name)).letters()
    with pytest.raises(ConfigError, match=r"default.dead is a name of the catalog"):
        DeadLetters("default.dead").letters()
