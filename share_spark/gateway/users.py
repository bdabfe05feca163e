"""The users of a gateway: a TOML file, which has the keys of their passwords and never a password. The file is read
again when it changes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from share_spark.gateway.access import Rules
from share_spark.gateway.scram import ScramKeys
from share_spark.kafka.sasl_exchange import LEAST_ITERATIONS, MOST_ITERATIONS, SCRAM_HASHES
from share_spark.model.errors import ConfigError

_log = logging.getLogger(__name__)

_FLAGS = ("administers", "acts_as_broker")
_RULES = ("groups", "topics", *_FLAGS)
_ITERATIONS = 16_384
_SALT_BYTES = 16
_LOOK_S = 1.0
"""The time between two looks at the file."""

_HEAD = """# The users of a gateway. `share-spark gateway-user` writes this file anew: comments are lost.
# The keys are no passwords, but who has them can try passwords: keep this file to yourself.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user. ``keys``: by mechanism."""

    keys: Mapping[str, ScramKeys]
    rules: Rules

    @classmethod
    def of(cls, password: bytes, rules: Rules) -> User:
        """Return a user with this password. Raises ConfigError: not the rules of a user."""
        _check_rules(rules)
        salt = secrets.token_bytes(_SALT_BYTES)
        keys = {name: ScramKeys.of(name, password, salt=salt, iterations=_ITERATIONS) for name in SCRAM_HASHES}
        return cls(keys=keys, rules=rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """All users by their names. ``decoy``: makes the keys of users that are not there, always the same ones, so that
    nobody finds out who is there."""

    decoy: bytes = field(repr=False)
    by_name: Mapping[str, User] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Users:
        """Return no user."""
        return cls(decoy=secrets.token_bytes(32))

    def keys_of(self, name: str, mechanism: str) -> ScramKeys:
        """Return the keys of a user; if there is no such user, keys of no password."""
        user = self.by_name.get(name)
        if user is not None and mechanism in user.keys:
            return user.keys[mechanism]
        # One salt for all mechanisms, as users have it.
        salt = hmac.digest(self.decoy, f"salt {name}".encode(errors="replace"), "sha256")[:_SALT_BYTES]
        key = hmac.digest(self.decoy, f"{mechanism} {name}".encode(errors="replace"), SCRAM_HASHES[mechanism])
        return ScramKeys(iterations=_ITERATIONS, salt=salt, stored_key=key, server_key=key)

    def with_user(self, name: str, user: User) -> Users:
        """Return the users with one more, or with another in the place of one. Raises ConfigError: no name."""
        _check_name(name)
        return replace(self, by_name={**self.by_name, name: user})


def _check_name(name: str) -> None:
    if not name or not name.isprintable():
        raise ConfigError(f"{name!r} is not the name of a user")


# ------------------------------------------------------------------------------------------------ as text


def parse_users(text: str) -> Users:
    """Read the text of a file. Raises ConfigError, in which nothing of a key is."""
    try:
        found = tomllib.loads(text)
    except ValueError as fault:
        raise ConfigError(f"not TOML: {fault}") from None
    _check_names("the file", found, {"decoy", "users"})
    users = found.get("users", {})
    if not isinstance(users, dict) or not all(isinstance(user, dict) for user in users.values()):
        raise ConfigError("users are tables: [users.NAME]")
    by_name = {name: _user(name, table) for name, table in users.items()}
    return Users(decoy=_key("the file", found, "decoy"), by_name=by_name)


def _user(name: str, table: Mapping[str, Any]) -> User:
    _check_name(name)
    where, mechanisms = f"user {name}", {mechanism.lower(): mechanism for mechanism in SCRAM_HASHES}
    _check_names(where, table, {*_RULES, *mechanisms})
    rules = Rules(**{key: _rule(where, key, table[key]) for key in _RULES if key in table})
    _check_rules(rules, where)
    keys = {known: _keys(f"{where}, {key}", table[key], known) for key, known in mechanisms.items() if key in table}
    if not keys:
        raise ConfigError(f"{where} has none of {', '.join(mechanisms)}")
    return User(keys=keys, rules=rules)


def _rule(where: str, name: str, value: Any) -> Any:
    """Return the value of a rule, as it is in ``Rules``."""
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: {name} must be true or false")
        return value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{where}: {name} must be a list of names")
    return tuple(value)


def _check_rules(rules: Rules, where: str = "rules") -> None:
    for pattern in (*rules.groups, *rules.topics):
        if not pattern or "*" in pattern[:-1]:
            raise ConfigError(f"{where}: {pattern!r} is neither a name nor the beginning of one with a * after it")


def _keys(where: str, table: Any, mechanism: str) -> ScramKeys:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    _check_names(where, table, {"iterations", "salt", "stored-key", "server-key"})
    iterations, size = table.get("iterations"), hashlib.new(SCRAM_HASHES[mechanism]).digest_size
    if not isinstance(iterations, int) or not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise ConfigError(f"{where}: iterations must be from {LEAST_ITERATIONS} to {MOST_ITERATIONS}")
    stored_key, server_key = (_key(where, table, name, size) for name in ("stored-key", "server-key"))
    salt = _key(where, table, "salt")
    return ScramKeys(iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key)


def _key(where: str, table: Mapping[str, Any], name: str, size: int | None = None) -> bytes:
    try:
        found = base64.b64decode(table[name], validate=True)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{where}: {name} is missing, or not base64") from None
    if not found or (size is not None and len(found) != size):
        raise ConfigError(f"{where}: {name} has a wrong length")
    return found


def _check_names(where: str, table: Mapping[str, Any], known: Any) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: unknown key {name!r} (there are {', '.join(sorted(known))})")


def users_text(users: Users) -> str:
    """Return the text of a file with these users."""
    return "\n".join(_lines(users)) + "\n"


def _lines(users: Users) -> Iterator[str]:
    yield f"{_HEAD}decoy = {_written(users.decoy)}"
    for name, user in users.by_name.items():
        yield f"\n[users.{json.dumps(name, ensure_ascii=False)}]"
        for rule in _RULES:
            yield f"{rule} = {json.dumps(getattr(user.rules, rule), ensure_ascii=False)}"
        for mechanism, keys in user.keys.items():
            parts = {"salt": keys.salt, "stored-key": keys.stored_key, "server-key": keys.server_key}
            written = ", ".join(f"{part} = {_written(key)}" for part, key in parts.items())
            yield f"{mechanism.lower()} = {{ iterations = {keys.iterations}, {written} }}"


def _written(key: bytes) -> str:
    return f'"{base64.b64encode(key).decode()}"'


# ------------------------------------------------------------------------------------------------ as file


def read_users(path: str) -> Users:
    """Read a file. Raises ConfigError naming it."""
    try:
        return parse_users(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError(f"users file {path}: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"users file {path}: not TOML: not UTF-8") from None
    except ConfigError as fault:
        raise ConfigError(f"users file {path}: {fault}") from None


class _Version(NamedTuple):
    """The marks of a file that change when it is written, or another one is put in its place."""

    inode: int
    changed_ns: int
    size: int


@dataclass(slots=True)
class UsersFile:
    """A file of users, for the thread of the event loop."""

    path: str
    _users: Users
    _version: _Version | None
    _looked_s: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, path: str) -> UsersFile:
        """Read the file for the first time. Raises ConfigError."""
        version = _version(path)
        return cls(path, read_users(path), version)

    @property
    def users(self) -> Users:
        """The users as the file has them, or had them a second ago. A file that cannot be read changes nothing."""
        if time.monotonic() >= self._looked_s + _LOOK_S:
            self._looked_s = time.monotonic()
            self._look()
        return self._users

    def _look(self) -> None:
        version = _version(self.path)
        if version == self._version:
            return
        self._version = version
        try:
            self._users = read_users(self.path)
        except ConfigError as fault:
            _log.warning("%s; the users stay as they were", fault)


def _version(path: str) -> _Version | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return _Version(found.st_ino, found.st_mtime_ns, found.st_size)
