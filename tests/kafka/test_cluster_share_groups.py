"""The broker's own share groups, asked for by our own requests."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import ShareConsumer

from share_spark.cli import main
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.share_groups import ClusterGroup, ClusterShareGroups
from tests.kafka.test_broker import TIMEOUT_S, create_topic, produce


def seen(watched: ClusterShareGroups) -> ClusterGroup:
    """Nothing yet, at first."""
    found = [one for one in watched.look().groups if one.group_id == "watchers"]
    return found[0] if found else ClusterGroup(group_id="watchers", state="")


def test_members_assignments_and_offsets_of_a_real_share_group(broker: str, tmp_path: Path) -> None:
    create_topic(broker, "watched", partitions=2)
    produce(broker, "watched", [b"%d" % number for number in range(10)])
    watched = ClusterShareGroups(KafkaOptions.parse({"bootstrap.servers": broker}), TIMEOUT_S * 1_000)
    consumer = ShareConsumer({"bootstrap.servers": broker, "group.id": "watchers"})
    consumer.subscribe(["watched"])
    try:
        for _ in range(TIMEOUT_S):
            consumer.poll(1.0)
            group = seen(watched)
            if group.partitions and any(one.assigned for one in group.members):
                break
        assert (group.state, group.fault, len(group.members)) == ("Stable", "", 1)
        assert [sorted(one.assigned["watched"]) for one in group.members] == [[0, 1]]
        assert {(one.topic, one.partition) for one in group.partitions} == {("watched", 0), ("watched", 1)}
        assert watched.look().locks == 10_000
        file = tmp_path / "cluster.html"
        assert main(["report", "--bootstrap-server", broker, "--group", "watchers", "--html", str(file)]) == 0
        assert "watched: 0, 1" in file.read_text()
    finally:
        consumer.close()
    assert main(["report", "--bootstrap-server", broker, "--group", "nobody", "--html", str(file)]) == 1
