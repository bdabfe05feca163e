"""Settings of a share group: one table of keys, each with its type, default and range.

The same keys work in ``conf/*.toml``, in ``ShareGroup(...).option(key, value)`` and on the command line. Names are
Kafka's where Kafka has the setting ("Configuration" of KIP-932 and the group configs of 4.2 and 4.3). A value outside
its range is refused, never clipped (R170); an unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from share_spark.model.errors import ConfigError

_DURATION_ISO = re.compile(r"^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$")
_DURATION_SHORT = re.compile(r"^(\d+)\s*(ms|s|m|h|d)$")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of ``30s``, ``10m``, ``7d``, ``500ms`` or ISO-8601 (``PT1H30M``). Raises ConfigError."""
    short = _DURATION_SHORT.match(text.strip())
    if short:
        return int(short[1]) * _UNIT_MS[short[2]]
    iso = _DURATION_ISO.match(text.strip())
    if iso and any(iso.groups()):
        days, hours, minutes = (int(part or 0) for part in iso.groups()[:3])
        return ((days * 24 + hours) * 60 + minutes) * 60_000 + int(float(iso[4] or 0) * 1_000)
    raise ConfigError(f"not a duration: {text!r} (write 30s, 10m, 7d or PT1H)")


class OffsetReset(NamedTuple):
    """The place where a share-partition without state begins (R26). ``duration_ms`` only for ``by_duration``."""

    policy: str
    duration_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> OffsetReset:
        """Read ``earliest``, ``latest`` or ``by_duration:PT1H``. Raises ConfigError."""
        policy, _, duration = text.strip().partition(":")
        if policy in ("earliest", "latest") and not duration:
            return cls(policy)
        if policy == "by_duration" and duration:
            return cls(policy, parse_duration_ms(duration))
        raise ConfigError(f"not an offset reset policy: {text!r} (earliest, latest or by_duration:PT1H)")

    def __str__(self) -> str:
        return self.policy if self.policy != "by_duration" else f"by_duration:{self.duration_ms}ms"


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise ConfigError(f"{value!r} is not a whole number") from None
        if not low <= number <= high:
            raise ConfigError(f"{number} is outside {low}..{high}")
        return number

    return read


def _milliseconds(low: int, high: int) -> Callable[[Any], int]:
    within = _integer(low, high)

    def read(value: Any) -> int:
        return within(value if str(value).strip().isdigit() else parse_duration_ms(str(value)))

    return read


def _host(value: Any) -> str:
    text = str(value).strip()
    if not text or any(letter.isspace() for letter in text):
        raise ConfigError(f"{value!r} is not a host name or address")
    return text


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ConfigError(f"{value!r} is not one of {', '.join(choices)}")
        return str(value)

    return read


