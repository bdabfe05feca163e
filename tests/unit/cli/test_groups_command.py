"""`share-spark groups` on a state made without Spark: what is refused, in one line, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark import cli
from share_spark.admin.share_group_admin import ShareGroupAdmin
from tests.support.state_logs import StateLog, log_of_ten_acquired

GROUP = ["--group", "billing"]
NO_TOPIC, NO_PARTITION = "group 'billing' has no topic 'bills'", "group 'billing' has no partition 9 of topic 'orders'"


@pytest.fixture
def log(tmp_path: Path) -> StateLog:
    return log_of_ten_acquired(tmp_path)


def contents(log: StateLog) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path(log.location).rglob("*") if path.is_file()}


REFUSED = {
    "list, a verb's option": (["--list", "--verbose", "--execute"], "[list] does not take the options [execute], [ver"),
    "list, 0": (["--list", "--shift-by", "0"], "Option [list] does not take the option [shift-by]"),
    "describe, topic": (["--describe", *GROUP, "--topic", "orders"], "[describe] does not take the option [topic]"),
    "describe, start": (["--describe", *GROUP, "--to-latest"], "[describe] does not take the option [to-latest]"),
    "describe, both": (["--describe", *GROUP, "--all-groups"], "Option [all-groups] does not take the option [group]"),
    "delete, both": (["--delete", *GROUP, "--all-groups"], "Option [all-groups] does not take the option [group]"),
    "delete, topic": (["--delete", *GROUP, "--topic", "orders"], "[delete] does not take the option [topic]"),
    "delete, none": (["--delete"], "Option [delete] takes one of these options: [all-groups], [group]"),
    "reset, all groups": (["--reset-offsets", "--all-groups"], "[reset-offsets] does not take the option [all-groups]"),
    "reset, both": (
        ["--reset-offsets", *GROUP, "--topic", "orders", "--all-topics", "--to-latest"],
        "Option [all-topics] does not take the option [topic]",
    ),
    "reset, no start": (["--reset-offsets", *GROUP, "--all-topics"], "takes one of these options: [to-earliest]"),
    "delete of a partition": (
        ["--delete-offsets", *GROUP, "--topic", "orders:0"],
        "Option [delete-offsets] takes whole topics, not partitions: --topic orders",
    ),
    "pause, json": (["--pause", *GROUP, "--json"], "Option [pause] does not take the option [json]"),
    "pause, no topic": (["--pause", *GROUP, "--topic", "bills"], NO_TOPIC),
    "resume, no topic": (["--resume", *GROUP, "--topic", "bills"], NO_TOPIC),
    "resume, no partition": (["--resume", *GROUP, "--topic", "orders:9"], NO_PARTITION),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_line(log: StateLog, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(log)
    arguments, said = REFUSED[case]
    takes_execute = "--execute" in arguments or arguments[0] in ("--list", "--describe")
    assert (
        cli.main(["groups", "--location", log.location, *arguments, *([] if takes_execute else ["--execute"])])
        == cli.FAILED
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert contents(log) == before


def test_offset_0_is_an_offset(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    """So is a shift by 0; what is missing is said by what comes next."""
    for start in (["--to-offset", "0"], ["--shift-by", "0"]):
        assert (
            cli.main(["groups", "--location", log.location, "--reset-offsets", *GROUP, "--all-topics", *start])
            == cli.FAILED
        )
        (line,) = capsys.readouterr().err.splitlines()
        assert "where the topics are is not known" in line


def test_what_is_paused_and_was_deleted_can_be_resumed(log: StateLog, capsys: pytest.CaptureFixture[str]) -> None:
    admin = ShareGroupAdmin(log.location)
    admin.set_pauses("billing", admin.pauses("billing").paused({"bills": [3]}, None))
    command = ["groups", "--location", log.location, "--resume", *GROUP, "--execute"]
    for topic, left in (("bills:4", None), ("bills", "nothing")):
        assert cli.main([*command, "--topic", topic]) == (cli.FAILED if left is None else 0)
        shown = capsys.readouterr()
        assert (NO_TOPIC if left is None else left) in shown.out + shown.err
