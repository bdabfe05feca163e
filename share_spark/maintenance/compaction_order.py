"""The order of a compaction, from the command line and the configuration file: checked before a JVM is started."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from share_spark.delta.location import Location
from share_spark.model.config import parse_duration_ms
from share_spark.model.errors import ConfigError

LONGEST_LOCK_MS = 3_600_000
"""The maximum of ``share.record.lock.duration.ms`` (R170); no micro-batch should take longer."""

_LEAST_MS = {
    "idle": 60_000,
    "history-retention": LONGEST_LOCK_MS,
    "vacuum-retention": LONGEST_LOCK_MS,
    "dead-letter-retention": LONGEST_LOCK_MS,
    "topic-retention": LONGEST_LOCK_MS,
}
KEYS = ("state", "group", "dead-letter", "topic-table", "dry-run", *_LEAST_MS)
"""The keys of the command line and of the table [compaction] of a configuration file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOrder:
    """One compaction. ``group_id`` None: all groups of the location. A table or a retention that is None is left alone.

    ``idle_ms``: a group without heartbeat and commits for this time has no engine. ``vacuum_retention_ms``: how long
    older versions of the tables stay readable; files of an append in flight are younger than that.
    """

    state: Location
    group_id: str | None = None
    idle_ms: int = 600_000
    history_retention_ms: int | None = None
    vacuum_retention_ms: int = 7 * 86_400_000
    dead_letter: Location | None = None
    dead_letter_retention_ms: int | None = None
    topic_table: Location | None = None
    topic_retention_ms: int | None = None
    dry_run: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> CompactionOrder:
        """Return the order of ``{key: text}`` with the keys of the command line. Raises ConfigError, naming the key."""
        for key in given:
            if key not in KEYS:
                close = difflib.get_close_matches(key, KEYS, n=1)
                raise ConfigError(f"unknown key {key!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
        if "state" not in given:
            raise ConfigError("--state is missing")
        for retention, table in (("dead-letter-retention", "dead-letter"), ("topic-retention", "topic-table")):
            if retention in given and table not in given:
                raise ConfigError(f"--{retention} needs --{table}")
        if "group" in given and not given["group"].strip():
            raise ConfigError("--group is empty")
        chosen = {"group_id": given.get("group"), "dry_run": given.get("dry-run")}
        chosen |= {
            _name(key): Location.parse(given[key]) for key in ("state", "dead-letter", "topic-table") if key in given
        }
        chosen |= {
            f"{_name(key)}_ms": _at_least(key, str(given[key]), least)
            for key, least in _LEAST_MS.items()
            if key in given
        }
        return cls(**{name: value for name, value in chosen.items() if value is not None})


def _name(key: str) -> str:
    return key.replace("-", "_")


def _at_least(key: str, text: str, least_ms: int) -> int:
    try:
        found = parse_duration_ms(text)
    except ConfigError as fault:
        raise ConfigError(f"--{key}: {fault}") from None
    if found < least_ms:
        why = "the longest lock of a record" if least_ms == LONGEST_LOCK_MS else "six heartbeats of an engine"
        raise ConfigError(f"--{key}: {text} is shorter than {least_ms // 60_000} min, {why}")
    return found
