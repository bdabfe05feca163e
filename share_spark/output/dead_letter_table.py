"""Dead letters in a Delta table, one row each, to be read with SQL.

The table is created when it is missing. The letters of a micro-batch are one append with the micro-batch's number
(``txnAppId``, ``txnVersion``), so that an append which is repeated after a crash is in the table once. Micro-batches
are written in order, since Delta skips a lower number after a higher one; the table's log says whether ours is in it.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_spark.delivery.frame_files import files_of
from share_spark.delta.app_transactions import NONE, AppTransactions
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends, MovedError
from share_spark.delta.location import Location
from share_spark.delta.table_log import UnknownTableError
from share_spark.engine.ports import Claim
from share_spark.model.errors import DeadLetterError
from share_spark.model.ids import BatchStamp
from share_spark.output.letter_columns import COLUMNS, PROPERTIES, WRITTEN_NAMES, check_properties
from share_spark.spark import functions as F
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.on_demand import AnySpark, session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_APPEND_ERRORS: tuple[type[Exception], ...] = (*JVM_ERRORS, MovedError)


class DeltaDeadLetters:
    """A DeadLetterTarget on a Delta table. Group and state log together name the writer in the table's transactions."""

    def __init__(self, location: Location | str) -> None:
        self._location = Location.parse(location) if isinstance(location, str) else location
        self._checked = False
        self._appends: DirectAppends | None = None

    def __repr__(self) -> str:
        return f"DeltaDeadLetters({self._location})"

    def check(self, spark: AnySpark) -> None:
        """Create the table, or check that it is one of ours. Done at start, so that the first dead letter does not fail
        for that reason. Raises DeadLetterError; then nothing was changed.
        """
        try:
            if self._location.is_free(spark):
                self._location.create(spark, COLUMNS, properties=PROPERTIES)
            self._refuse_foreign(spark)
        except JVM_ERRORS as error:
            raise self._failed(error) from error
        self._checked = True

    def check_place(self, spark: AnySpark) -> None:
        """Check that the table is one of ours, or that there is none yet. Changes nothing. Raises DeadLetterError."""
        try:
            if not self._location.is_free(spark):
                self._refuse_foreign(spark)
        except JVM_ERRORS as error:
            raise self._failed(error) from error

    def write(self, spark: SparkSession | None, claim: Claim, stamp: BatchStamp, letters: DataFrame | pa.Table) -> None:
        """Write one row per row of ``letters``, in one append; see DeadLetterTarget. Raises DeadLetterError."""
        if not self._checked:
            self.check(spark)
        app_id = f"share_spark/dead letters/{claim.group_id}@{claim.log_id}"
        fault: Exception | None = None
        try:
            is_there = self._append(spark, _letter_rows(letters, claim.group_id), app_id, stamp)
        except _APPEND_ERRORS as error:
            fault, is_there = error, False
        # After an error the append may still have been committed, and Delta skips a number below the table's without
        # an error. So the table's log decides.
        if not is_there and self._latest(spark, app_id) < stamp.number:
            raise self._failed(fault or RuntimeError("the append is not in its log")) from fault

    def _append(self, spark: AnySpark, rows: DataFrame | pa.Table, app_id: str, stamp: BatchStamp) -> bool:
        """Append the rows; return whether they are certainly in the table now."""
        try:
            appends = self._appends = self._appends or DirectAppends.of_files(spark, self._location.directory(spark))
            self._append_files(appends, rows, app_id, stamp)
            return True
        except NotImplementedError as reason:
            _log.info("%s: appended to by Spark, which takes longer: %s", self, reason)
            self._appends = None
            session = session_of(spark, f"{self} cannot be appended to directly ({reason})")
            frame = session.createDataFrame(rows) if isinstance(rows, pa.Table) else rows
            self._location.append(frame, {"txnAppId": app_id, "txnVersion": str(stamp.number)})
            return False

    def _append_files(self, appends: DirectAppends, rows: DataFrame | pa.Table, app_id: str, stamp: BatchStamp) -> None:
        """Append the rows as files, or nothing if the letters of this stamp, or of a later one, are there. Raises
        MovedError if they were added meanwhile."""
        appends.log.refresh()
        if appends.log.transactions.get(app_id, NONE) < stamp.number:
            files = _in_files(rows, appends)
            if files is None:
                raise UnknownTableError("the letters are too many for the driver")
            appends.commit(files, transactions={app_id: stamp.number})

    def _latest(self, spark: AnySpark, app_id: str) -> int:
        """Return the number of the last letters. One that is higher than ours is a successor's, which has written ours
        first: it recovers before it commits."""
        try:
            return AppTransactions(spark, self._location.directory(spark)).latest(app_id)
        except JVM_ERRORS as error:
            raise self._failed(error) from error

    def _refuse_foreign(self, spark: AnySpark) -> None:
        properties = self._location.properties(spark) if self._location.exists(spark) else {}
        check_properties(str(self._location), properties)

    def _failed(self, error: Exception) -> DeadLetterError:
        return DeadLetterError(f"dead-letter table {self._location}: {first_line(error)}")


def _in_files(rows: DataFrame | pa.Table, appends: DirectAppends) -> list[DataFile] | None:
    """Return the rows as files, None if they are too many."""
    if not isinstance(rows, pa.Table):
        return files_of(rows, appends)
    return [appends.write(part.rows, part.values) for part in appends.layout.parts(rows)]


def _letter_rows(letters: DataFrame | pa.Table, group_id: str) -> DataFrame | pa.Table:
    if isinstance(letters, pa.Table):
        now: Any = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
        added: dict[str, Any] = {"group_id": pa.scalar(group_id), "archived_at": now}
        for name, value in added.items():
            letters = letters.append_column(name, pa.repeat(value, letters.num_rows))
        return letters.select(WRITTEN_NAMES)
    return letters.withColumns({"group_id": F.lit(group_id), "archived_at": F.current_timestamp()}).select(
        *WRITTEN_NAMES
    )
