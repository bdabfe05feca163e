"""The main job through its command line, in one session: a run that works, and bad input that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from share_spark import Ack, EmbeddedTopicLog, Record, ShareGroupAdmin, cli, read_state
from share_spark.topics.topic_producer import Message
from tests.support.small_disk import fill, make_read_only, small_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = __name__


def odd_ones_out(record: Record) -> Ack:
    number = int(record.value or b"")
    if number % 10 == 3:
        return Ack.REJECT
    if number == 7 or (number == 5 and record.delivery_count == 1):
        raise ValueError(f"cannot do {number}")
    return Ack.ACCEPT


def accept(record: Record) -> None:
    return None


def fills_the_disk(record: Record) -> tuple[Ack, dict[str, bytes | None]]:
    if record.value == b"11":
        fill(Path((record.key or b"").decode()))
    return Ack.ACCEPT, {"v": record.value}


def rows(record: Record) -> tuple[Ack, dict[str, bytes | None]]:
    return Ack.ACCEPT, {"v": record.value}


def half_of_even(value: bytes) -> int:
    if int(value) % 2:
        raise ValueError("it is odd")
    return int(value) // 2


def row_of(number: int) -> tuple[Ack, dict[str, int]]:
    return Ack.ACCEPT, {"half": number}


def too_few(batch: pa.RecordBatch) -> list[int]:
    return [1] * (batch.num_rows - 1)


def of_no_type(batch: pa.RecordBatch) -> Any:
    return pa.array([1.0] * batch.num_rows)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic table with 20 records in the 2 partitions of ``orders``, and a group ``living`` that is through with
    them."""
    place = tmp_path_factory.mktemp("lake")
    topics = EmbeddedTopicLog(spark, str(place / "topics"))
    topics.create_topic("orders", 2)
    topics.append("orders", [Message(b"%d" % n, partition=n % 2) for n in range(20)])
    assert cli.main(order(place, "--starting", "earliest", group="living")) == 0
    return place


def order(lake: Path, *more: str, group: str = "billing", topic: str = "orders", handler: str = "accept") -> list[str]:
    where = ["--topic-table", str(lake / "topics"), "--state", str(lake / "state")]
    what = ["--group", group, "--topic", topic, "--handler", f"{HERE}:{handler}"]
    return ["run", *where, *what, "--available-now", *more]


def versions(lake: Path) -> dict[str, int]:
    """Every Delta table below the lake and the number of its commits, every checkpoint and the number of its files."""
    found = {log.parent: len(list(log.glob("*.json"))) for log in lake.rglob("_delta_log")}
    found |= {one: len(list(one.rglob("*"))) for one in lake.rglob("_checkpoints/*")}
    return {str(place.relative_to(lake)): count for place, count in sorted(found.items())}


