"""``verify`` on logs that real engines wrote, and on logs that were tampered with."""

from __future__ import annotations

import logging
import shutil
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from share_spark import cli
from share_spark.audit import streams
from share_spark.audit.verify import VerifyReport, verify
from share_spark.coordinator import state_partition_of
from share_spark.delta.location import Location
from share_spark.model.errors import ConfigError, FencedError, StateError
from share_spark.state.tables import ensure_tables, log_table
from tests.support.engine_on_delta import DeltaWorld, only_on_spark
from tests.support.engine_world import ACCEPT, GROUP, REJECT, RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UPDATES = "share__coordinator__snapshot__update__records__per__snapshot"


@pytest.fixture(scope="module")
def worked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DeltaWorld:
    """Three share-partitions, two engines one after the other, several segments, and rows of a zombie at the end."""
    with pytest.MonkeyPatch.context() as patch:
        only_on_spark(patch)  # a zombie that compares and swaps leaves no rows
        world = DeltaWorld(
            spark,
            str(tmp_path_factory.mktemp("worked") / "state"),
            partitions=3,
            handler=lambda *record: (RELEASE, ACCEPT, ACCEPT, REJECT)[record[2] % 4],
            **{UPDATES: 2},
        )
        world.produce(9, 0)
        world.produce(4, 1)
        zombie = world.engine()
        for _ in range(4):
            zombie.run()
        successor = world.engine()
        world.clock.advance(60_000)
        for _ in range(3):
            successor.run()
        world.produce(5, 2)
        with pytest.raises(FencedError):
            zombie.run()
    return world


@pytest.mark.parametrize("has_session", [True, False])
def test_what_engines_wrote_agrees(worked: DeltaWorld, caplog: pytest.LogCaptureFixture, has_session: bool) -> None:
    with caplog.at_level(logging.INFO, logger="share_spark.audit.verify"):
        report = verify(worked.spark if has_session else None, worked.location)
    assert report.agrees
    assert [(verdict.topic, verdict.partition) for verdict in report.verdicts] == [("orders", n) for n in range(3)]
    rows = log_table(worked.location).load(worked.spark).where("kind <> 'claim'")
    segments = rows.select("writer_epoch", "segment").distinct().count()
    assert segments > 3
    assert {verdict.segments for verdict in report.verdicts} == {segments}
    late = rows.where("writer_epoch = 1").count() - rows.where("writer_epoch = 1 AND batch_id < 4").count()
    assert late > 0, "the zombie has left rows"
    assert report.rows == rows.count()
    assert "group billing: 3 share-partitions replayed, 0 with a fault" in caplog.messages
    assert cli.main(["verify", "--location", str(worked.location)]) == 0


