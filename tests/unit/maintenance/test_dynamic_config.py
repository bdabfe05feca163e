"""Dynamic group configs: what may be set, what wins, and the file that operators write and engines read."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from share_spark import cli
from share_spark.maintenance.operator_files import DynamicConfigFile, DynamicConfigReader
from share_spark.model.config import DEFAULT_CONFIG, SETTINGS, GroupConfig
from share_spark.model.dynamic_config import ConfigSource, ConfigSynonym, altered, checked, entries, over
from share_spark.model.errors import ConfigError, StateError
from share_spark.spark.public_files import files_without_spark

LOCK, LIMIT, RATE = "share.record.lock.duration.ms", "share.delivery.count.limit", "delivery.rate.limit"
FIXED = {
    "group.share.max.size",
    "group.share.max.groups",
    "group.share.max.share.sessions",
    *(
        f"group.share.{which}.{of}.ms"
        for which in ("min", "max")
        for of in ("record.lock.duration", "session.timeout", "heartbeat.interval")
    ),
    "delivery.order",
    *("share.isolation.level", "share.coordinator.snapshot.update.records.per.snapshot", "state.refresh"),
    *(
        "history.retention",
        "log.retention",
        "compaction.interval",
        "request.timeout.ms",
        "metrics.port",
        "metrics.host",
    ),
}

# ------------------------------------------------------------------------------------------------------------- values


def test_one_spelling_of_each_key_and_value() -> None:
    given = {"group.share.record.lock.duration.ms": "PT1M", LIMIT: 7, RATE: "5"}
    assert checked(given) == {LOCK: "60000", LIMIT: "7", RATE: "5.0"}
    assert checked(checked(given)) == checked(given)


def test_each_default_can_be_said() -> None:
    """What is written is what is read."""
    said = {setting.key: DEFAULT_CONFIG.text(name) for name, setting in SETTINGS.items() if not setting.fixed}
    assert checked(said) == said
    assert over(GroupConfig.parse({LIMIT: 9}), said) == DEFAULT_CONFIG


def test_values_that_fit_only_together_are_said_together() -> None:
    session, beat = "share.session.timeout.ms", "share.heartbeat.interval.ms"
    assert over(DEFAULT_CONFIG, altered({}, {session: "4s", beat: "1s"}, ())).session_timeout_ms == 4_000
    with pytest.raises(ConfigError, match=f"{beat}: 5000 is above {session}, 4000"):
        over(DEFAULT_CONFIG, altered({}, {session: "4s"}, ()))


@pytest.mark.parametrize("key", sorted(FIXED))
def test_what_cannot_change_while_an_engine_runs_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} cannot be set for a running group: \w+"):
        checked({key: "1"})


def test_all_others_can_change() -> None:
    assert {setting.key for setting in SETTINGS.values() if setting.fixed} == FIXED


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("share.delivery.count.limits", "5", "Unknown group config name: share.delivery.count.limits .did you mean"),
        ("colour", "red", "Unknown group config name: colour$"),
        (LOCK, "999", f"{LOCK}: 999 is outside 1000..3600000"),
        (LIMIT, "1", f"{LIMIT}: 1 is outside 2..25"),
    ],
)
def test_r170_what_does_not_fit_is_refused(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked({key: value})


def test_added_and_deleted() -> None:
    now = checked({LOCK: "40s", LIMIT: 3})
    assert altered(now, {LIMIT: "4", RATE: 2}, [LOCK]) == {LIMIT: "4", RATE: "2.0"}
    assert altered(now, {}, ["group.share.delivery.count.limit"]) == {LOCK: "40000"}
    with pytest.raises(ConfigError, match=f"Invalid config.s.: {RATE}$"):
        altered(now, {}, [LOCK, RATE])


def test_dynamic_wins_over_the_job_and_that_over_the_default() -> None:
    job, dynamic = {LOCK: "20000", LIMIT: "7"}, {LOCK: "40000"}
    found = {one.name: one for one in entries(job, dynamic)}
    assert len(found) == len(SETTINGS)
    assert (found[LOCK].value, found[LOCK].source) == ("40000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert found[LOCK].synonyms == (
        ConfigSynonym(ConfigSource.DYNAMIC_GROUP_CONFIG, "40000"),
        ConfigSynonym(ConfigSource.JOB_CONFIG, "20000"),
        ConfigSynonym(ConfigSource.DEFAULT_CONFIG, "30000"),
    )
    assert (found[LIMIT].value, found[LIMIT].source) == ("7", ConfigSource.JOB_CONFIG)
    assert (found[RATE].value, found[RATE].source) == ("0.0", ConfigSource.DEFAULT_CONFIG)
    config = over(GroupConfig.parse(job), dynamic)
    assert (config.lock_duration_ms, config.max_delivery_count, config.rate_limit) == (40_000, 7, 0.0)


def test_values_have_to_fit_to_those_of_the_job() -> None:
    job = GroupConfig.parse({"share.record.redelivery.backoff.policy": "exponential"})
    with pytest.raises(ConfigError, match=r"backoff.ms: 600000 is above"):
        over(job, {"share.record.redelivery.backoff.ms": "600000"})
    assert over(DEFAULT_CONFIG, {"share.record.redelivery.backoff.ms": "600000"}).backoff_ms == 600_000


def test_what_the_job_says_is_what_differs_from_the_default() -> None:
    config = GroupConfig.parse({LOCK: "30s", LIMIT: 7, "share.auto.offset.reset": "by_duration:PT1H"})
    assert config.not_default() == {LIMIT: "7", "share.auto.offset.reset": "by_duration:3600000ms"}
    assert GroupConfig.parse(config.not_default()) == config


# ----------------------------------------------------------------------------------------------------------- the file


@pytest.fixture
def file(tmp_path: Path) -> DynamicConfigFile:
    return DynamicConfigFile.beside(str(tmp_path), "a/group", files_without_spark(str(tmp_path)))


def put(file: DynamicConfigFile, content: str) -> None:
    """As somebody else writes it."""
    Path(file.file.path).parent.mkdir(parents=True, exist_ok=True)
    Path(file.file.path).write_text(content)


class Reading:
    """An engine that reads the file whenever its clock has moved on by a second."""

    def __init__(self, file: DynamicConfigFile, **job: object) -> None:
        self.now_s = 0.0
        self.job = GroupConfig.parse({name.replace("__", "."): value for name, value in job.items()})
        self.reader = DynamicConfigReader(file, self.job, clock=lambda: self.now_s)

    def next(self) -> GroupConfig:
        self.now_s += 1
        return self.reader()


def test_what_was_written_is_read(file: DynamicConfigFile, tmp_path: Path) -> None:
    assert file.read() == {}
    file.write({LOCK: "40000"})
    assert file.read() == {LOCK: "40000"}
    assert [path.name for path in (tmp_path / "_share_spark" / "configs").iterdir()] == ["a%2Fgroup"]
    file.write({})
    assert not Path(file.file.path).exists()


@pytest.mark.parametrize("content", ["nonsense", "[1]", '{"colour": "red"}', '{"metrics.port": "1"}', "7"])
def test_what_somebody_else_has_written_is_refused(file: DynamicConfigFile, content: str) -> None:
    put(file, content)
    with pytest.raises(StateError, match="does not say the configs of a group"):
        file.read()


def test_an_engine_takes_over_what_is_set_and_unset(file: DynamicConfigFile) -> None:
    engine = Reading(file, share__delivery__count__limit=7)
    assert engine.next() == engine.job
    file.write({LIMIT: "3"})
    assert engine.reader().max_delivery_count == 7, "read once a second"
    assert engine.next().max_delivery_count == 3
    file.write({})
    assert engine.next() == engine.job


@pytest.mark.parametrize("broken", ["nonsense", json.dumps({LIMIT: "0"}), json.dumps({LIMIT: "3", "colour": "red"})])
def test_a_broken_file_changes_nothing_and_is_said_once(
    file: DynamicConfigFile, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Reading(file)
    file.write({LIMIT: "4"})
    engine.next()
    put(file, broken)
    with caplog.at_level(logging.WARNING):
        assert [engine.next().max_delivery_count for _ in range(3)] == [4, 4, 4]
    (said,) = caplog.messages
    assert "the settings stay as they are" in said
    file.write({LIMIT: "6"})
    assert engine.next().max_delivery_count == 6


def test_an_engine_that_starts_with_a_broken_file_goes_by_its_job(file: DynamicConfigFile) -> None:
    put(file, "nonsense")
    engine = Reading(file, share__delivery__count__limit=7)
    assert engine.next() == engine.job


def test_what_does_not_fit_to_the_job_changes_nothing(
    file: DynamicConfigFile, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Reading(file, share__record__redelivery__backoff__policy="exponential")
    file.write({"share.record.redelivery.backoff.ms": "600000"})
    assert engine.next() == engine.job
    assert "is above share.record.redelivery.backoff.max.ms" in caplog.text


def test_a_storage_that_does_not_answer_changes_nothing(file: DynamicConfigFile) -> None:
    file.write({LIMIT: "4"})
    engine = Reading(file)
    engine.next()
    Path(file.file.path).unlink()
    Path(file.file.path).mkdir()  # cannot be read
    assert engine.next().max_delivery_count == 4
    with pytest.raises(OSError, match="a%2Fgroup"):
        Reading(file).next()


# -------------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of the arguments --describe --alter is required"),
        (["--describe", "--alter"], "not allowed with argument"),
        (["--alter", "--group", "g"], "At least one of --add-config or --delete-config must be specified with --alter"),
        (["--alter", "--add-config", "a=1"], "Exactly one entity name must be specified for every entity type"),
        (["--alter", "--group", "g", "--entity-name", "h", "--delete-config", "a"], "Exactly one entity name"),
        (["--describe", "--add-config", "a=1"], "Option [describe] does not take the options [add-config]"),
        (["--alter", "--group", "g", "--add-config", "a=1", "--all"], "Option [alter] does not take the options"),
        (["--alter", "--group", "g", "--add-config", "a"], "all configs to be added must be in the format"),
        (["--alter", "--group", "g", "--add-config", "a=,b=1"], "all configs to be added must be in the format"),
        (["--describe", "--entity-type", "topics"], "invalid choice"),
        (["--alter", "--group", "g", "--add-config", "a=1", "--execute", "--dry-run"], "not allowed with argument"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["configs", "--location", str(tmp_path), *arguments]) == cli.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a.b=1, c = x y ,d=[1,2, 3]", {"a.b": "1", "c": "x y", "d": "1,2, 3"}),
        ("a=by_duration:PT1H,b=[x]", {"a": "by_duration:PT1H", "b": "x"}),
        ("a=k=v", {"a": "k=v"}),
    ],
)
def test_pairs_as_kafkas_tool_reads_them(
    text: str, pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[dict[str, str]] = []

    def plan(_admin: object, _group: str, added: dict[str, str], _deleted: list[str]) -> dict[str, str]:
        seen.append(added)
        return added

    monkeypatch.setattr("share_spark.admin.share_group_admin.ShareGroupAdmin.plan_configs", plan)
    assert cli.main(["configs", "--location", str(tmp_path), "--alter", "--group", "g", "--add-config", text]) == 0
    assert seen == [pairs]
