"""The programs in ``examples`` do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRINTED = {
    "first_queue": [
        "9 orders are billed",
        "given up after 5 deliveries: ValueError",
    ],
    "calling_a_service": ["200 documents have 200 summaries"],
    "from_foreach_batch": ["2 readings are right", "no degrees", "could not convert string to float: 'hot'"],
    "corrected_dead_letters": ["2 letters: ValueError: invalid literal for int()", "sent=2", "sum: 6140"],
    "order_by_key": ["ann 1 2 3 4 5", "bob 1 2 3 4 5", "eve 1 2 3 4 5"],
}


def test_each_example_is_tried() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*PRINTED, "testing_a_handler"}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_did(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](spark, str(tmp_path))
    printed = capsys.readouterr().out
    for text in PRINTED[name]:
        assert text in printed, printed
