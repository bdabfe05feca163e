"""A group over time: what the rows of its log say of each micro-batch, and the charts of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from share_spark.admin import group_series
from share_spark.admin.group_series import GroupSeries, MicroBatchTotals
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.admin.state_reader import StateReader
from share_spark.delta.table_log import TableLog
from share_spark.engine.attempts import EndedAttempt
from share_spark.model.errors import StateError
from share_spark.state.direct_rows import tables_of
from share_spark.web.charts import chart_html, charts
from share_spark.web.pictures import LagAt, SeriesPicture
from share_spark.web.server import PageSource
from tests.support.group_details import NOW_MS, details, run, state
from tests.support.page_elements import Elements
from tests.support.state_logs import BEGAN_MS, StateLog, snapshot, update
from tests.support.web_pages import MadeUpGroups

pytestmark = pytest.mark.usefixtures("row_form")

ENDED = (
    EndedAttempt(0, 2, 1, "accepted"),
    EndedAttempt(3, 3, 1, "released"),
    EndedAttempt(4, 4, 1, "rejected"),
    EndedAttempt(5, 9, 1, "not entered"),
)


@pytest.fixture
def log(tmp_path: Path) -> StateLog:
    """Of ten records three are accepted, one is released and acquired again, one is rejected, five are given back."""
    log = StateLog(tmp_path / "state")
    log.claim()
    log.records(snapshot(0, run("Q", 0, 9)))
    log.records(update(3, run("Q", 3, 3, 2), run("X", 4, 4), run("V", 5, 9, 0)), ended=[ENDED], seconds=2)
    return log


def read(log: StateLog, series: GroupSeries | None = None) -> list[MicroBatchTotals]:
    return list((series or GroupSeries("billing")).read(StateReader.open(log.location)))


def test_what_each_micro_batch_did(log: StateLog) -> None:
    plain = {"finished": 0, "again": 0, "accepted": 0, "released": 0, "archived": 0, "available": 0}
    first, second = read(log)
    assert first == MicroBatchTotals(**plain, at_ms=BEGAN_MS + 1_000, took_ms=None, acquired=10)
    assert second == MicroBatchTotals(
        at_ms=BEGAN_MS + 3_000,
        took_ms=2_000,
        finished=4,
        again=1,
        accepted=3,
        released=1,
        archived=1,
        available=5,
        acquired=1,
    )


def test_each_file_is_read_once_and_what_retention_drops_stays(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    def noted(table: TableLog, some: list[str], columns: pa.Schema) -> Iterator[pa.Table]:
        paths.extend(some)
        return tables_of(table, some, columns)

    monkeypatch.setattr(group_series, "tables_of", noted)
    series = GroupSeries("billing")
    assert len(read(log, series)) == 2
    log.claim()
    log.records(snapshot(3, run("Q", 3, 9)))
    monkeypatch.setattr(group_series, "MOST_FILES", 2)
    assert [one.acquired for one in read(log, series)] == [10, 1, 7]
    assert len(paths) == len(set(paths)) == 5
    assert [one.acquired for one in read(log)] == [7], "a new look reads the newest segments"
    assert [one.took_ms for one in read(log, series)] == [None, 2_000, None], "another engine"


def test_a_share_partition_that_is_gone_is_not_counted_any_more(log: StateLog) -> None:
    log.records(snapshot(0, run("V", 0, 49), partition=1))
    log.claim()
    log.records(snapshot(3, run("Q", 3, 9)))
    assert [one.available for one in read(log)] == [0, 5, 55, 0]


def test_a_stale_append_is_not_counted(log: StateLog) -> None:
    batch_id = log.batch_id
    log.claim()
    log.epoch, log.segment = 1, 0
    log.records(update(10))
    log.epoch, log.segment, log.batch_id = 2, 1, batch_id
    log.records(snapshot(3, run("Q", 3, 9)))
    assert [one.finished for one in read(log)] == [0, 4, 0]


def test_a_log_that_is_too_large_says_so(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_series, "MOST_ROWS", 1)
    with pytest.raises(StateError, match="the log of group 'billing' is not read here: it has many rows"):
        read(log)
    monkeypatch.setattr(group_series, "MOST_BYTES", 10)
    with pytest.raises(StateError, match="the log of group 'billing' is not read here: its newest segment is large"):
        read(log)
    _, page = PageSource(ShareGroupAdmin(log.location), lambda: NOW_MS).page("/groups/billing")
    assert "is not read here" in Elements(page).text


def totals(second: int, **numbers: int) -> MicroBatchTotals:
    plain = dict.fromkeys(MicroBatchTotals._fields, 0)
    return MicroBatchTotals(**{**plain, "took_ms": None, "at_ms": second * 1_000, **numbers})


def drawn(*found: MicroBatchTotals, lags: tuple[LagAt, ...] = ()) -> dict[str, dict[str, list[float | None]]]:
    series = SeriesPicture(micro_batches=found, lags=lags)
    return {chart.title: {line.name: list(line.values) for line in chart.lines} for chart in charts(series)}


def test_a_column_has_a_rate_a_last_or_a_greatest_value() -> None:
    found = drawn(totals(0, acquired=9), totals(1, finished=20, took_ms=900), totals(3, finished=6, took_ms=2_000))
    assert found == {
        "Records per second": {"finished": [0, 20, 0, 6], "acquired again": [0, 0, 0, 0]},
        "Records in the windows": {"acquired": [9, 0, 0, 0], "available": [0, 0, 0, 0]},
        "Time of a micro-batch": {"slowest": [None, 900, None, 2_000]},
    }


def test_with_history_the_outcomes_are_drawn() -> None:
    found = drawn(totals(0, accepted=5, finished=5), totals(600, released=60))
    rates = found["Records per second"]
    assert set(rates) == {"accepted", "released", "archived"}
    assert len(rates["accepted"]) <= 60, "wider columns for a longer time"
    assert sum(rate or 0 for rate in rates["released"]) == pytest.approx(60 / 10.001, abs=0.01)


def test_where_there_is_nothing_to_draw() -> None:
    assert drawn() == {}
    assert drawn(totals(0)) == {}
    assert drawn(lags=(LagAt(0, None), LagAt(5_000, 7))) == {}


def test_the_lag_is_what_was_seen() -> None:
    (lag,) = drawn(lags=(LagAt(0, 7), LagAt(1_000, None), LagAt(3_000, 4))).values()
    assert lag == {"lag": [7, 7, 7, 4]}


def test_a_chart_says_what_it_shows() -> None:
    series = SeriesPicture(micro_batches=[totals(0), totals(1, finished=1_200, took_ms=1_000), totals(2)])
    rates, _, took = (chart_html(chart) for chart in charts(series))
    assert Elements(rates).texts[:4] == ["Records per second ", "finished", "acquired again", "max 1,200"]
    assert 'aria-label="Records per second: at most 1,200, from 1970-01-01 00:00:00 UTC to' in rates
    assert "<title>1970-01-01 00:00:01 UTC\nfinished: 1,200\nacquired again: 0</title>" in rates
    assert '<polyline class="d" points="0,59 10,59 10,4 20,4 20,59 30,59"/>' in rates
    assert '<polyline class="q" points="10,4 20,4"/>' in took, "what is not known is not drawn"


def test_an_open_page_gathers_the_lag() -> None:
    groups = MadeUpGroups({"billing": details({"orders": [state(0, 0, [run("Q", 0, 9)])]})})
    source = PageSource(groups, groups.clock)
    for _ in range(2):
        assert "Lag, since this server looks" not in source.page("/groups/billing")[1]
    assert "Lag, since this server looks" in source.page("/groups/billing")[1]
