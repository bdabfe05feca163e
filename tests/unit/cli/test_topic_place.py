"""Where topics are: the command line wins over the file of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from share_spark.cli.arguments import TopicPlace, parsed, topic_place
from share_spark.model.errors import ConfigError

KAFKA = '[job]\nbootstrap-server = "b:1"\n[kafka]\n"client.id" = "billing"\n'
TABLE = '[job]\ntopic-table = "/lake/topics"\n'


def place(tmp_path: Path, text: str, *arguments: str) -> TopicPlace:
    file = tmp_path / "job.toml"
    file.write_text(text)
    return topic_place(parsed(["groups", "--list", "--location", "/lake", "--config", str(file), *arguments]))


@pytest.mark.parametrize(
    ("text", "arguments", "options", "table"),
    [
        ("", [], None, None),
        (KAFKA, [], {"bootstrap.servers": "b:1", "client.id": "billing"}, None),
        (KAFKA, ["--bootstrap-server", "c:2"], {"bootstrap.servers": "c:2", "client.id": "billing"}, None),
        (KAFKA, ["--kafka-option", "client.id=x"], {"bootstrap.servers": "b:1", "client.id": "x"}, None),
        (KAFKA, ["--topic-table", "/t"], None, "/t"),
        (TABLE, [], None, "/lake/topics"),
        (TABLE, ["--topic-table", "/t"], None, "/t"),
        (TABLE, ["--bootstrap-server", "c:2"], {"bootstrap.servers": "c:2"}, None),
    ],
)
def test_the_command_line_wins(
    tmp_path: Path, text: str, arguments: list[str], options: dict[str, str] | None, table: str | None
) -> None:
    found = place(tmp_path, text, *arguments)
    assert (None if found.kafka is None else dict(found.kafka.values), found.topic_table) == (options, table)


def test_both_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose where the topics are"):
        place(tmp_path, "", "--bootstrap-server", "c:2", "--topic-table", "/t")
    with pytest.raises(ConfigError, match="No such file"):
        topic_place(parsed(["groups", "--list", "--location", "/lake", "--config", str(tmp_path / "none")]))
