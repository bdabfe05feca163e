"""A sink that others write, clean up and overwrite while its engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from share_spark.model.errors import FencedError
from share_spark.model.ids import BatchStamp
from share_spark.output.sink_table import misfit
from tests.support.sink_place import SinkPlace, made_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["Spark", "files", "driver"])
def place(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SinkPlace:
    """Whoever writes the rows."""
    return made_place(request.param, spark, tmp_path, monkeypatch)


only_files = pytest.mark.parametrize("place", ["files"], indirect=True)


def test_a_sink_that_others_write_and_clean_up_while_its_engine_is_quiet(place: SinkPlace) -> None:
    """The version behind the last one that the engine knows is absent again, below a checkpoint."""
    sink, epoch, _ = place.claimed()
    for number in (50, 51):
        place.table.append(place.frame(number))
    place.clean_log()
    for number in (1, 2):
        sink.commit(BatchStamp(epoch, number), place.rows(number), b"")
        sink.forget()
    assert place.written() == [1, 2, 50, 51]


def test_a_claim_in_commits_that_are_gone_fences_a_quiet_engine(place: SinkPlace) -> None:
    quiet, epoch, _ = place.claimed()
    place.claimed()
    place.table.append(place.frame(50))
    place.clean_log()
    with pytest.raises(FencedError):
        quiet.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    assert place.written() == [50]


@only_files
@pytest.mark.parametrize("noticed_by", ["forget", "commit"])
def test_rows_that_another_writer_overwrites_are_committed_again(place: SinkPlace, noticed_by: str) -> None:
    """Delta's writer looks for the version, and renames over what has come between."""
    sink, epoch, _ = place.claimed()
    if noticed_by == "commit":
        sink.commit(BatchStamp(epoch, 0), place.rows(1), b"")
        sink.forget()
    else:
        sink.commit(BatchStamp(epoch, 0), place.rows(1), b"")
    ours = place.log() / f"{place.versions()[-1]:020d}.json"
    kept = ours.read_text()
    ours.unlink()
    place.table.append(place.frame(50))
    assert (place.written(), ours.read_text() == kept) == ([50], False)
    if noticed_by == "forget":
        sink.forget()
        assert place.written() == [1, 50]
    sink.commit(BatchStamp(epoch, 1), place.rows(2), b"")
    assert place.written() == [1, 2, 50]
    assert place.claimed()[2] == b""


def test_names_inside_of_structs_have_to_be_the_same() -> None:
    """Other readers than Spark know a field by its exact name, and would find none."""
    table = StructType.fromDDL("Id bigint, place struct<City: string>, past array<struct<Day: date>>")
    same = StructType.fromDDL("id bigint, place struct<City: string>, past array<struct<Day: date>>")
    assert misfit(same, table) is None
    for output, text in (
        ("place struct<city: string>", "the table spells place.city as place.City"),
        ("past array<struct<day: date>>", "the table spells past.element.day as past.element.Day"),
    ):
        assert text in str(misfit(StructType.fromDDL(output), table))
