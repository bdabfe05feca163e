"""The jobs under ``conf/`` for schedulers: the commands in them are understood."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from share_spark.cli.arguments import parse_compaction, parse_job

CONF = Path(__file__).parents[3] / "conf"
VALUES = {"handler": "tests.unit.project.test_deployments:accept", "catalog": "main", "schema": "queues"}
"""Of the bundle's variables; any other is its own name."""


def accept(_record: object) -> None:
    """A handler, for the bundle."""


def bundle_commands() -> Iterator[Sequence[str]]:
    for path in sorted((CONF / "databricks" / "resources").glob("*.yml")):
        for job in yaml.safe_load(path.read_text())["resources"]["jobs"].values():
            for task in job["tasks"]:
                assert task["python_wheel_task"]["entry_point"] == "share-spark"
                yield [substituted(text) for text in task["python_wheel_task"]["parameters"]]


def substituted(text: str) -> str:
    return re.sub(r"\$\{var\.(\w+)\}", lambda found: VALUES.get(found[1], found[1]), text)


def kubernetes_commands() -> Iterator[Sequence[str]]:
    for manifest in yaml.safe_load_all((CONF / "kubernetes" / "share-group.yaml").read_text()):
        spec: Mapping[str, Any] = manifest["spec"].get("template", manifest["spec"])
        command = {"run_share_group.py": "run", "compact_share_state.py": "compact"}
        program = Path(spec["mainApplicationFile"].removeprefix("local://"))
        assert (CONF.parent / "jobs" / program.name).exists()
        yield [
            command[program.name],
            *(text.replace("my_project.billing:bill", VALUES["handler"]) for text in spec["arguments"]),
        ]


def systemd_commands() -> Iterator[Sequence[str]]:
    for path in sorted((CONF / "systemd").glob("*.service")):
        (line,) = re.findall(r"^ExecStart=.*/share-spark (.*)$", path.read_text(), re.MULTILINE)
        yield shlex.split(line)


@pytest.mark.parametrize("command", [*bundle_commands(), *kubernetes_commands()], ids=" ".join)
def test_a_command_is_understood(command: Sequence[str]) -> None:
    if command[0] == "run":
        assert parse_job(command).starting == "earliest"
    else:
        parse_compaction(command)


def test_the_units_run_what_there_is(tmp_path: Path) -> None:
    compaction, run = systemd_commands()
    parse_compaction(compaction)
    config = tmp_path / "billing.toml"
    config.write_text(
        f'[job]\ngroup = "billing"\ntopic = ["orders"]\nhandler = "{VALUES["handler"]}"\n'
        'topic-table = "/lake/topics"\nstate = "/lake/queues"\n'
    )
    assert parse_job([text.replace("/etc/share_spark/%i.toml", str(config)) for text in run]).group == "billing"


def test_each_variable_of_the_bundle_is_used_and_each_used_one_is_there() -> None:
    bundle = (CONF / "databricks" / "databricks.yml").read_text()
    used = set(re.findall(r"\$\{var\.(\w+)\}", "".join(p.read_text() for p in (CONF / "databricks").rglob("*.yml"))))
    assert used == set(yaml.safe_load(bundle)["variables"])
