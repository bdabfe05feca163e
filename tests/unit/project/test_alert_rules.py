"""The alert rules as Prometheus' own promtool sees them, and that each of them is seen firing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[3] / "conf"
RULES = CONF / "exporter-alert-rules.yml"
CASES = Path(__file__).with_name("exporter_alerts.yml")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool on this machine: `make promtool` installs Debian's"
)


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
@pytest.mark.parametrize("name", ["exporter-alert-rules.yml", "alert-rules.yml"])
def test_the_rules_are_understood(name: str) -> None:
    assert "SUCCESS" in promtool("check", "rules", str(CONF / name))


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", str(CASES))


def test_each_alert_is_seen_firing_and_not_firing() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    found = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    for is_firing in (True, False):
        assert {case["alertname"] for case in found if ("exp_alerts" in case) is is_firing} == alerts
