"""The table at the end of a run."""

from __future__ import annotations

from dataclasses import replace

from share_spark.cli.run_report import RunTotals, summary_lines


def test_throttled_records_have_a_line_if_there_are_some() -> None:
    without = summary_lines(RunTotals(), 1.0)
    (added,) = set(summary_lines(replace(RunTotals(), throttled=1_200), 1.0)) - set(without)
    assert added.split(maxsplit=2) == ["throttled", "1,200", "given back uncounted, to be tried again"]