def refused(lake: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one line; nothing may have changed."""
    before = versions(lake)
    capsys.readouterr()
    assert cli.main(arguments) == cli.BAD_INPUT
    output = capsys.readouterr()
    assert output.err.count("\n") == 1, output.err
    assert output.err.startswith("share-spark: ")
    assert output.out == ""
    assert versions(lake) == before
    return output.err


def test_a_run_reports_what_it_did(
    spark: SparkSession, lake: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    letters = str(tmp_path / "letters")
    arguments = order(
        lake, "--starting", "earliest", "--dead-letter", letters, handler="odd_ones_out", group="reported"
    )
    assert cli.main(arguments) == 0
    output = capsys.readouterr()
    summary = dict(
        line.split()[:2] for line in output.out.splitlines() if line.startswith("  ") and len(line.split()) > 1
    )
    counts = {name: summary[name] for name in ("acquired", "accepted", "released", "rejected", "lag", "1st", "2nd")}
    expected = {"acquired": 25, "accepted": 17, "released": 5, "rejected": 2, "lag": 0, "1st": 20, "2nd": 2}
    assert counts == {name: str(count) for name, count in expected.items()}
    assert "start: earliest" in output.err
    rows = spark.read.format("delta").load(letters).collect()
    assert sorted((int(row.value), row.delivery_count) for row in rows) == [(3, 1), (7, 5), (13, 1)]
    sql = next(line.split(maxsplit=1)[1] for line in output.out.splitlines() if line.strip().startswith("SQL"))
    assert [(row.partition, row.start_offset, row.acquired) for row in spark.sql(sql).collect()] == [
        (0, 10, 0),
        (1, 10, 0),
    ]


def test_values_are_made_by_the_function_that_is_named(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    halves, letters = str(tmp_path / "halves"), str(tmp_path / "letters")
    output = ["--to-delta", halves, "--output-schema", "half bigint", "--dead-letter", letters]
    values = ["--value-from", f"{HERE}:half_of_even", "--starting", "earliest"]
    assert cli.main(order(lake, *values, *output, handler="row_of", group="halves")) == 0
    assert sorted(row.half for row in spark.read.format("delta").load(halves).collect()) == [*range(10)]
    rejected = spark.read.format("delta").load(letters).collect()
    assert sorted(int(row.value) for row in rejected) == [*range(1, 20, 2)]
    assert all("it is odd" in row.error for row in rejected)


def test_a_second_run_goes_on_from_the_state(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    ShareGroupAdmin(str(lake / "state")).alter_configs("living", {"delivery.rate.limit": 5_000})
    assert cli.main(order(lake, group="living")) == 0
    output = capsys.readouterr()
    assert "start: the group's state" in output.err
    assert "dynamic settings, which win over those of the job: delivery.rate.limit=5000.0\n" in output.err
    assert "acquired                 0" in output.out


def test_now_from_the_default_start_asks(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "choose --starting earliest, latest or" in refused(lake, capsys, order(lake))


def test_an_unknown_topic(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = refused(lake, capsys, order(lake, "--starting", "earliest", topic="ordres"))
    assert "ordres" in output


def test_no_topic_table(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(lake / "nowhere")
    output = refused(lake, capsys, order(lake, "--starting", "earliest", "--topic-table", missing))
    assert missing in output


def test_a_state_that_is_a_foreign_table(spark: SparkSession, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = lake / "foreign"
    for place in (foreign, lake / "mixed" / "share_state_log"):
        spark.range(1).write.format("delta").save(str(place))
        state_dir = str(foreign if place is foreign else lake / "mixed")
        output = refused(lake, capsys, order(lake, "--starting", "earliest", "--state", state_dir))
        assert state_dir in output


def test_a_state_of_a_newer_version(spark: SparkSession, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = lake / "newer"
    properties = "'share_spark.table' = 'share_state_log', 'share_spark.format.version' = '99'"
    spark.sql(f"CREATE TABLE delta.`{newer}/share_state_log` (a int) USING DELTA TBLPROPERTIES ({properties})")
    output = refused(lake, capsys, order(lake, "--starting", "earliest", "--state", str(newer)))
    assert "newer share_spark (format 99" in output


def test_a_checkpoint_of_another_group(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = str(lake / "state" / "_checkpoints" / "living")
    output = refused(lake, capsys, order(lake, "--starting", "earliest", "--checkpoint", theirs))
    assert "belongs to group 'living', not 'billing'" in output


def test_a_dead_letter_table_of_another_kind(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = refused(lake, capsys, order(lake, "--starting", "earliest", "--dead-letter", str(lake / "topics")))
    assert "is not a dead-letter table" in output


def test_a_topic_that_was_created_again(spark: SparkSession, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topics = EmbeddedTopicLog(spark, str(lake / "topics"))
    topics.create_topic("fleeting", 1)
    assert cli.main(order(lake, "--starting", "earliest", topic="fleeting", group="loyal")) == 0
    topics.append("fleeting", [Message(b"1")])
    assert cli.main(order(lake, topic="fleeting", group="loyal")) == 0
    before = read_state(spark, str(lake / "state"), "loyal").collect()
    topics.delete_topic("fleeting")
    topics.create_topic("fleeting", 1)
    capsys.readouterr()
    assert cli.main(order(lake, topic="fleeting", group="loyal")) == cli.BAD_INPUT
    output = capsys.readouterr().err
    assert "'fleeting' was deleted and created again" in output
    assert output.count("\n") == 1
    assert read_state(spark, str(lake / "state"), "loyal").collect() == before


@pytest.mark.parametrize(("handler", "message"), [("too_few", "9 acknowledgement"), ("of_no_type", "of type double")])
def test_a_handler_that_breaks_its_contract(
    spark: SparkSession, lake: Path, capsys: pytest.CaptureFixture[str], handler: str, message: str
) -> None:
    """Known only when it is called: the run fails, in one line, and gives back what it held."""
    capsys.readouterr()
    assert cli.main(order(lake, "--starting", "earliest", group=handler, handler=handler)) == cli.FAILED
    lines = [line for line in capsys.readouterr().err.splitlines() if "records/s" not in line]
    assert message in lines[-1]
    assert handler in lines[-1]
    assert len([line for line in lines if line.startswith("share-spark: ")]) == 3
    held = read_state(spark, str(lake / "state"), handler).collect()
    assert [(row.start_offset, row.acquired) for row in held] == [(0, 0), (0, 0)]


def test_the_checkpoint_says_whose_it_is(lake: Path) -> None:
    note = json.loads((lake / "state" / "_checkpoints" / "living" / "share_group.json").read_text())
    assert note["group_id"] == "living"


@pytest.fixture(autouse=True)
def signals_are_put_back() -> Iterator[None]:
    """A command leaves the process's signal handlers as they were."""
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("what", ["full", "read-only"])
@pytest.mark.parametrize("place", ["state", "sink"])
def test_a_disk_that_cannot_be_written_at_the_start_is_no_bad_input(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, what: str
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        fill(disk) if what == "full" else make_read_only(disk)
        arguments = order(lake, "--starting", "earliest", handler="fills_the_disk")
        if place == "state":
            arguments[arguments.index("--state") + 1] = str(disk / "state")
        else:
            arguments += ["--to-delta", str(disk / "sink"), "--output-schema", "v binary"]
        assert cli.main(arguments) == cli.FAILED
    line = capsys.readouterr().err
    assert str(disk / place) in line
    assert ("No space left on device" if what == "full" else "Read-only file system") in line


def test_a_disk_that_is_full_during_a_run_is_named_and_costs_no_attempt(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = EmbeddedTopicLog(spark, str(tmp_path / "topics"))
    topics.create_topic("orders", 1)
    with small_disk(tmp_path / "disk", "8m") as disk:
        topics.append("orders", [Message(b"%d" % n, str(disk).encode()) for n in range(20)])
        arguments = order(tmp_path, "--starting", "earliest", handler="fills_the_disk")
        arguments += ["--to-delta", str(disk / "sink"), "--output-schema", "v binary"]
        assert cli.main(arguments) == cli.FAILED
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"share-spark: output rows cannot be written to {disk / 'sink'}: ")
        assert "No space left on device" in line
        (row,) = read_state(spark, str(tmp_path / "state"), "billing").collect()
        assert (row.start_offset, row.available, row.max_delivery_count) == (0, 20, 0)
        (disk / "ballast").unlink()
        assert cli.main([part.replace("fills_the_disk", "rows") for part in arguments]) == 0
        assert spark.read.format("delta").load(str(disk / "sink")).count() == 20
