"""``share-spark history`` without Spark: what is refused, and how its times are written."""

from __future__ import annotations

import pytest

from share_spark import cli
from share_spark.audit.record_events import RecordHistory, history_lines, iso_time

RECORD = {"--location": "./state", "--group": "billing", "--topic": "orders", "--partition": "0", "--offset": "7"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [({name: None}, f"the following arguments are required: {name} (--help lists the options)") for name in RECORD]
    + [
        ({"--offset": "-1"}, "argument --offset: '-1' is not a number from 0 up (--help lists the options)"),
        ({"--partition": "a"}, "argument --partition: 'a' is not a number from 0 up (--help lists the options)"),
        ({"--member": "m"}, "unknown argument --member (--help lists the options)"),
        ({"--location": "a.b.c.d"}, "'a.b.c.d' is neither a path (with a slash) nor a name like schema.table"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], changed: dict[str, str | None], message: str
) -> None:
    given = {**RECORD, **changed}
    arguments = [part for name, value in given.items() if value is not None for part in (name, value)]
    assert cli.main(["history", *arguments]) == cli.FAILED
    assert capsys.readouterr() == ("", f"share-spark: {message}\n")


def test_times_are_utc() -> None:
    assert iso_time(1_767_225_600_500_999) == "2026-01-01T00:00:00.500Z"


@pytest.mark.parametrize(
    ("whole", "finished", "message"),
    [
        (True, False, "it was not acquired yet"),
        (True, True, "it was never acquired, and lies below the start offset now"),
        (False, True, "it lies below the start offset since before the log begins, or was never acquired"),
    ],
)
def test_nothing_known_says_why(whole: bool, finished: bool, message: str) -> None:
    found = RecordHistory(
        group_id="g", topic="t", partition=0, offset=7, events=(), since_us=0, whole=whole, finished=finished
    )
    title, _, line, _, reach = history_lines(found)
    assert (title, line) == ("group g: t, partition 0, offset 7", f"  nothing known: {message}")
    assert reach.startswith("the log of this share-partition goes back to 1970-01-01T00:00:00.000Z")
    assert reach.endswith("its beginning" if whole else "older segments are gone (history.retention)")
