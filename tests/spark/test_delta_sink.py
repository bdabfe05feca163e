"""Output rows into a Delta table, each once, wherever an engine crashes: a crash is a sink that is not used any more, a
zombie one that goes on after another sink's claim."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.functions import lit
from pyspark.sql.types import StructType

from share_spark.delivery import frame_files
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.model.errors import ConfigError, FencedError, OutputLostError, OutputUnknownError, SinkError
from share_spark.model.ids import NO_STAMP, BatchStamp
from share_spark.output.sink import DeltaSink
from share_spark.output.sink_table import misfit
from tests.support.sink_place import SCHEMA, SinkPlace, made_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(params=[pytest.param("Spark", marks=pytest.mark.long), "files"])
def place(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SinkPlace:
    """Rows by Spark's writer, in files that workers have written, or in files that the driver puts, into a partitioned
    table. Spark's is slow: most of its tests are left to `make test-all`."""
    return made_place(request.param, spark, tmp_path, monkeypatch)


only_by_spark = pytest.mark.parametrize("place", ["Spark"], indirect=True)
only_by_driver = pytest.mark.parametrize("place", ["driver"], indirect=True)
each_way = pytest.mark.parametrize("place", ["Spark", "files", "driver"], indirect=True)


def test_a_first_claim_returns_nothing_and_rows_are_written(place: SinkPlace) -> None:
    sink, epoch, left = place.claimed()
    assert left is None
    sink.commit(BatchStamp(epoch, 0), place.rows(1, 2), b"first")
    assert place.journal() == [(1, -1), (1, 0)]
    sink.forget()
    sink.commit(BatchStamp(epoch, 1), place.rows(3), b"second")
    sink.forget()
    assert place.written() == [1, 2, 3]
    assert place.journal() == [(1, -1)]


def test_a_delivery_without_rows_leaves_no_trace(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    before = place.versions()
    sink.commit(BatchStamp(epoch, 0), None, b"not needed")
    assert place.versions() == before
    assert place.journal() == [(1, -1)]


@each_way
def test_what_was_written_but_not_absorbed_comes_back_until_it_is(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 7), place.rows(1), b"acks\n\x00of 7")
    for _ in range(3):
        successor, _, left = place.claimed()
        assert left == b"acks\n\x00of 7"
    successor.forget()
    assert place.claimed()[2] is None
    assert place.written() == [1]


def test_what_was_journaled_but_not_written_is_dropped(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 0), place.rows(1), b"absorbed")
    sink.forget()
    sink.writer.journal.put(BatchStamp(epoch, 1), sink._entry(b"never written").to_bytes())
    assert place.claimed()[2] is None
    assert place.journal() == [(2, -1)]


def test_only_the_last_delivery_can_be_unabsorbed(place: SinkPlace) -> None:
    """An engine that ends after its state row and before ``forget`` leaves an entry that is not needed any more."""
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 0), place.rows(1), b"absorbed")
    sink.commit(BatchStamp(epoch, 1), place.rows(2), b"not absorbed")
    assert place.claimed()[2] == b"not absorbed"
    assert place.journal() == [(1, 1), (2, -1)]


@each_way
def test_a_zombie_is_fenced_and_writes_nothing(place: SinkPlace) -> None:
    zombie, old, _ = place.claimed()
    zombie.commit(BatchStamp(old, 0), place.rows(1), b"")
    successor, new, _ = place.claimed()
    before = place.versions()
    with pytest.raises(FencedError, match=r"has claimed sink .* \(writer epoch 2\); this one \(epoch 1\) stops"):
        zombie.commit(BatchStamp(old, 1), place.rows(99), b"too late")
    assert place.versions() == before
    successor.commit(BatchStamp(new, 0), place.rows(2), b"")
    with pytest.raises(FencedError):
        zombie.commit(BatchStamp(old, 2), place.rows(98), b"too late")
    assert place.written() == [1, 2]


def test_what_a_zombie_journals_after_the_claim_is_never_believed(place: SinkPlace) -> None:
    zombie, old, _ = place.claimed()
    place.claimed()
    with pytest.raises(FencedError):
        zombie.commit(BatchStamp(old, 1), place.rows(99), b"too late")
    assert (old, 1) in place.journal()
    assert place.claimed()[2] is None
    assert place.journal() == [(3, -1)]


def test_a_zombie_forgets_only_what_is_its_own(place: SinkPlace) -> None:
    zombie, old, _ = place.claimed()
    zombie.commit(BatchStamp(old, 0), place.rows(1), b"")
    successor, new, _ = place.claimed()
    successor.commit(BatchStamp(new, 0), place.rows(2), b"of the successor")
    zombie.forget()
    assert place.claimed()[2] == b"of the successor"


