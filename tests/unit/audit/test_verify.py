"""What ``share-spark verify`` prints, and what it refuses before a JVM is started."""

from __future__ import annotations

import pytest

from share_spark import cli
from share_spark.audit.verify import PartitionVerdict, VerifyReport, verify_lines


def verdict(partition: int, fault: str | None = None, group_id: str = "billing") -> PartitionVerdict:
    return PartitionVerdict(
        group_id=group_id,
        topic="orders",
        topic_id="t",
        partition=partition,
        segments=partition + 1,
        rows=10,
        fault=fault,
    )


def test_a_line_per_group_and_a_verdict() -> None:
    report = VerifyReport(verdicts=(verdict(0), verdict(1), verdict(0, group_id="shipping")))
    _, *groups, last = verify_lines(report)
    assert [line.split() for line in groups] == [["billing", "2", "2", "20", "0"], ["shipping", "1", "1", "10", "0"]]
    assert "agree" in last
    assert (report.agrees, report.rows) == (True, 30)


def test_faults_are_listed_up_to_a_screenful() -> None:
    report = VerifyReport(verdicts=(verdict(0), *(verdict(n, "segment 0, micro-batch 3: x") for n in range(1, 23))))
    lines = list(verify_lines(report))
    assert lines[2] == "billing orders-1: segment 0, micro-batch 3: x"
    assert lines[-1] == "... and 2 share-partitions more"
    assert not report.agrees


def test_nothing_there() -> None:
    assert list(verify_lines(VerifyReport(verdicts=()))) == ["no share-partition there"]


@pytest.mark.parametrize("bucket", ["50", "-1", "all", "1.5"])
def test_an_unknown_bucket_costs_no_jvm(capsys: pytest.CaptureFixture[str], bucket: str) -> None:
    assert cli.main(["verify", "--location", "./state", f"--bucket={bucket}"]) == cli.BAD_INPUT
    assert f"unknown bucket {bucket}: they are 0 to 49" in capsys.readouterr().err
