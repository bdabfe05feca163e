"""Settings of a group: what is taken, what is refused, and how it is said."""

from __future__ import annotations

import re
from typing import Any

import pytest

from share_spark.model.config import GroupConfig, OffsetReset, parse_duration_ms
from share_spark.model.errors import ConfigError


def test_defaults_are_those_of_kafka() -> None:
    config = GroupConfig.parse({})
    assert (config.lock_duration_ms, config.max_delivery_count, config.max_record_locks) == (30_000, 5, 2_000)
    assert (str(config.offset_reset), config.isolation_level) == ("latest", "read_uncommitted")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        *[("500ms", 500), ("30s", 30_000), ("10m", 600_000), ("2h", 7_200_000), ("7d", 604_800_000), (" 5 s ", 5_000)],
        *[("PT1H30M", 5_400_000), ("P1D", 86_400_000), ("PT0.5S", 500), ("P1DT1H", 90_000_000)],
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "-5s", "5 weeks", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["earliest", "latest", "by_duration:PT1H", "by_duration:90s"])
def test_offset_resets(text: str) -> None:
    found = OffsetReset.parse(text)
    assert OffsetReset.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "Latest", "earliest:1h", "by_duration", "by_duration:", "by_duration:soon"])
def test_what_is_no_offset_reset_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a"):
        OffsetReset.parse(text)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("share.record.lock.duration.ms", 999, "share.record.lock.duration.ms: 999 is outside 1000..3600000"),
        ("share.delivery.count.limit", 1, "share.delivery.count.limit: 1 is outside 2..25"),
        ("share.delivery.count.limit", "many", "share.delivery.count.limit: 'many' is not a whole number"),
        ("share.delivery.count.limit", 2.5, "share.delivery.count.limit: 2.5 is not a whole number"),
        ("share.isolation.level", "serializable", "is not one of read_uncommitted, read_committed"),
        ("share.record.lock.duration.ms", "soon", "share.record.lock.duration.ms: not a duration: 'soon'"),
        ("share.delivery.count.limits", 5, "unknown setting .*did you mean 'share.delivery.count.limit'"),
        ("share.record.redelivery.backoff.jitter", "much", "backoff.jitter: 'much' is not a number"),
        ("share.record.redelivery.backoff.jitter", 1.5, "backoff.jitter: 1.5 is outside 0..1"),
        ("delivery.rate.limit", "nan", "delivery.rate.limit: nan is outside 0..1e"),
        ("colour", "red", "unknown setting 'colour'$"),
    ],
)
def test_r170_what_does_not_fit_is_refused_by_name(key: str, value: Any, message: str) -> None:
    """Never clipped."""
    with pytest.raises(ConfigError, match=message) as refused:
        GroupConfig.parse({key: value})
    assert re.search("\n", str(refused.value)) is None


def test_settings_of_the_flow() -> None:
    config = GroupConfig.parse(
        {
            "share.record.redelivery.backoff.policy": "exponential",
            "share.record.redelivery.backoff.ms": "2s",
            "share.record.redelivery.backoff.jitter": "0.25",
            "delivery.rate.limit": "0.5",
            "delivery.breaker.probe.interval": "1m",
        }
    )
    assert (config.backoff_policy, config.backoff_ms, config.backoff_jitter) == ("exponential", 2_000, 0.25)
    assert (config.rate_limit, config.breaker_probe_interval_ms) == (0.5, 60_000)


def test_a_first_delay_above_the_maximum_is_refused_where_delays_grow() -> None:
    given = {"share.record.redelivery.backoff.ms": "10m", "share.record.redelivery.backoff.policy": "fixed"}
    assert GroupConfig.parse(given).backoff_ms == 600_000
    with pytest.raises(ConfigError, match=r"backoff.ms: 600000 is above share.record.redelivery.backoff.max.ms, 60000"):
        GroupConfig.parse(given).changed({"share.record.redelivery.backoff.policy": "exponential"})


def test_r171_both_spellings_are_taken() -> None:
    given = {"group.share.delivery.count.limit": "7", "group.share.record.lock.duration.ms": "PT1M"}
    config = GroupConfig.parse(given)
    assert (config.max_delivery_count, config.lock_duration_ms) == (7, 60_000)


def test_texts_and_numbers_are_the_same() -> None:
    keys = {"max.records.per.trigger": 1_000, "state.refresh": 5_000}
    assert GroupConfig.parse(keys) == GroupConfig.parse({key: str(value) for key, value in keys.items()})


def test_the_settings_of_members_fit_to_each_other_and_to_the_bounds_of_the_gateway() -> None:
    config = GroupConfig.parse({"group.share.session.timeout.ms": "50s", "group.share.heartbeat.interval.ms": "50s"})
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (50_000, 50_000)
    for given, message in (
        (
            {"share.heartbeat.interval.ms": 50_001},
            "heartbeat.interval.ms: 50001 is above share.session.timeout.ms, 50000",
        ),
        ({"group.share.max.session.timeout.ms": "49s"}, "50000 is above group.share.max.session.timeout.ms, 49000"),
        (
            {"group.share.min.session.timeout.ms": "51s"},
            "group.share.min.session.timeout.ms: 51000 is above share.session",
        ),
        ({"group.share.min.record.lock.duration.ms": "31s"}, "31000 is above share.record.lock.duration.ms, 30000"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.changed(given)
