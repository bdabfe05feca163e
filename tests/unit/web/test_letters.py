"""Dead letters in the page: of a group by error, and one by one; what is in a record is never markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from share_spark.web.page import report_page
from share_spark.web.pictures import Picture, take_picture
from share_spark.web.repeated_reads import LetterTables
from tests.support.group_details import NOW_MS, details, run, state
from tests.support.letter_tables import make_letters, row
from tests.support.page_elements import Elements
from tests.support.web_pages import MadeUpGroups, served
from tests.unit.web.test_server import got

NASTY = '<script>alert("x")</script>\'&\x1b[2J\x00\u202e'
HUGE = b'{"text": "' + b"x" * 1_000_000 + b'"}'


@pytest.fixture
def groups(tmp_path: Path) -> MadeUpGroups:
    letters = [
        row(0),
        row(1, value=HUGE),
        row(2, error=NASTY, key=NASTY.encode(), value=b"\xff\x00", headers=[{"key": NASTY, "value": NASTY.encode()}]),
        row(3, value=b'{"city": "<b>Z\xc3\xbcrich</b>"}'),
        row(4, group_id="audit", error="KeyError: 'a'"),
    ]
    billing = details({"orders": [state(0, 0, [run("X", 0, 3, 5)])]})
    return MadeUpGroups({"billing": billing}, letters=make_letters(tmp_path / "dead", letters))


def error_links(page: str) -> list[str]:
    return re.findall(r'href="(/groups/[^/"]+/letters/[0-9a-f]{16})"', page)


def test_a_group_shows_its_letters_by_error(groups: MadeUpGroups) -> None:
    with served(groups) as server:
        page = got(server, "/groups/billing").text
    text = Elements(page).text
    for said in (
        *("Dead letters by error", "delivery limit reached: ValueError: no city #", "orders:0:3"),
        *("2026-01-02 12:00:00 UTC", "2026-01-02 12:03:00 UTC"),
    ):
        assert said in text, said
    assert "KeyError" not in text, "of another group"
    assert len(error_links(page)) == 2


def test_an_error_shows_its_letters_with_decoded_values(groups: MadeUpGroups) -> None:
    with served(groups) as server:
        link, _ = error_links(got(server, "/groups/billing").text)
        answer = got(server, link)
        assert got(server, link[:-1] + "_").status == 404
        assert got(server, link.replace("billing", "audit")).status == 404
    text = Elements(answer.text).text
    assert answer.status == 200
    for said in (
        *("orders, partition 0, offset 3", "delivered 5 times", "ValueError: no city 3", "Key (text, 3 bytes)"),
        *('"city": "<b>Zürich</b>"', "Value (JSON, 1,000,012 bytes, the first 4,000 characters)"),
    ):
        assert said in text, said
    assert text.index("offset 3") < text.index("offset 1") < text.index("offset 0"), "the newest first"
    assert len(answer.text) < 40_000, "a huge value is cut"


def test_what_is_in_a_record_is_text_and_steers_nothing(groups: MadeUpGroups) -> None:
    with served(groups) as server:
        _, link = error_links(got(server, "/groups/billing").text)
        page = got(server, link).text
    assert NASTY not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", page)
    assert page.count("<script") == 1
    assert "&lt;script&gt;" in page
    assert "ff 00" in Elements(page).text


def report(groups: MadeUpGroups, tables: LetterTables) -> str:
    picture: Picture = take_picture(
        groups, groups.location, NOW_MS, letters=lambda group_id: tables.in_report(groups, group_id)
    )
    return report_page(picture)


def test_a_report_has_some_letters_of_each_error(groups: MadeUpGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("share_spark.web.repeated_reads.IN_REPORT", 2)
    page = report(groups, LetterTables())
    found = Elements(page)
    assert "orders, partition 0, offset 3" in found.text
    assert "1 older ones are not in this report." in found.text
    assert "offset 0" not in found.text
    assert "<script" not in page
    assert "/letters/" not in page, "there is no server"


def test_where_the_letters_are_not_known_or_not_readable(groups: MadeUpGroups, tmp_path: Path) -> None:
    assert "there is no dead-letter table at /nowhere" in report(groups, LetterTables("/nowhere"))
    empty = LetterTables(make_letters(tmp_path / "empty"))
    assert f"None in {empty.table}." in report(groups, empty)
    groups.letters = None
    assert "--dead-letter names it" in report(groups, LetterTables())