def test_a_part_at_a_time_is_the_same(worked: DeltaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a segment, as of one that does not fit into memory; on the executors too."""
    whole, at_once = verify(None, worked.location), list[int]()
    assert verify(worked.spark, worked.location) == whole

    def counted(rows: pa.Table, place: streams.Place, group_id: str, bucket: int | None) -> list[streams.Stream]:
        at_once.append(rows.num_rows)
        return streams_in(rows, place, group_id, bucket)

    streams_in = streams.streams_in
    monkeypatch.setattr(streams, "streams_in", counted)
    assert verify(None, worked.location) == whole
    of_segments = at_once.copy()
    at_once.clear()
    monkeypatch.setattr(streams, "VALUES_AT_ONCE", 1)
    assert verify(None, worked.location) == whole
    assert (sum(at_once), max(at_once) < max(of_segments)) == (sum(of_segments), True)


def test_rows_that_are_deleted_are_left_to_spark(
    worked: DeltaWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table's files they are still there. The command starts a session for that, and says so."""
    copy = shutil.copytree(str(worked.location), tmp_path / "state")
    table = f"delta.`{copy}/share_state_log`"
    worked.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    worked.spark.sql(f"DELETE FROM {table} WHERE partition = 1")
    with pytest.raises(ConfigError, match="rows of its files are deleted"):
        verify(None, str(copy))
    assert cli.main(["verify", "--location", str(copy)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[:2] == [GROUP, "2"]
    assert "is read by Spark (rows of its files are deleted); Spark is started for that, which takes longer" in err


def test_a_file_that_is_damaged_is_one_line(
    worked: DeltaWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(str(worked.location), tmp_path / "state")
    next((copy / "share_state_log").rglob("*.parquet")).write_bytes(b"no Parquet")
    assert cli.main(["verify", "--location", str(copy)]) == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"share-spark: {copy}/share_state_log cannot be read: Parquet magic bytes not found")


def test_one_group_or_one_bucket(worked: DeltaWorld) -> None:
    everything = verify(worked.spark, worked.location, GROUP)
    first = everything.verdicts[0]
    bucket = state_partition_of(first.key)
    expected = tuple(verdict for verdict in everything.verdicts if state_partition_of(verdict.key) == bucket)
    assert verify(worked.spark, worked.location, GROUP, bucket).verdicts == expected
    empty_bucket = ({*range(50)} - {state_partition_of(verdict.key) for verdict in everything.verdicts}).pop()
    assert verify(worked.spark, worked.location, bucket=empty_bucket) == VerifyReport(verdicts=())


COUNTED = "array(named_struct('first_offset', 900L, 'last_offset', 909L, 'delivery_state', 0Y, 'delivery_count', {}S))"
TWO_AND_ONE = COUNTED.format(1)[:-1] + ", " + COUNTED.format(2).removeprefix("array(").replace("909L", "950L")
UNKNOWN = COUNTED.format(1).replace("0Y", "3Y")

FORGERIES: dict[str, tuple[str, list[str]]] = {
    # what is wrong: (the reported fault, what is left of a good log and added to it)
    "nothing": ("", ["SELECT * FROM theirs"]),
    "no snapshot": ("an update without a snapshot before it", ["SELECT * FROM theirs WHERE kind = 'ShareUpdate'"]),
    "an update of a snapshot that is not there": (
        "snapshot epoch is 7 where it should be 1",
        ["SELECT * FROM theirs", "SELECT * EXCEPT (snapshot_epoch), 7 AS snapshot_epoch FROM next"],
    ),
    "twice in one commit": (
        "two records of one share-partition in one commit",
        ["SELECT * FROM theirs", "SELECT * FROM last"],
    ),
    "state epoch, over segments": (
        "state epoch falls from 5 to 0",
        ["SELECT * EXCEPT (state_epoch), IF(segment = 0, state_epoch + 5, state_epoch) AS state_epoch FROM theirs"],
    ),
    "leader epoch, over segments": (
        "leader epoch falls from 5 to 0",
        ["SELECT * EXCEPT (leader_epoch), IF(segment = 0, 5, 0) AS leader_epoch FROM theirs"],
    ),
    "micro-batches, over segments": (
        "micro-batch 2: comes after micro-batch 2 of the segment before",
        ["SELECT * EXCEPT (batch_id), IF(segment = 0, batch_id + 1, batch_id) AS batch_id FROM theirs"],
    ),
    "unknown state": (
        "unknown delivery state 3",
        ["SELECT * FROM theirs", f"SELECT * EXCEPT (state_batches), {UNKNOWN} AS state_batches FROM next"],
    ),
    "a field is missing": (
        "start_offset is missing",
        ["SELECT * FROM theirs", "SELECT * EXCEPT (start_offset), CAST(NULL AS BIGINT) AS start_offset FROM next"],
    ),
    "overlap": (
        "batches 900-909 and 900-950 overlap",
        ["SELECT * FROM theirs", f"SELECT * EXCEPT (state_batches), {TWO_AND_ONE} AS state_batches FROM next"],
    ),
    "a count falls": (
        "900-909 Available (1) in the live state, 900-909 Available (2) in the KIP's form",
        [
            "SELECT * FROM theirs",
            f"SELECT * EXCEPT (state_batches), {COUNTED.format(2)} AS state_batches FROM next",
            "SELECT * EXCEPT (state_batches, batch_id), "
            f"{COUNTED.format(1)} AS state_batches, batch_id + 1 AS batch_id FROM next",
        ],
    ),
}


def test_every_forgery_is_reported_and_nothing_else(
    worked: DeltaWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of one share-partition under many keys, each with its own fault."""
    spark, copy = worked.spark, Location.parse(str(tmp_path / "forged"))
    log = log_table(worked.location).load(spark)
    views: dict[str, str | DataFrame] = {
        "theirs": log.where("partition = 0 AND writer_epoch = 1 AND kind <> 'claim' AND batch_id < 4"),
        "last": "SELECT * FROM theirs WHERE kind = 'ShareUpdate' AND segment = 0 ORDER BY batch_id DESC LIMIT 1",
        "next": "SELECT * EXCEPT (batch_id, acquired, start_offset), batch_id + 100 AS batch_id, array() AS acquired, "
        "-1L AS start_offset FROM theirs WHERE kind = 'ShareUpdate' ORDER BY segment DESC, batch_id DESC LIMIT 1",
    }
    for name, rows in views.items():
        (spark.sql(rows) if isinstance(rows, str) else rows).createOrReplaceTempView(name)
    ensure_tables(spark, copy)
    columns = [name for name in log.columns if name != "partition"]
    forged = [
        spark.sql(query).select(*columns).withColumn("partition", F.lit(place))
        for place, (_, queries) in enumerate(FORGERIES.values())
        for query in queries
    ]
    log_table(copy).append(reduce(lambda one, other: one.unionByName(other), forged).select(*log.columns))
    report = verify(None, copy)
    assert verify(spark, copy) == report
    faults = {name: verdict.fault or "" for name, verdict in zip(FORGERIES, report.verdicts, strict=True)}
    assert not report.agrees
    for name, (expected, _) in FORGERIES.items():
        assert faults[name].endswith(expected), name
    assert faults["nothing"] == ""
    assert faults["a count falls"].startswith("segment 1, micro-batch "), "the place is named"
    assert cli.main(["verify", "--location", str(copy), "--group", GROUP]) == cli.FAILED
    assert f"{GROUP} orders-1: {faults['no snapshot']}\n" in capsys.readouterr().out


def test_bad_input_is_one_line_and_changes_nothing(worked: DeltaWorld, tmp_path: Path) -> None:
    versions = worked.versions()
    for given, error, text in (
        ({"group_id": "unknown"}, StateError, "Group 'unknown' does not exist: the state in "),
        ({"bucket": 50}, ConfigError, "unknown bucket 50: they are 0 to 49"),
        ({"bucket": -1}, ConfigError, "unknown bucket -1"),
    ):
        with pytest.raises(error, match=text):
            verify(worked.spark, worked.location, **given)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="no share-group state at"):
        verify(worked.spark, str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []
    assert worked.versions() == versions
