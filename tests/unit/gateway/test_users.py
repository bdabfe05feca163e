"""The file of users: how it is written, read, read again, and what is wrong in it."""

from __future__ import annotations

import io
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from share_spark import cli
from share_spark.gateway import users as users_module
from share_spark.gateway.access import EVERYTHING, Rules
from share_spark.gateway.users import User, Users, UsersFile, parse_users, read_users, users_text
from share_spark.model.errors import ConfigError

SECRET = "hunter2"


@pytest.fixture(scope="module")
def one() -> Users:
    return Users.none().with_user('al "ice" ½', User.of(SECRET.encode(), EVERYTHING))


def test_what_is_written_is_read(one: Users) -> None:
    assert parse_users(users_text(one)) == one
    assert SECRET not in users_text(one)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("decoy = ", "decoi = "), "the file: unknown key 'decoi'"),
        (('decoy = "', 'decoy = "!'), "the file: decoy is missing, or not base64"),
        (("[users.", "[user."), "the file: unknown key 'user'"),
        (("scram-sha-256 =", "scram-sha-1 ="), "unknown key 'scram-sha-1'"),
        (("iterations = 16384", "iterations = 4095"), "scram-sha-256: iterations must be from 4096 to 1000000"),
        (("iterations = 16384", 'iterations = "16384"'), "iterations must be from"),
        (('stored-key = "', 'stored-key = "AAAA'), "stored-key has a wrong length"),
        (('server-key = "', 'server-key = "='), "server-key is missing, or not base64"),
        (('salt = "', 'pepper = "'), "unknown key 'pepper'"),
        (("scram-sha-256 = {", "scram-sha-256 = 1 #{"), "must be a table"),
        (('topics = ["*"]', 'topics = ["a*b"]'), "'a*b' is neither a name nor the beginning of one"),
        (('groups = ["*"]', 'groups = "*"'), "groups must be a list of names"),
        (("administers = true", "administers = 1"), "administers must be true or false"),
        (("decoy", "= decoy"), "not TOML"),
    ],
)
def test_what_is_wrong_is_named_without_its_value(one: Users, change: tuple[str, str], reason: str) -> None:
    text = users_text(one).replace(*change, 1)
    with pytest.raises(ConfigError) as fault:
        parse_users(text)
    assert reason in str(fault.value)
    for key in one.by_name['al "ice" ½'].keys.values():
        assert not any(str(part) in str(fault.value) for part in (key.salt, key.stored_key, key.server_key))


def test_a_user_without_keys_is_refused(one: Users) -> None:
    with pytest.raises(ConfigError, match="user bob has none of scram-sha-256, scram-sha-512"):
        parse_users(users_text(one) + "[users.bob]\n")


RULES = ("--group", "billing*", "--topic", "*")


def set_user(monkeypatch: pytest.MonkeyPatch, file: Path, name: str, password: str, *rules: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
    return cli.main(["gateway-user", name, "--file", str(file), *rules])


def test_the_command_adds_users_and_changes_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.toml"
    assert [set_user(monkeypatch, file, name, SECRET, *RULES) for name in ("alice", "bob", "alice")] == [0, 0, 0]
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        f"share-spark: user alice is added, in {file}",
        f"share-spark: user bob is added, in {file}",
        f"share-spark: user alice has another password, in {file}",
    ]
    assert SECRET not in told.out + told.err + file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [file]
    assert read_users(str(file)).keys_of("bob", "SCRAM-SHA-512").are_of("SCRAM-SHA-512", SECRET.encode())


def test_the_command_keeps_rules_that_it_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users.toml"
    found = []
    for rules in ((*RULES, "--administer"), (), ("--topic", "a", "--topic", "b"), ("--no-administer",)):
        assert set_user(monkeypatch, file, "alice", SECRET, *rules) == 0
        found.append(read_users(str(file)).by_name["alice"].rules)
    first = Rules(groups=("billing*",), topics=("*",), administers=True)
    third = replace(first, topics=("a", "b"))
    assert found == [first, first, third, replace(third, administers=False)]


@pytest.mark.parametrize(
    ("name", "password", "rules"),
    [
        ("alice", "", RULES),
        ("", SECRET, RULES),
        ("a\nb", SECRET, RULES),
        ("alice", SECRET, ()),
        ("alice", SECRET, ("--group", "*", "--topic", "a*b")),
    ],
)
def test_the_command_refuses_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    password: str,
    rules: tuple[str, ...],
) -> None:
    file = tmp_path / "users.toml"
    assert set_user(monkeypatch, file, name, password, *rules) == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert SECRET not in line
    assert not file.exists()


def test_a_password_on_the_command_line_is_refused_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway-user", "alice", SECRET, "--file", str(tmp_path / "users.toml")]) == cli.BAD_INPUT
    assert SECRET not in capsys.readouterr().err


def test_the_file_is_read_again_when_it_changes(
    one: Users, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(users_module, "_LOOK_S", 0.0)
    path = tmp_path / "users.toml"
    path.write_text(users_text(one))
    file = UsersFile.open(str(path))
    assert file.users == one
    two = one.with_user("bob", one.by_name['al "ice" ½'])
    path.write_text(users_text(two))
    assert file.users == two
    path.write_text("broken")
    assert [file.users, file.users] == [two, two]
    path.unlink()
    assert file.users == two
    path.write_text(users_text(one))
    assert file.users == one
    assert [record.getMessage().partition(str(path))[2] for record in caplog.records] == [
        ": not TOML: Expected '=' after a key in a key/value pair (at end of document); the users stay as they were",
        ": No such file or directory; the users stay as they were",
    ]


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_gateway_does_not_start_without_its_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    file = tmp_path / "users.toml"
    if content is not None:
        file.write_bytes(content)
    place = ["--state", str(tmp_path), "--topic-table", str(tmp_path), "--listen", "127.0.0.1:0"]
    assert cli.main(["gateway", *place, "--users", str(file)]) == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"share-spark: users file {file}: ")