def test_a_claim_below_anothers_is_fenced(place: SinkPlace) -> None:
    slow = place.engine()
    place.epochs = 1
    place.claimed()
    slow.prepare(SCHEMA)
    with pytest.raises(FencedError, match="another engine has claimed"):
        slow.claim(place.writer(1), NO_STAMP)


@only_by_spark
def test_a_claim_that_comes_in_while_an_append_is_under_way(place: SinkPlace, tmp_path: Path) -> None:
    """The append has looked at the transactions before the claim, and commits after it."""
    zombie, old, _ = place.claimed()
    started, go_on = str(tmp_path / "started"), str(tmp_path / "go on")

    def slow(batches: Any) -> Any:
        Path(started).touch()
        deadline = time.monotonic() + 120
        while not Path(go_on).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from batches

    rows = place.rows(99).coalesce(1).mapInArrow(slow, "id bigint, what string")
    with ThreadPoolExecutor() as pool:
        append = pool.submit(zombie.commit, BatchStamp(old, 0), rows, b"")
        while not Path(started).exists():
            assert not append.done()
            time.sleep(0.05)
        assert place.claimed()[2] is None
        Path(go_on).touch()
        with pytest.raises(FencedError):
            append.result()
    assert place.written() == []


def test_recovery_outlives_the_log(place: SinkPlace) -> None:
    """OPTIMIZE, a checkpoint and the deletion of every commit file before it leave nothing but the transactions."""
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 0), place.rows(1), b"absorbed")
    sink.forget()
    sink.commit(BatchStamp(epoch, 1), place.rows(2), b"kept")
    place.table.delta_table(place.spark).optimize().executeCompaction()
    place.clean_log()
    assert place.claimed()[2] == b"kept"
    place.clean_log()
    assert place.claimed()[2] == b"kept"
    place.table.append(place.frame(3))
    place.clean_log()
    successor, epoch, left = place.claimed()
    assert left == b"kept"
    successor.forget()
    successor.commit(BatchStamp(epoch, 0), place.rows(4), b"")
    assert place.written() == [1, 2, 3, 4]


@only_by_spark
def test_our_own_append_is_known_by_its_number_where_its_commit_file_is_gone(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    sink.table = CleansLog(path=place.table.path, place=place)
    sink.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    assert (place.written(), place.versions()) == ([1, 50], [3])


@dataclass(frozen=True, kw_only=True)
class CleansLog(Location):
    """Right after the append another program writes, and cleans up the log."""

    place: SinkPlace

    def append(self, frame: DataFrame, options: Mapping[str, str] | None = None) -> None:
        super().append(frame, options)
        super().append(self.place.frame(50))
        self.place.clean_log()


def test_a_group_that_was_given_another_sink(place: SinkPlace, tmp_path: Path) -> None:
    """What was written to the old sink counts, and the old engine can write there no more."""
    zombie, old, _ = place.claimed()
    zombie.commit(BatchStamp(old, 0), place.rows(1), b"in the old one")
    other = Location(path=str(tmp_path / "other"))
    _, _, left = place.claimed(other)
    assert left == b"in the old one"
    with pytest.raises(FencedError):
        zombie.commit(BatchStamp(old, 1), place.rows(2), b"")
    assert (place.written(), place.written(other)) == ([1], [])


def test_an_engine_that_never_wrote_is_fenced_in_its_own_sink(place: SinkPlace, tmp_path: Path) -> None:
    zombie, old, _ = place.claimed()
    place.claimed(Location(path=str(tmp_path / "other")))
    with pytest.raises(FencedError):
        zombie.commit(BatchStamp(old, 0), place.rows(1), b"")


def test_a_sink_that_is_gone_takes_its_rows_along(place: SinkPlace, tmp_path: Path) -> None:
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 0), place.rows(1), b"gone")
    place.log().parent.rename(tmp_path / "elsewhere")
    assert place.claimed(Location(path=str(tmp_path / "other")))[2] is None


def test_groups_do_not_fence_each_other(place: SinkPlace) -> None:
    ours, epoch, _ = place.claimed()
    theirs = place.engine()
    assert theirs.claim(place.writer(9, "billing/us"), NO_STAMP) is None
    theirs.commit(BatchStamp(9, 0), place.rows(9), b"")
    ours.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    assert place.written() == [1, 9]


# ------------------------------------------------------------------------------------------ appends that fail


