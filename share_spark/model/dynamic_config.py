"""Dynamic group configs, as Kafka has them: what operators set for a group while it runs. They win over what its job
says, and that over the defaults.

The keys are those of ``config.SETTINGS`` that can change from one micro-batch to the next. What could not is refused,
with the reason. Bounds are the same as anywhere else (R170).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from share_spark.model.config import DEFAULT_CONFIG, SETTINGS, GroupConfig, field_of, nearest_key, read_setting
from share_spark.model.errors import ConfigError


class ConfigSource(StrEnum):
    """The source of a value, the strongest first. JOB_CONFIG: an option or a file of the run; in its place Kafka has
    the configs of the broker."""

    DYNAMIC_GROUP_CONFIG = "DYNAMIC_GROUP_CONFIG"
    JOB_CONFIG = "JOB_CONFIG"
    DEFAULT_CONFIG = "DEFAULT_CONFIG"


class ConfigSynonym(NamedTuple):
    """A value that counts, or would count if there were no stronger one."""

    source: ConfigSource
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting of a group: what counts, where it comes from, and all that is said of it, the strongest first."""

    name: str
    value: str
    source: ConfigSource
    synonyms: tuple[ConfigSynonym, ...]


Texts = Mapping[str, str]
"""Values by key, as ``GroupConfig.parse`` reads them."""


def configs_text(configs: Texts) -> str:
    """Return one line: ``key=value, key=value``, or ``none``."""
    return ", ".join(f"{key}={value}" for key, value in configs.items()) or "none"


def checked(given: Mapping[str, Any]) -> dict[str, str]:
    """Return ``given`` with one spelling of each key and value.

    Raises ConfigError: a key is unknown (in Kafka's words), it cannot change while an engine runs, or its value does
    not fit.
    """
    found: dict[str, str] = {}
    for key, value in given.items():
        name = _dynamic_field(key)
        found[SETTINGS[name].key] = str(read_setting(name, value))
    return found


def _dynamic_field(key: str) -> str:
    """Return the field of GroupConfig that ``key`` names. Raises ConfigError as ``checked``."""
    if (name := field_of(key)) is None:
        raise ConfigError(f"Unknown group config name: {key}{nearest_key(key)}")
    if SETTINGS[name].fixed:
        raise ConfigError(f"{SETTINGS[name].key} cannot be set for a running group: {SETTINGS[name].fixed}")
    return name


def altered(now: Texts, added: Mapping[str, Any], deleted: Collection[str]) -> dict[str, str]:
    """Return ``now`` with what is added and without what is deleted.

    Raises ConfigError as ``checked``, and for what is to be deleted and is not there.
    """
    keys = [SETTINGS[_dynamic_field(key)].key for key in deleted]
    if missing := [key for key in keys if key not in now]:
        raise ConfigError(f"Invalid config(s): {','.join(missing)}")
    return {**{key: value for key, value in now.items() if key not in keys}, **checked(added)}


def over(job: GroupConfig, dynamic: Texts) -> GroupConfig:
    """Return the settings that count.

    Raises ConfigError as ``checked``, and for values that do not fit to each other or to the job's.
    """
    return job.changed(checked(dynamic))


def entries(job: Texts, dynamic: Texts) -> list[ConfigEntry]:
    """Return an entry for each setting. ``job``: what is known of what the job says."""
    return [_entry(setting.key, DEFAULT_CONFIG.text(name), job, dynamic) for name, setting in SETTINGS.items()]


def _entry(key: str, default: str, job: Texts, dynamic: Texts) -> ConfigEntry:
    synonyms = [
        *([ConfigSynonym(ConfigSource.DYNAMIC_GROUP_CONFIG, dynamic[key])] if key in dynamic else []),
        *([ConfigSynonym(ConfigSource.JOB_CONFIG, job[key])] if key in job else []),
        ConfigSynonym(ConfigSource.DEFAULT_CONFIG, default),
    ]
    return ConfigEntry(name=key, value=synonyms[0].value, source=synonyms[0].source, synonyms=tuple(synonyms))
