"""The engine's world with its state on Delta: topics and handlers stay in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.table_log import UnknownTableError
from share_spark.state.driver_states import DriverCapacity
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.state.state_view import read_state
from share_spark.testing.memory_delivery import RecordHandler
from tests.support.engine_world import GROUP, LETTERS, InMemoryGroup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LETTER_OF = {"Available": LETTERS[0], "Acquired": LETTERS[1], "Acknowledged": LETTERS[2], "Archived": LETTERS[4]}


class DeltaWorld(InMemoryGroup):
    """``directory``: the state location. ``driver``: None keeps the state on the executors."""

    driver: DriverCapacity | None = DriverCapacity.of_this_machine()

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
        log = GroupLog(spark=self.spark, location=self.location, group_id=GROUP, run_id=run_id)
        return DeltaShareStateStore(
            log=log,
            updates_per_snapshot=self.config.updates_per_snapshot,
            audit=self.config.history_retention_ms > 0,
            driver=self.driver,
        )

    def frame(self) -> DataFrame:
        return read_state(self.spark, self.location, GROUP)

    def windows(self) -> list[str]:
        """``window`` of every share-partition, from the log."""
        return [_window(row) for row in self.frame().orderBy("partition").collect()]

    def versions(self, table: str = "share_state_log") -> int:
        """Commits of a table."""
        return self.location.table(table).delta_table(self.spark).history().count()


def only_on_spark(patch: pytest.MonkeyPatch) -> None:
    """The state is on the executors, and whatever is appended to the log is appended by Spark."""

    def refuse(*_: object) -> None:
        raise UnknownTableError("a test")

    patch.setattr(DeltaWorld, "driver", None)
    patch.setattr(DirectAppends, "of", refuse)


def _window(row: object) -> str:
    runs = [
        f"{run.first_offset}-{run.last_offset} {_LETTER_OF[run.state]}{run.delivery_count}"
        for run in row.in_flight  # type: ignore[attr-defined]
    ]
    return f"{row.start_offset}-{row.end_offset}: {', '.join(runs)}".strip(": ")  # type: ignore[attr-defined]