@only_by_spark
def test_a_sink_that_refuses_rows(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    place.spark.sql(f"ALTER TABLE {place.table.sql_name()} ADD CONSTRAINT small CHECK (id < 5)")
    with pytest.raises(SinkError) as caught:
        sink.commit(BatchStamp(epoch, 0), place.rows(1, 7), b"refused")
    assert str(caught.value).startswith(f"sink {place.table} refused the rows: ")
    assert "CHECK constraint small" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert place.written() == []
    assert place.claimed()[2] is None


@only_by_spark
def test_null_where_the_table_forbids_it(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    with pytest.raises(SinkError, match=r"refused the rows: .*NOT NULL"):
        sink.commit(BatchStamp(epoch, 0), place.rows(1).selectExpr("CAST(NULL AS bigint) id", "what"), b"")


def test_a_table_whose_columns_changed_under_us(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    other = place.spark.range(1).selectExpr("'x' id")
    other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(place.table.path)
    with pytest.raises(SinkError, match="refused the rows"):
        sink.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    assert place.written() == ["x"]


def test_a_table_that_is_gone(place: SinkPlace, tmp_path: Path) -> None:
    """Delta would create it again, without what its transactions say."""
    sink, epoch, _ = place.claimed()
    rows = place.rows(1)
    place.log().parent.rename(tmp_path / "elsewhere")
    with pytest.raises(SinkError, match="is gone"):
        sink.commit(BatchStamp(epoch, 0), rows, b"")


@pytest.mark.parametrize("place", ["Spark", "driver"], indirect=True)
def test_rows_that_were_lost_are_no_fault_of_the_sink(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    lost = place.rows(1).selectExpr("id", "string(raise_error('OutputLostError: gone')) what")
    with pytest.raises(OutputLostError, match="was lost with its executor"):
        sink.commit(BatchStamp(epoch, 0), lost, b"")
    sink.commit(BatchStamp(epoch, 1), place.rows(2), b"")
    assert place.written() == [2]


@each_way
def test_an_append_that_happened_though_it_raised_is_believed(place: SinkPlace) -> None:
    sink, epoch, _ = place.claimed()
    with answers_are_lost(sink):
        sink.commit(BatchStamp(epoch, 0), place.rows(1), b"acks")
    assert place.written() == [1]
    sink.forget()
    sink.commit(BatchStamp(epoch, 1), place.rows(2), b"more")
    assert place.written() == [1, 2]
    sink.forget()
    assert place.claimed()[2] is None


def test_where_the_outcome_of_an_append_is_unknown_the_next_claim_finds_it(
    place: SinkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append has happened, its answer is lost, and then the storage does not answer at all."""
    sink, epoch, _ = place.claimed()

    def unreachable(*_: Any) -> None:
        raise Py4JError("no route to host")

    with monkeypatch.context() as patch, answers_are_lost(sink):
        patch.setattr(CommitFiles, "read", unreachable)
        with pytest.raises(OutputUnknownError, match="does not say what is in it: no route to host"):
            sink.commit(BatchStamp(epoch, 0), place.rows(1), b"acks")
    assert place.claimed(counted=BatchStamp(epoch, 0))[2] == b"acks"
    assert place.written() == [1]


@contextmanager
def answers_are_lost(sink: DeltaSink) -> Iterator[None]:
    """Each append happens, and then raises: Spark's, and that of files."""
    table, commit = sink.table, CommitFiles.commit

    def raises_after(files: CommitFiles, version: int, *given: Any) -> bool:
        commit(files, version, *given)
        raise Py4JError("connection reset")

    sink.table = RaisesAfter(path=table.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitFiles, "commit", raises_after)
        yield
    sink.table = table


class RaisesAfter(Location):
    """An append whose answer is lost."""

    def append(self, frame: DataFrame, options: Mapping[str, str] | None = None) -> None:
        super().append(frame, options)
        raise Py4JError("connection reset")


# --------------------------------------------------------------------------------- files that the driver puts


def engines(place: SinkPlace) -> list[str]:
    """Who has made the commits with rows."""
    lines = [json.loads(line) for version in place.versions() for line in place.commit_lines(version)]
    return [line["commitInfo"]["engineInfo"] for line in lines if "commitInfo" in line]


@only_by_driver
def test_rows_that_are_too_many_for_the_driver_are_appended_by_spark(
    place: SinkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, old, _ = place.claimed()
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    monkeypatch.setattr(frame_files, "MOST_BYTES", 1)
    sink.commit(BatchStamp(epoch, 1), place.rows(2), b"")
    with pytest.raises(FencedError):
        zombie.commit(BatchStamp(old, 0), place.rows(99), b"")
    monkeypatch.undo()
    sink.commit(BatchStamp(epoch, 2), place.rows(3), b"")
    assert place.written() == [1, 2, 3]
    assert [name.startswith("Apache-Spark") for name in engines(place)[-3:]] == [False, True, False]


@only_by_driver
@pytest.mark.parametrize("nth", [1, 2])
def test_files_that_were_put_and_never_named_are_no_rows(
    place: SinkPlace, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """The process ends after it has put the ``nth`` of two files, before the commit."""
    zombie, old, _ = place.claimed()
    put, done = DirectAppends.put, itertools.count(1)

    def ends(appends: DirectAppends, file: DataFile, content: bytes) -> None:
        put(appends, file, content)
        if next(done) == nth:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DirectAppends, "put", ends)
        with pytest.raises(KeyboardInterrupt):
            zombie.commit(BatchStamp(old, 0), place.rows(1).unionAll(place.rows(2).withColumn("what", lit("b"))), b"")
    assert place.written() == []
    successor, epoch, left = place.claimed()
    assert left is None
    successor.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    with pytest.raises(FencedError):
        zombie.commit(BatchStamp(old, 1), place.rows(99), b"")
    assert place.written() == [1]
    assert len(list(place.log().parent.rglob("*.parquet"))) > 1, "VACUUM removes them"


# ----------------------------------------------------------------------------------------------- the table


@only_by_spark
def test_a_catalog_table_works_as_well(place: SinkPlace) -> None:
    place.spark.sql("CREATE SCHEMA IF NOT EXISTS sinks")
    place.table = Location.parse(f"sinks.t{uuid.uuid4().hex[:8]}")
    zombie, old, _ = place.claimed()
    assert place.table.load(place.spark).schema["id"].nullable is False
    zombie.commit(BatchStamp(old, 0), place.rows(1), b"acks")
    successor, new, left = place.claimed()
    assert left == b"acks"
    with pytest.raises(FencedError):
        zombie.commit(BatchStamp(old, 1), place.rows(2), b"")
    place.spark.sql(f"ALTER TABLE {place.table.sql_name()} ADD COLUMN later int")
    successor.commit(BatchStamp(new, 0), place.rows(3), b"")
    assert place.written() == [1, 3]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("id bigint", "it has no column what, which the output schema declares"),
        ("id int, what string", "column id is int, but the output schema declares bigint"),
        ("id bigint, what string NOT NULL", "column what must not be null, but the output schema allows it"),
        ("id bigint, what string, more int NOT NULL", "column more must not be null, and the output schema does not"),
        ("id bigint, what string, day date", "it is partitioned by day, which the output schema does not have"),
    ],
)
def test_a_table_that_does_not_fit_is_reported_at_once(place: SinkPlace, columns: str, reason: str) -> None:
    place.table.create(place.spark, columns, partitioned_by=["day"] if "day" in columns else ())
    with pytest.raises(ConfigError, match=f"sink {place.table}: {reason}"):
        place.engine().prepare(SCHEMA)
    assert place.versions() == [0]


@only_by_spark
def test_a_table_with_more_columns_fits(place: SinkPlace) -> None:
    place.table.create(place.spark, "later int, ID bigint NOT NULL, What string", partitioned_by=["What"])
    sink, epoch, _ = place.claimed()
    sink.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    assert place.written() == [1]


def test_what_is_no_sink(place: SinkPlace, tmp_path: Path) -> None:
    place.table.create(place.spark, "id bigint, what string", properties={"share_spark.table": "dead_letters"})
    with pytest.raises(ConfigError, match="is a table of share_spark itself"):
        place.engine().prepare(SCHEMA)
    forgets = {"delta.setTransactionRetentionDuration": "interval 7 days"}
    place.table = Location(path=str(tmp_path / "forgets"))
    place.table.create(place.spark, "id bigint, what string", properties=forgets)
    with pytest.raises(ConfigError, match="setTransactionRetentionDuration set: Delta would forget"):
        place.engine().prepare(SCHEMA)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.csv").write_text("1,x\n")
    with pytest.raises(ConfigError, match="files is not a Delta table"):
        place.engine(Location(path=str(tmp_path / "files"))).prepare(SCHEMA)


def test_nested_columns_are_compared() -> None:
    def struct(text: str) -> StructType:
        return StructType.fromDDL(text)

    table = struct("a struct<x:int,y:array<struct<z:string>>>, m map<string,struct<v:int>>")
    assert misfit(struct("A struct<x:int>, m map<string,struct<v:int>>"), table) is None
    assert misfit(struct("a struct<y:array<struct<z:int>>>"), table) == (
        "column a.y.element.z is string, but the output schema declares int"
    )
    assert misfit(struct("m map<string,struct<w:int>>"), table) == (
        "it has no column m.value.w, which the output schema declares"
    )
