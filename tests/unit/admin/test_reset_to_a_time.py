"""Offsets that are reset to a time, for topics in a Delta table: without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from share_spark import EmbeddedTopicLog, Message, ShareGroupAdmin
from share_spark.admin.group_changes import NewOffset
from share_spark.cli import main
from share_spark.model.ids import SharePartitionKey

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def test_the_group_begins_at_the_first_record_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topics, state = str(tmp_path / "topics"), str(tmp_path / "state")
    log = EmbeddedTopicLog(None, topics)
    log.create_topic("orders", 1)
    log.append("orders", [Message(b"x", timestamp=BEGIN + timedelta(minutes=minute)) for minute in range(10)])
    admin = ShareGroupAdmin(state)
    key = SharePartitionKey("billing", log.describe("orders").topic_id, 0)
    admin.reset_offsets([NewOffset(key=key, topic="orders", offset=9, state_epoch=0)])
    command = ["groups", "--location", state, "--topic-table", topics, "--group", "billing", "--reset-offsets"]
    command += ["--all-topics", "--to-datetime", "2026-03-01T00:03:30.000"]
    assert main(command) == 0
    assert ["billing", "orders", "0", "4"] in map(str.split, capsys.readouterr().out.splitlines())
    assert [one.start_offset for one in admin.describe_offsets("billing")] == [9]
    assert main([*command, "--execute"]) == 0
    assert [one.start_offset for one in admin.describe_offsets("billing")] == [4]
