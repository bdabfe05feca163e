"""Spark readers of a state log whose group has members: their rows disturb nobody, and Spark reads them as well."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from share_spark import read_state, record_attempts, record_history, verify
from share_spark.delta.location import Location
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.state.direct_rows import FOLDED_SCHEMA
from share_spark.state.fold import fold_log
from share_spark.state.group_log import GroupLog
from tests.support.raw_members import RawMember, connection, stored
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, work_off
from tests.unit.gateway.test_share_consumer import ACCEPT


def test_spark_reads_share_partitions_and_members(spark: SparkSession, tmp_path: Path) -> None:
    place = Place.below(tmp_path, partitions=2)
    place.produce(1, 20)
    with place.gateway(history__retention="1d") as address, connection(address) as at:
        with consumer(address) as found:
            work_off(found, 20, lambda _: ACCEPT)
        for name in ("m1", "m2"):
            RawMember(name).join(at)
    before = stored(place)
    assert set(before.members) == {"m1", "m2"}
    expect_undisturbed(spark, place)
    order = CompactionOrder(state=Location.parse(place.state), idle_ms=0)
    assert any("snapshot" in step.text for step in compact(spark, order).steps)
    assert stored(place) == before
    expect_undisturbed(spark, place)


def expect_undisturbed(spark: SparkSession, place: Place) -> None:
    rows = read_state(spark, place.state).orderBy("partition").collect()
    assert [(row.topic, row.partition, row.start_offset) for row in rows] == [(TOPIC, 0, 10), (TOPIC, 1, 10)]
    history = record_history(spark, place.state, group_id=GROUP, topic=TOPIC, partition=0, offset=3)
    assert [row.event for row in history.collect()][:1] == ["acquired"]
    attempts = record_attempts(spark, place.state, GROUP).where("outcome = 'accepted'").collect()
    assert sum(row.last_offset - row.first_offset + 1 for row in attempts) == 20
    assert verify(spark, place.state).agrees
    by_hand = f"SELECT member_id FROM (SELECT explode(group_records) AS one FROM delta.`{place.state}/share_state_log`)"
    assert spark.sql(by_hand.replace("member_id", "one.member_id")).where("member_id = 'm1'").count() > 0


def test_spark_restores_members_where_the_files_do_not_suffice(spark: SparkSession, tmp_path: Path) -> None:
    place = Place.below(tmp_path, partitions=1)
    with place.gateway() as address, connection(address) as at:
        RawMember("m1").join(at)
    log = GroupLog(spark=spark, location=Location.parse(place.state), group_id=GROUP, run_id="test")
    tail = log.open()
    assert tail.valid is not None
    rows = tail.rows(spark).where("kind != 'claim'").select(FOLDED_SCHEMA.names).toArrow()
    found = fold_log([rows.sort_by("batch_id")], GROUP)
    assert found == log.folded(tail)
    assert found.group == stored(place)
