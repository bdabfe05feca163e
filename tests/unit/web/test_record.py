"""One record's life, without Spark: what the log says of it, and how the page shows it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from share_spark.admin import record_life
from share_spark.admin.record_life import read_record_history
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.admin.state_reader import StateReader
from share_spark.audit.record_events import RecordHistory
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.table_log import TableLog
from share_spark.engine.attempts import EndedAttempt
from share_spark.model.errors import ConfigError, StateError
from share_spark.spark.public_files import LocalFiles
from share_spark.state import direct_rows
from share_spark.state.commits import CommitNote
from share_spark.web.record_page import RecordPlace, record_path
from share_spark.web.server import PageSource
from tests.support.group_details import MEMBER, NOW_MS, run
from tests.support.page_elements import Elements
from tests.support.state_logs import StateLog, log_of_ten_acquired, snapshot, update

pytestmark = pytest.mark.usefixtures("row_form")

NASTY = "<b>\"or'ders</b>&"


@pytest.fixture
def log(tmp_path: Path) -> StateLog:
    """Records 0 to 9 are acquired; 3 is released, delivered again, and rejected."""
    log = log_of_ten_acquired(tmp_path)
    log.records(
        update(3, run("Q", 3, 3, 2), run("D", 4, 9)),
        ended=[
            [
                EndedAttempt(0, 2, 1, "accepted"),
                EndedAttempt(3, 3, 1, "released", "<b>busy</b>"),
                EndedAttempt(4, 9, 1, "accepted"),
            ]
        ],
    )
    log.records(update(10), ended=[[EndedAttempt(3, 3, 2, "rejected", "cancelled\n\x1b[2Jnow")]])
    return log


def history(log: StateLog, offset: int, *, topic: str = "orders", partition: int = 0) -> RecordHistory:
    reader = StateReader.open(log.location)
    return read_record_history(reader, group_id="billing", topic=topic, partition=partition, offset=offset)


def events(log: StateLog, offset: int) -> list[tuple[str, int | None, int]]:
    return [(one.event, one.delivery_count, one.written.batch_id) for one in history(log, offset).events]


def test_each_delivery_and_how_it_ended(log: StateLog) -> None:
    assert events(log, 3) == [("acquired", 1, 0), ("released", 1, 1), ("acquired", 2, 1), ("rejected", 2, 2)]
    assert events(log, 0) == [("acquired", 1, 0), ("accepted", 1, 1)]
    assert events(log, 10) == []
    found = history(log, 3)
    assert (found.events[0].member_id, found.finished, found.whole, found.is_cut) == (MEMBER, True, True, False)


def test_each_failure_has_its_error(log: StateLog) -> None:
    assert [one.error for one in history(log, 3).events] == [None, "<b>busy</b>", None, "cancelled\n\x1b[2Jnow"]
    assert [one.error for one in history(log, 4).events] == [None, None]
    assert ShareGroupAdmin(log.location).record_history("billing", "orders", 0, 3) == history(log, 3)


def test_a_restart_reads_no_columns_of_the_audit(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they make a segment too large for it."""
    log.records(update(10), ended=[[EndedAttempt(at, at, 1, "rejected", str(at)) for at in range(100)]])
    table = TableLog.open(CommitFiles(LocalFiles(), log.directory), keeps_files=True)
    monkeypatch.setattr(direct_rows, "MOST_RANGES", 10)
    last = CommitNote("billing", "records", 1, "run1", 0, log.batch_id, log.at_ms)
    rows = pa.concat_tables(direct_rows.rows_by_batch(table, last))
    assert rows.num_rows == 4
    assert not {"ended", "errors"} & set(rows.column_names)


def test_what_a_fenced_engine_appended_does_not_count(log: StateLog) -> None:
    stale = log.batch_id
    log.claim()
    log.epoch, log.segment = 1, 0
    log.records(update(20, run("D", 15, 19)), ended=[[EndedAttempt(15, 19, 1, "accepted")]])
    log.epoch, log.segment, log.batch_id = 2, 1, stale
    log.records(snapshot(10, run("Q", 10, 19)))
    assert events(log, 15) == [("acquired", 1, 3)]


def test_of_a_long_log_the_newest_segments_are_read(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.claim()
    log.records(snapshot(8, run("Q", 8, 12, 3)))
    monkeypatch.setattr(record_life, "MOST_FILES", 3)
    found = history(log, 8)
    assert [(one.event, one.delivery_count) for one in found.events] == [("acquired", 3)]
    assert (found.is_cut, found.whole) == (True, False)
    monkeypatch.setattr(record_life, "MOST_FILES", 1)
    with pytest.raises(StateError, match="cannot be read without Spark: its newest segment is large"):
        history(log, 8)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"topic": "bills"}, "group 'billing' has no topic 'bills'"),
        ({"partition": 7}, "group 'billing' has no partition 7 of topic 'orders'"),
    ],
)
def test_what_the_log_does_not_know(log: StateLog, place: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        history(log, 0, **place)


def source(log: StateLog) -> PageSource:
    return PageSource(ShareGroupAdmin(log.location), lambda: NOW_MS)


def shown(log: StateLog, *place: str) -> tuple[int, str]:
    path, _, query = record_path("billing", RecordPlace(*place)).partition("?")
    status, page = source(log).page(path, query)
    return int(status), page


def test_the_page_of_a_record(log: StateLog) -> None:
    status, page = shown(log, "orders", "0", "3")
    text = Elements(page).text
    assert status == 200
    for said in (
        *("orders, partition 0, offset 3", "released", "rejected", MEMBER, "2025-11-22T14:00:01.020Z"),
        *("<b>busy</b>", "cancelled\\n\\x1b[2Jnow"),
        "The log of this share-partition goes back to 2025-11-22T14:00:01.020Z, its beginning.",
    ):
        assert said in text, said
    assert 'value="3"' in page, "the form asks for the same again"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (("orders", "0", "10"), (200, "Nothing known: it was not acquired yet.")),
        (("orders", "0", "x"), (404, "offset 'x' is not a number from 0 up")),
        (("orders", "-1", "0"), (404, "partition '-1' is not a number from 0 up")),
        (("orders", "0", "9" * 30), (404, f"offset '{'9' * 30}' is not a number from 0 up")),
        (("", "0", "0"), (404, "no topic is given")),
        (("orders", "5", "0"), (404, "group 'billing' has no partition 5 of topic 'orders'")),
        ((NASTY, "0", "0"), (404, "has no topic")),
    ],
)
def test_a_record_that_is_not_known_says_why(log: StateLog, place: tuple[str, ...], said: tuple[int, str]) -> None:
    status, page = shown(log, *place)
    assert (status, said[1] in Elements(page).text) == (said[0], True)
    assert "<b>" not in page


def test_names_in_a_life_are_only_names(tmp_path: Path) -> None:
    log = StateLog(tmp_path / "state")
    log.claim()
    log.records(snapshot(0, run("Q", 0, 9)._replace(member_id=NASTY + "\x1b"), topic=NASTY))
    status, page = shown(log, NASTY, "0", "3")
    assert status == 200
    assert NASTY not in page
    assert "\x1b" not in page
    assert page.count("<b>") == 0


def test_a_group_asks_for_a_record(log: StateLog) -> None:
    _, page = source(log).page("/groups/billing")
    assert '<form id="record" class="fields" action="/groups/billing/record">' in page
    assert "<option>orders</option>" in page
    assert "form-action 'self'" in page
