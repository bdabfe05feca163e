"""What the topic log on Kafka makes of a broker's answers about log ends."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from share_spark.kafka.broker_admin import EARLIEST
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.model.ids import LogEnds


class AdminTwin:
    """One partition; ``stable``: its last stable offset."""

    start, stable, mark = 0, 7, 10

    def describe(self, topic: str) -> Any:
        return SimpleNamespace(name=topic, partitions=[SimpleNamespace(id=0)], topic_id=None)

    def offsets(
        self, _topic: str, partitions: Iterable[int], specs: Iterable[Any], *, committed: bool
    ) -> list[dict[int, int]]:
        latest = self.stable if committed else self.mark
        return [dict.fromkeys(partitions, self.start if spec is EARLIEST else latest) for spec in specs]


def log_on(broker: AdminTwin, monkeypatch: pytest.MonkeyPatch, isolation: str) -> KafkaTopicLog:
    monkeypatch.setattr("share_spark.kafka.topic_log.BrokerAdmin", lambda *_: broker)
    return KafkaTopicLog(KafkaOptions.parse({"bootstrap.servers": "nowhere:1", "isolation.level": isolation}))


def test_with_read_committed_the_end_of_the_log_itself_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = log_on(AdminTwin(), monkeypatch, "read_committed").log_ends("t")[0]
    assert (found, found.log_end) == (LogEnds(0, 7, 10), 10)
    found = log_on(AdminTwin(), monkeypatch, "read_uncommitted").log_ends("t")[0]
    assert (found, found.log_end) == (LogEnds(0, 10), 10)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_what_was_fetched_ahead_of_a_truncated_log_is_never_served(
    monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """Executors keep consumers with records that they have fetched ahead, in a pool of this name."""
    broker = AdminTwin()
    log = log_on(broker, monkeypatch, isolation)
    log.log_ends("t")
    before = log._pool_name({"t"})
    broker.mark = 12
    log.log_ends("t")
    assert log._pool_name({"t"}) == before
    broker.mark = 11
    log.log_ends("t")
    assert log._pool_name({"t"}) != before
