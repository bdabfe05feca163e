"""The engine's world with its state on Delta: topics and handlers stay in memory."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from share_spark.admin.state_reader import StateReader
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.table_log import UnknownTableError
from share_spark.model.records import InFlightBatch
from share_spark.state.commits import CommitListing
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.state.state_view import read_state
from share_spark.state.tables import load_log, log_table
from tests.support.engine_world import GROUP, LETTERS, InMemoryGroup
from tests.twins.memory_delivery import RecordHandler

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LETTER_OF = {"Available": LETTERS[0], "Acquired": LETTERS[1], "Acknowledged": LETTERS[2], "Archived": LETTERS[4]}


class DeltaWorld(InMemoryGroup):
    """``directory``: the state location. ``notes_rows``: as where clients may come, few rows are in the notes of their
    commits."""

    notes_rows: ClassVar[bool] = False

    def __init__(
        self,
        spark: SparkSession,
        directory: str,
        *,
        partitions: int = 1,
        handler: RecordHandler | None = None,
        **settings: object,
    ) -> None:
        super().__init__(partitions=partitions, handler=handler, store=self.delta_store, **settings)
        self.spark, self.location = spark, Location.parse(directory)

    def delta_store(self, _world: InMemoryGroup, run_id: str) -> DeltaShareStateStore:
        log = GroupLog(
            spark=self.spark, location=self.location, group_id=GROUP, run_id=run_id, notes_rows=self.notes_rows
        )
        return DeltaShareStateStore(
            log=log,
            updates_per_snapshot=self.config.updates_per_snapshot,
            audit=self.config.history_retention_ms > 0,
        )

    def frame(self) -> DataFrame:
        return read_state(self.spark, self.location, GROUP)

    def windows(self) -> list[str]:
        """``window`` of every share-partition, from the files of the log."""
        return self.windows_in_files()

    def windows_by_spark(self) -> list[str]:
        """By ``read_state``."""
        rows = self.frame().orderBy("partition").collect()
        return [_window(row.start_offset, row.end_offset, row.in_flight) for row in rows]

    def windows_in_files(self) -> list[str]:
        """As ``share-spark groups`` reads it, without Spark; none of a group that was deleted."""
        reader = StateReader.open(str(self.location))
        states = reader.group(GROUP).partitions if GROUP in reader.groups() else {}
        found = sorted((state for _, state in states.values()), key=lambda state: state.key.partition)
        return [_window(state.start_offset, state.end_offset, map(_run, state.in_flight)) for state in found]

    def versions(self, table: str = "share_state_log") -> int:
        """Commits of a table."""
        return self.location.table(table).delta_table(self.spark).history().count()


def newest_log(world: DeltaWorld) -> DataFrame:
    """All rows of the state log, those in notes too."""
    table = log_table(world.location)
    return load_log(world.spark, table, CommitListing.of(world.spark, str(table.path)).latest_version())


def only_on_spark(patch: pytest.MonkeyPatch) -> None:
    """The state log is read and appended to by Spark."""

    def refuse(*_: object, **__: object) -> None:
        raise UnknownTableError("a test")

    patch.setattr(GroupLog, "table_log", None)
    patch.setattr(DirectAppends, "of", refuse)


def _window(start_offset: int, end_offset: int, in_flight: Iterable[Any]) -> str:
    runs = [f"{run.first_offset}-{run.last_offset} {_LETTER_OF[run.state]}{run.delivery_count}" for run in in_flight]
    return f"{start_offset}-{end_offset}: {', '.join(runs)}".strip(": ")


def _run(run: InFlightBatch) -> Any:
    """As a row of the status has it."""
    return SimpleNamespace(
        first_offset=run.first_offset,
        last_offset=run.last_offset,
        state=run.delivery_state.name.capitalize(),
        delivery_count=run.delivery_count,
    )