def _number(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = float(str(value))
        except ValueError:
            raise ConfigError(f"{value!r} is not a number") from None
        if not low <= number <= high:
            raise ConfigError(f"{number:g} is outside {low:g}..{high:g}")
        return number

    return read


class _Setting(NamedTuple):
    """A setting. ``fixed``: why it cannot change while an engine runs, empty if it can."""

    key: str
    default: Any
    read: Callable[[Any], Any]
    fixed: str = ""


_DAY_MS = 86_400_000

_OF_THE_ENGINE = "it says how an engine keeps its tables, from its start to its end"
_OF_THE_MACHINE = "it belongs to the machine that the engine runs on"
_OF_THE_GATEWAY = "it belongs to the gateway, and is the same for all of its groups"

_LONGEST_MS = 3_600_000
"""The longest lock, and the longest session of a member."""

MOST_DELAY_MS = 30 * _DAY_MS
"""The longest delay of a retry."""


class BackoffPolicy(StrEnum):
    """The dependence of a retry's delay on the delivery count."""

    NONE = "none"
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class DeliveryOrder(StrEnum):
    """The order in which records are delivered: any, or those of a key one after another by offset."""

    NONE = "none"
    KEY = "key"


SETTINGS: Mapping[str, _Setting] = {
    "lock_duration_ms": _Setting("share.record.lock.duration.ms", 30_000, _milliseconds(1_000, _LONGEST_MS)),
    "max_delivery_count": _Setting("share.delivery.count.limit", 5, _integer(2, 25)),
    "max_record_locks": _Setting("share.partition.max.record.locks", 2_000, _integer(100, 10**9)),
    "offset_reset": _Setting("share.auto.offset.reset", "latest", lambda v: OffsetReset.parse(str(v))),
    "isolation_level": _Setting(
        "share.isolation.level",
        "read_uncommitted",
        _one_of("read_uncommitted", "read_committed"),
        fixed="what is in flight was acquired by the level that the topics were opened with",
    ),
    "session_timeout_ms": _Setting("share.session.timeout.ms", 45_000, _milliseconds(100, _LONGEST_MS)),
    "heartbeat_interval_ms": _Setting("share.heartbeat.interval.ms", 5_000, _milliseconds(100, _LONGEST_MS)),
    "backoff_policy": _Setting("share.record.redelivery.backoff.policy", "none", _one_of(*BackoffPolicy)),
    "backoff_ms": _Setting("share.record.redelivery.backoff.ms", 1_000, _milliseconds(1, MOST_DELAY_MS)),
    "backoff_max_ms": _Setting("share.record.redelivery.backoff.max.ms", 60_000, _milliseconds(1, MOST_DELAY_MS)),
    "backoff_jitter": _Setting("share.record.redelivery.backoff.jitter", 0.0, _number(0, 1)),
    "max_records_per_trigger": _Setting("max.records.per.trigger", 500_000, _integer(1, 10**9)),
    "delivery_timeout_ms": _Setting("delivery.timeout.ms", 300_000, _milliseconds(100, _DAY_MS)),
    "delivery_budget_ms": _Setting("delivery.budget.ms", 10_000, _milliseconds(100, _DAY_MS)),
    "rate_limit": _Setting("delivery.rate.limit", 0.0, _number(0, 1e9)),
    "cost_limit": _Setting("delivery.cost.limit", 0.0, _number(0, 1e9)),
    "max_concurrency": _Setting("delivery.max.concurrency", 0, _integer(0, 100_000)),
    "max_in_flight": _Setting("delivery.max.in.flight", 256, _integer(1, 100_000)),
    "throttle_max_age_ms": _Setting("delivery.throttle.max.age", 3_600_000, _milliseconds(1_000, 30 * _DAY_MS)),
    "delivery_order": _Setting(
        "delivery.order", "none", _one_of(*DeliveryOrder), fixed="records of a key may be in flight without order"
    ),
    "breaker_failure_rate": _Setting("delivery.breaker.failure.rate", 0.0, _number(0, 1)),
    "breaker_window_ms": _Setting("delivery.breaker.window", 60_000, _milliseconds(1_000, _DAY_MS)),
    "breaker_probes": _Setting("delivery.breaker.probes", 10, _integer(1, 10**6)),
    "breaker_probe_interval_ms": _Setting("delivery.breaker.probe.interval", 10_000, _milliseconds(0, _DAY_MS)),
    "updates_per_snapshot": _Setting(
        "share.coordinator.snapshot.update.records.per.snapshot", 500, _integer(1, 500), fixed=_OF_THE_ENGINE
    ),
    "state_refresh_ms": _Setting("state.refresh", 10_000, _milliseconds(1_000, _DAY_MS), fixed=_OF_THE_ENGINE),
    "history_retention_ms": _Setting("history.retention", 0, _milliseconds(0, 3_650 * _DAY_MS), fixed=_OF_THE_ENGINE),
    "log_retention_ms": _Setting("log.retention", 0, _milliseconds(0, 3_650 * _DAY_MS), fixed=_OF_THE_ENGINE),
    "compaction_interval_ms": _Setting("compaction.interval", 0, _milliseconds(0, 30 * _DAY_MS), fixed=_OF_THE_ENGINE),
    "request_timeout_ms": _Setting(
        "request.timeout.ms", 15_000, _milliseconds(1_000, 600_000), fixed="clients of the brokers were opened with it"
    ),
    "outage_timeout_ms": _Setting("outage.timeout.ms", 0, _milliseconds(0, 30 * _DAY_MS)),
    "max_group_size": _Setting("group.share.max.size", 200, _integer(1, 100_000), fixed=_OF_THE_GATEWAY),
    "max_groups": _Setting("group.share.max.groups", 1_000, _integer(1, 100_000), fixed=_OF_THE_GATEWAY),
    "max_share_sessions": _Setting("group.share.max.share.sessions", 10_000, _integer(1, 10**6), fixed=_OF_THE_GATEWAY),
    **{
        f"{which}_{field}": _Setting(f"group.share.{which}.{key}", bound, read, fixed=_OF_THE_GATEWAY)
        for field, key, low in (
            ("lock_duration_ms", "record.lock.duration.ms", 1_000),
            ("session_timeout_ms", "session.timeout.ms", 100),
            ("heartbeat_interval_ms", "heartbeat.interval.ms", 100),
        )
        for which, bound in (("min", low), ("max", _LONGEST_MS))
        for read in (_milliseconds(low, _LONGEST_MS),)
    },
    "metrics_port": _Setting("metrics.port", 0, _integer(0, 65_535), fixed=_OF_THE_MACHINE),
    "metrics_host": _Setting("metrics.host", "127.0.0.1", _host, fixed=_OF_THE_MACHINE),
}
"""The settings by field of GroupConfig. Durations take 30s, 10m, 7d or PT1H as well as milliseconds."""

ALIASES = {
    "group.share.record.lock.duration.ms": "share.record.lock.duration.ms",
    "group.share.delivery.count.limit": "share.delivery.count.limit",
    "group.share.partition.max.record.locks": "share.partition.max.record.locks",
    "group.share.auto.offset.reset": "share.auto.offset.reset",
    "group.share.isolation.level": "share.isolation.level",
    "group.share.session.timeout.ms": "share.session.timeout.ms",
    "group.share.heartbeat.interval.ms": "share.heartbeat.interval.ms",
}
"""The other spellings of keys: both are taken, one is kept (R171)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Validated settings of one group; build it with ``parse``. Fields end in their unit."""

    lock_duration_ms: int
    max_delivery_count: int
    max_record_locks: int
    offset_reset: OffsetReset
    isolation_level: str
    session_timeout_ms: int
    heartbeat_interval_ms: int
    backoff_policy: str
    backoff_ms: int
    backoff_max_ms: int
    backoff_jitter: float
    max_records_per_trigger: int
    delivery_timeout_ms: int
    delivery_budget_ms: int
    rate_limit: float
    cost_limit: float
    max_concurrency: int
    max_in_flight: int
    throttle_max_age_ms: int
    delivery_order: str
    breaker_failure_rate: float
    breaker_window_ms: int
    breaker_probes: int
    breaker_probe_interval_ms: int
    updates_per_snapshot: int
    state_refresh_ms: int
    history_retention_ms: int
    log_retention_ms: int
    compaction_interval_ms: int
    request_timeout_ms: int
    outage_timeout_ms: int
    max_group_size: int
    max_groups: int
    max_share_sessions: int
    min_lock_duration_ms: int
    max_lock_duration_ms: int
    min_session_timeout_ms: int
    max_session_timeout_ms: int
    min_heartbeat_interval_ms: int
    max_heartbeat_interval_ms: int
    metrics_port: int
    metrics_host: str

    @staticmethod
    def parse(given: Mapping[str, Any]) -> GroupConfig:
        """Read ``{key: value}``; what is not given has its default. Raises ConfigError as ``changed`` does."""
        return DEFAULT_CONFIG.changed(given)

    def changed(self, given: Mapping[str, Any]) -> GroupConfig:
        """Replace the settings of ``{key: value}``, and keep the others.

        Raises ConfigError with one line: an unknown key, or a value that does not fit, by itself or to another.
        """
        chosen = {}
        for key, value in given.items():
            if (name := field_of(key)) is None:
                raise ConfigError(f"unknown setting {key!r}{nearest_key(key)}")
            chosen[name] = read_setting(name, value)
        found = replace(self, **chosen)
        if found.backoff_policy == "exponential":
            found._check_order("backoff_ms", "backoff_max_ms")
        found._check_order("heartbeat_interval_ms", "session_timeout_ms")
        for name in ("lock_duration_ms", "session_timeout_ms", "heartbeat_interval_ms"):
            found._check_order(f"min_{name}", f"max_{name}")
            found._check_order(f"min_{name}", name)
            found._check_order(name, f"max_{name}")
        return found

    def _check_order(self, lower: str, upper: str) -> None:
        """Raise ConfigError if the value of the field ``lower`` is above that of ``upper``."""
        low, high = getattr(self, lower), getattr(self, upper)
        if low > high:
            raise ConfigError(f"{SETTINGS[lower].key}: {low} is above {SETTINGS[upper].key}, {high}")

    def text(self, name: str) -> str:
        """Return the value of a field, as ``parse`` reads it."""
        return str(getattr(self, name))

    def not_default(self) -> dict[str, str]:
        """Return ``{key: value}`` of what differs from the default, as ``parse`` reads it."""
        named = {name: self.text(name) for name in SETTINGS}
        return {SETTINGS[name].key: text for name, text in named.items() if text != DEFAULT_CONFIG.text(name)}


_BY_KEY = {setting.key: name for name, setting in SETTINGS.items()}


def field_of(key: str) -> str | None:
    """Return the field of GroupConfig that a key, or its other spelling, names; None if there is none."""
    return _BY_KEY.get(ALIASES.get(key, key))


def nearest_key(key: str) -> str:
    """Return the known key that may have been meant by an unknown one, empty if there is none."""
    close = difflib.get_close_matches(key, _BY_KEY, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def read_setting(name: str, value: Any) -> Any:
    """Return the value of a field of GroupConfig, from what was said of it. Raises ConfigError, which names its key."""
    try:
        return SETTINGS[name].read(value)
    except ConfigError as fault:
        raise ConfigError(f"{SETTINGS[name].key}: {fault}") from None


assert {field.name for field in fields(GroupConfig)} == set(SETTINGS)

DEFAULT_CONFIG = GroupConfig(**{name: read_setting(name, setting.default) for name, setting in SETTINGS.items()})
