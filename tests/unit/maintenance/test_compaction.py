"""What a compaction is asked for, and when a group counts as left by its engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark import cli
from share_spark.cli.arguments import parse_compaction
from share_spark.cli.config_files import read_order
from share_spark.delta.location import Location
from share_spark.delta.table_maintenance import TableSize
from share_spark.maintenance.compaction import CompactionReport, report_lines
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.maintenance.idle_groups import GroupEvidence
from share_spark.model.errors import ConfigError

STATE = ["compact", "--state", "/lake/queues"]
REFUSED = {
    "no state": (["compact"], "--state is missing"),
    "state's name": (["compact", "--state", "a.b.c.d"], "'a.b.c.d' is neither a path"),
    "empty group": ([*STATE, "--group", " "], "--group is empty"),
    "no duration": ([*STATE, "--idle", "long"], "--idle: not a duration: 'long'"),
    "idle for too short": ([*STATE, "--idle", "59s"], "--idle: 59s is shorter than 1 min, six heartbeats"),
    "history shorter than a lock": (
        [*STATE, "--history-retention", "30m"],
        "--history-retention: 30m is shorter than 60 min, the longest lock",
    ),
    "vacuum shorter than a lock": ([*STATE, "--vacuum-retention", "59m"], "--vacuum-retention: 59m is shorter"),
    "letters shorter than a lock": (
        [*STATE, "--dead-letter", "./letters", "--dead-letter-retention", "1m"],
        "--dead-letter-retention: 1m is shorter",
    ),
    "letters' retention without a table": ([*STATE, "--dead-letter-retention", "30d"], "needs --dead-letter"),
    "records' retention without a table": ([*STATE, "--topic-retention", "30d"], "needs --topic-table"),
    "unknown argument": ([*STATE, "--colour", "red"], "unknown argument --colour"),
    "no such file": ([*STATE, "--config", "none.toml"], "--config none.toml: No such file"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == cli.BAD_INPUT
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "compaction.toml"
    file.write_text('[compaction]\nstate = "/lake/queues"\nidle = "1h"\ndead-letter = "/lake/letters"\n')
    order = parse_compaction(["compact", "--config", str(file), "--idle", "5m", "--dry-run"])
    assert order == CompactionOrder(
        state=Location.parse("/lake/queues"),
        idle_ms=300_000,
        dead_letter=Location.parse("/lake/letters"),
        dry_run=True,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[compact]\n", "unknown table or key 'compact'"),
        ("[compaction]\nidle = 5\n", "idle must be a text"),
        ('[compaction]\nstate = "./s"\nvacum-retention = "7d"\n', "(did you mean 'vacuum-retention'?)"),
        ("[compaction", "not TOML"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "compaction.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        CompactionOrder.parse(read_order(str(file)))
    assert message in str(refused.value)


def test_the_file_of_the_project_is_the_default() -> None:
    file = Path(__file__).parents[3] / "conf" / "compact-share-state.toml"
    assert parse_compaction([*STATE, "--config", str(file)]) == CompactionOrder.parse({"state": "/lake/queues"})


NOW, IDLE = 1_000_000, 60_000


@pytest.mark.parametrize(
    ("written", "beat", "locked_until", "lives"),
    [
        (NOW - IDLE, None, 0, False),
        (NOW - IDLE + 1, None, 0, True),
        (NOW - IDLE, NOW - IDLE, NOW, False),
        (NOW - IDLE, NOW - IDLE + 1, 0, True),
        (NOW - IDLE, None, NOW + 1, True),
    ],
)
def test_commit_heartbeat_and_lock_are_signs_of_life(
    written: int, beat: int | None, locked_until: int, lives: bool
) -> None:
    found = GroupEvidence(
        group_id="billing",
        version=1,
        segment=0,
        batch_id=0,
        updates=1,
        written_at_ms=written,
        locked_until_ms=locked_until,
        beat_at_ms=beat,
    )
    assert found.has_engine(NOW, IDLE) is lives


def test_a_table_that_has_grown_is_explained() -> None:
    order = CompactionOrder(state=Location.parse("/lake/queues"))
    small, large = TableSize(10, 1_000, 7), TableSize(12, 1_500, 7)
    grown = report_lines(CompactionReport(order=order, steps=(), sizes=[("share_state_log", small, large)]))
    assert "is kept for 7 days" in grown[-2]
    shrunk = report_lines(CompactionReport(order=order, steps=(), sizes=[("share_state_log", large, small)]))
    assert shrunk[-1].split()[0] == "share_state_log"
