"""Output rows of a share group in a Delta table: exactly once, together with the acknowledgements."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from share_spark.api.share_group import ShareGroup
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.table_log import TableLog
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.errors import ConfigError, SinkError
from share_spark.model.ids import BatchStamp
from share_spark.output.sink import DeltaSink
from share_spark.state.state_view import read_state
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTPUT = "number bigint, attempt int"


def bill(record: Record) -> Any:
    """Two rows per record; every fifth number is rejected, every seventh tried twice."""
    number, attempt = int(record.value), record.delivery_count
    rows = [{"number": number, "attempt": attempt}] * 2
    if number % 5 == 0:
        return Ack.REJECT, rows
    if number % 7 == 0 and attempt == 1:
        return Ack.RELEASE, rows
    return Ack.ACCEPT, rows


class OutputPlace:
    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.log = EmbeddedTopicLog(spark, str(directory / "topics"))
        self.log.create_topic("orders", 2)

    def put(self, numbers: range) -> None:
        self.log.append("orders", [Message(b"%d" % number, partition=number % 2) for number in numbers])

    def group(self, handler: Any = bill, output: str | None = OUTPUT, **options: Any) -> ShareGroup:
        group = ShareGroup("billing", spark=self.spark, state=str(self.directory / "state"))
        group = group.table(str(self.directory / "topics")).subscribe("orders").process(handler, output=output)
        given = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": 1000, **options}
        return group.options(**given).trigger(availableNow=True)

    def work_off(self, **options: Any) -> None:
        assert self.group(**options).to_delta(str(self.directory / "bills")).start().awaitTermination(120)

    def bills(self) -> list[tuple[int, int]]:
        rows = self.spark.read.format("delta").load(str(self.directory / "bills")).collect()
        return sorted((row.number, row.attempt) for row in rows)

    def counts(self) -> list[int]:
        rows = read_state(self.spark, str(self.directory / "state"), "billing").collect()
        return sorted({run.delivery_count for row in rows for run in row.in_flight})


def expected(numbers: range) -> list[tuple[int, int]]:
    accepted = [number for number in numbers if number % 5]
    return sorted((number, 2 if number % 7 == 0 else 1) for number in accepted for _ in range(2))


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> OutputPlace:
    return OutputPlace(spark, tmp_path)


def test_rows_of_accepted_records_are_there_once(place: OutputPlace) -> None:
    place.put(range(40))
    place.work_off()
    assert place.bills() == expected(range(40))
    place.put(range(40, 50))
    place.work_off()
    assert place.bills() == expected(range(50))


def test_a_state_that_is_removed_and_recreated_restarts_its_epochs(place: OutputPlace) -> None:
    """Earlier transactions, with their higher numbers, belong to another writer, for output rows and dead letters."""
    place.put(range(20))
    dead = str(place.directory / "dead")
    for times in (1, 2):
        group = place.group().to_delta(str(place.directory / "bills")).dead_letter(dead)
        assert group.start().awaitTermination(120)
        assert place.bills() == sorted(expected(range(20)) * times)
        assert place.spark.read.format("delta").load(dead).count() == 4 * times
        shutil.rmtree(place.directory / "state")


def write_and_die(place: OutputPlace) -> None:
    """The engine ends right after the sink's commit."""
    with pytest.MonkeyPatch.context() as patch:
        commit = DeltaSink.commit

        def die_after(self: DeltaSink, *given: Any) -> None:
            commit(self, *given)
            raise RuntimeError("the engine is gone")

        patch.setattr(DeltaSink, "commit", die_after)
        patch.setattr("share_spark.api.query.ShareGroupQuery._close_engine", lambda _self: None)
        query = place.group().to_delta(str(place.directory / "bills")).start()
        with pytest.raises(RuntimeError, match="the engine is gone"):
            query.awaitTermination(120)


def test_a_delivery_that_was_written_but_not_absorbed_is_absorbed_by_the_next_engine(place: OutputPlace) -> None:
    """What was written counts, and its records are not delivered again."""
    place.put(range(20))
    write_and_die(place)
    written = place.bills()
    assert written == [row for row in expected(range(20)) if row[1] == 1]
    place.work_off()
    assert place.bills() == expected(range(20))


def test_an_engine_without_a_sink_absorbs_what_is_in_the_sink_of_the_one_before(place: OutputPlace) -> None:
    """And fences it there: it may only sleep."""
    place.put(range(20))
    write_and_die(place)
    called = place.directory / "called"

    def note(record: Record) -> None:
        with called.open("a") as file:
            file.write(f"{int(record.value)}\n")

    assert place.group(handler=note, output=None).start().awaitTermination(120)
    again = sorted(map(int, called.read_text().split()))
    assert again == [number for number in range(20) if number % 5 and number % 7 == 0], "only what was released"
    log = TableLog.open(CommitFiles.at(place.spark, str(place.directory / "bills")))
    claims = [number for name, number in log.transactions.items() if "delivered" not in name]
    assert [BatchStamp.of_number(number).writer_epoch for number in claims] == [2]


def test_a_sink_that_refuses_rows_stops_the_engine_and_charges_no_record(place: OutputPlace) -> None:
    place.put(range(10))
    table = place.directory / "bills"
    place.spark.sql(f"CREATE TABLE delta.`{table}` (number bigint, attempt int, CHECK_ME int) USING delta")
    place.spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT never CHECK (number > 1000)")
    query = place.group().to_delta(str(table)).start()
    with pytest.raises(SinkError, match=r"sink .*bills refused the rows"):
        query.awaitTermination(120)
    assert place.bills() == []
    assert place.counts() == [0]
    place.spark.sql(f"ALTER TABLE delta.`{table}` DROP CONSTRAINT never")
    place.work_off()
    assert place.bills() == expected(range(10))


@pytest.mark.parametrize(
    ("output", "table", "reason"),
    [
        (None, None, r"declares no output: call process\(handler, output=\.\.\.\)"),
        (OUTPUT, "number string, attempt int", "column number"),
        (OUTPUT, "number bigint", "column attempt"),
    ],
)
def test_what_cannot_fit_is_reported_before_anything_starts(
    place: OutputPlace, output: str | None, table: str | None, reason: str
) -> None:
    if table is not None:
        place.spark.sql(f"CREATE TABLE delta.`{place.directory / 'bills'}` ({table}) USING delta")
    with pytest.raises(ConfigError, match=reason):
        place.group(output=output).to_delta(str(place.directory / "bills")).start()
    assert not (place.directory / "state").exists()


def test_a_sink_without_hard_links_is_refused_at_the_claim(place: OutputPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on exFAT, and on some network shares: at each start, not at the first delivery, and no attempt is counted."""
    place.put(range(10))
    link = os.link

    def no_link_below_bills(source: str, target: Path) -> None:
        if "bills" in target.parts:
            raise OSError(errno.EPERM, "Operation not permitted")
        link(source, target)

    monkeypatch.setattr(os, "link", no_link_below_bills)
    for _ in range(2):
        with pytest.raises(SinkError, match="bills cannot be claimed: its file system has no hard links") as caught:
            place.work_off()
        assert "\n" not in str(caught.value)
    monkeypatch.undo()
    place.work_off()
    assert place.bills() == expected(range(10))
