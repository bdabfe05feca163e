"""Configuration files: TOML, with the tables [job], [kafka], [output_kafka], [share_group] for a run, [gateway] beside
them for a gateway, [compaction] for a compaction. An unknown key is an error; values of [kafka] and [output_kafka] are
secrets and in no message."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from share_spark.model.config import DEFAULT_CONFIG, GroupConfig
from share_spark.model.errors import ConfigError

START = "share.auto.offset.reset"

_HANDLER = ("handler", "cost", "value-from")
_PLACES = ("bootstrap-server", "topic-table", "state", "checkpoint", "dead-letter")
_OUTPUT = ("to-delta", "output-schema", "to-kafka", "output-bootstrap-server")
_KEYS: Mapping[str, type] = {
    **dict.fromkeys((*_HANDLER, *_PLACES, *_OUTPUT, "group", "starting", "trigger", "query-name"), str),
    "topic": list,
    "available-now": bool,
}

GATEWAY_KEYS = ("listen", "advertise", "node-id", "tls-certificate", "tls-key", "tls-client-ca", "users", "login")
"""The keys of [gateway], all of texts."""

_TABLES: Mapping[str, Mapping[str, type]] = {"job": _KEYS, "gateway": dict.fromkeys(GATEWAY_KEYS, str)}
_ALL_TABLES = ("job", "kafka", "output_kafka", "share_group", "gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file's [job] with ``_`` in its keys and without its start, its [kafka], its [output_kafka], its [share_group]
    parsed, its [gateway]. ``starting``: the start, from either table; None if there is none."""

    job: Mapping[str, Any] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    output_kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    config: GroupConfig = DEFAULT_CONFIG
    starting: str | None = None
    gateway: Mapping[str, str] = field(default_factory=dict)


def read_config(path: str) -> ConfigFile:
    """Read a TOML file. Raises ConfigError naming the file and the key."""
    tables = _parsed(path)
    try:
        return _tables(tables)
    except ConfigError as fault:
        raise ConfigError(f"--config {path}: {fault}") from None


def _tables(tables: Mapping[str, Any]) -> ConfigFile:
    for name, table in tables.items():
        if name not in _ALL_TABLES or not isinstance(table, dict):
            known = ", ".join(f"[{one}]" for one in _ALL_TABLES)
            raise ConfigError(f"unknown table or key {name!r} (there are {known})")
    job = {key.replace("-", "_"): value for key, value in _checked("job", tables).items()}
    settings = _flat(tables.get("share_group", {}))
    if "starting" in job:
        settings[START] = job.pop("starting")
    config = GroupConfig.parse(settings)
    return ConfigFile(
        job=job,
        kafka=_flat_texts(tables.get("kafka", {})),
        output_kafka=_flat_texts(tables.get("output_kafka", {})),
        config=config,
        starting=settings.get(START),
        gateway=_checked("gateway", tables),
    )


def _checked(name: str, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table after a look at its keys and types."""
    table: Mapping[str, Any] = tables.get(name, {})
    known = _TABLES[name]
    for key, value in table.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(f"unknown key {key!r} in [{name}]" + (f" (did you mean {close[0]!r}?)" if close else ""))
        if not isinstance(value, known[key]):
            raise ConfigError(f"{key} in [{name}] must be of type {known[key].__name__}")
    return table


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the table with flat keys: TOML reads ``a.b = 1`` as a table in a table; here it is the key ``a.b``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _flat_texts(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in _flat(table).items()}


def read_order(path: str) -> dict[str, Any]:
    """Read the table [compaction] of a TOML file. Raises ConfigError naming the file and the key."""
    tables = _parsed(path)
    if unknown := set(tables) - {"compaction"}:
        raise ConfigError(f"--config {path}: unknown table or key {min(unknown)!r} (there is [compaction])")
    found: dict[str, Any] = tables.get("compaction", {})
    for key, value in found.items():
        if not isinstance(value, bool if key == "dry-run" else str):
            raise ConfigError(f"--config {path}: {key} must be a {'boolean' if key == 'dry-run' else 'text'}")
    return found


def _parsed(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError(f"--config {path}: {fault.strerror}") from None
    except ValueError as fault:
        raise ConfigError(f"--config {path}: not TOML: {fault}") from None
