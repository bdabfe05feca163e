"""The small files beside the state log: how they show that an engine has left work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from share_spark.delivery.ledger_place import KEPT_RECORDS
from share_spark.delta.journal import WAITING_LETTERS, Journal
from share_spark.delta.location import Location
from share_spark.maintenance.heartbeat import has_journals
from share_spark.model.ids import BatchStamp
from share_spark.state.tables import log_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "billing"


def test_an_entry_is_unfinished_work_but_what_was_never_an_entry_is_none(spark: SparkSession, tmp_path: Path) -> None:
    """An engine that dies between writing aside and renaming leaves a file that is never removed."""
    location = Location.parse(str(tmp_path / "state"))
    directory = log_table(location).directory(spark)
    journal = Journal(spark, directory, "output", GROUP)
    assert not has_journals(spark, location, GROUP)
    journal.put(BatchStamp(3, -1), b"a claim")
    Journal(spark, directory, WAITING_LETTERS, GROUP).put(BatchStamp(3, 4), b"committed, whatever comes after it")
    (Path(directory) / "_share_spark" / "output" / GROUP / ".3-7.tmp").write_text("half")
    kept = Path(directory) / "_share_spark" / KEPT_RECORDS / GROUP / "spark-0a04ae846a06"
    kept.mkdir(parents=True)
    (kept / "records.arrow").write_text("not to be read again")
    assert not has_journals(spark, location, GROUP)
    journal.put(BatchStamp(3, 7), b"about to write")
    assert has_journals(spark, location, GROUP)
