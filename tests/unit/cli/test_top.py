"""The terminal view: what it makes of two looks at groups."""

from __future__ import annotations

import pytest

from share_spark.cli.top import TopicTotals, rows_of


def totals(lag: int | None, finished: int, acquired: int = 0, available: int = 0) -> TopicTotals:
    return TopicTotals(
        state="Stable", engine="running", lag=lag, finished=finished, acquired=acquired, available=available
    )


@pytest.mark.parametrize(
    ("before", "now", "row"),
    [
        (totals(900, 100), totals(700, 300, 50, 7), ("700", "100", "7 s", 50, 7)),
        (totals(900, 100), totals(900, 100), ("900", "0", "-", 0, 0)),
        (totals(5, 100), totals(0, 105), ("0", "2", "0 s", 0, 0)),
        (totals(None, 100), totals(None, 300), ("-", "100", "-", 0, 0)),
        (totals(9_000_000, 0), totals(8_999_000, 1_000), ("8,999,000", "500", "5 h", 0, 0)),
        (totals(0, 500), totals(500, 0), ("500", "0", "-", 0, 0)),
    ],
    ids=["moves", "stands", "ends", "lag not known", "for hours", "reset"],
)
def test_a_row(before: TopicTotals, now: TopicTotals, row: tuple[object, ...]) -> None:
    key = ("billing", "orders")
    assert rows_of({key: before}, {key: now}, 2.0) == [("billing", "Stable", "running", "orders", *row)]


def test_a_topic_that_is_new_has_no_rate_yet() -> None:
    ((*_, rate, _, _, _),) = rows_of({}, {("billing", "orders"): totals(10, 1_000)}, 2.0)
    assert rate == "0"
