"""`share-spark gateway-user`: the file of users who may log in at a gateway."""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from getpass import getpass
from pathlib import Path

from share_spark.cli.arguments import parsed
from share_spark.gateway.access import Rules
from share_spark.gateway.users import User, Users, read_users, users_text
from share_spark.model.errors import ConfigError


def set_user(arguments: Sequence[str]) -> int:
    """Add a user, or give one another password, and other rules. Raises ConfigError, OSError: nothing was changed."""
    given = parsed(arguments)
    file = Path(given.file)
    users = read_users(given.file) if file.exists() else Users.none()
    verb = "has another password" if given.name in users.by_name else "is added"
    rules = _rules(given, users.by_name.get(given.name))
    _write(file, users_text(users.with_user(given.name, User.of(_password(), rules))))
    print(f"share-spark: user {given.name} {verb}, in {file}")
    return 0


def _rules(given: Namespace, former: User | None) -> Rules:
    """Return the rules that are given, over those that there were. Raises ConfigError."""
    if former is None and not (given.group and given.topic):
        raise ConfigError("a new user needs --group and --topic: a name, or the beginning of names: 'billing*', '*'")
    said = {
        "groups": tuple(given.group),
        "topics": tuple(given.topic),
        "administers": given.administer,
        "acts_as_broker": given.act_as_broker,
    }
    return replace(
        Rules() if former is None else former.rules,
        **{key: value for key, value in said.items() if value not in (None, ())},
    )


def _password() -> bytes:
    """Return the password from the terminal, or the first line of standard input. Raises ConfigError."""
    if sys.stdin.isatty():
        password = getpass("Password: ")
        if getpass("Password again: ") != password:
            raise ConfigError("the passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password or "\0" in password:
        raise ConfigError("the password is empty, or has a zero in it")
    return password.encode()


def _write(file: Path, text: str) -> None:
    """Put the file in its place at once, for its owner alone: a gateway may read it at any time."""
    number, written = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(written).replace(file)
    except BaseException:
        Path(written).unlink()
        raise
