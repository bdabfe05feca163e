"""Delta's application transactions (the ``txn`` actions of a table's log): what fences a sink and what recovery judges
by. They are in every checkpoint, so they outlive log clean-up, OPTIMIZE and other writers; commit notes do not.

Two entries per writer:
- its own, a number that only grows (``BatchStamp.number``): a delivery's, or the number below a whole writer epoch, put
  there by the claim of that epoch. Delta skips an append with a number that is not higher, **silently**;
- the last delivery's, carried along by claims in the same commit. So whoever claims after any number of claims that
  came to nothing still knows which delivery was the last to be written.

A claim reads and writes in one of Delta's transactions, which fails if the writer's entry has moved meanwhile; Spark's
writer can set one entry only, so it is committed by Delta's own classes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from share_spark.model.errors import FencedError, SinkError
from share_spark.model.ids import BatchStamp
from share_spark.spark.delta_log import delta_log, newest
from share_spark.spark.errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NONE = -1
"""Delta's number of a writer that has no entry."""

_CLAIM_ATTEMPTS = 10


class AppTransactions:
    """The transactions of one table."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._delta = jvm.org.apache.spark.sql.delta
        self._spark = spark
        self._directory = directory
        self._nothing = jvm.scala.Option.empty()

    def latest(self, app_id: str) -> int:
        """The writer's number now, NONE if it has none. A job unless this version was asked before."""
        found = newest(self._spark, self._directory).transactions().get(app_id)
        return int(found.get()) if found.isDefined() else NONE

    def warm(self) -> None:
        """Have Delta work out the transactions of the newest version that it knows, and keep them: the next append
        needs them and would take some tenths of a second for it."""
        delta_log(self._spark, self._directory).unsafeVolatileSnapshot().transactions()

    def claim(self, app_id: str, writer_epoch: int) -> int:
        """From now on older epochs cannot append. Returns the number of the last delivery, of whatever epoch, NONE if
        there was none. Raises FencedError (a higher epoch was here), SinkError."""
        log = delta_log(self._spark, self._directory)
        own = BatchStamp(writer_epoch, -1).number
        fault: Py4JError | None = None
        for _ in range(_CLAIM_ATTEMPTS):
            transaction = log.startTransaction(self._nothing, self._nothing)
            current = int(transaction.txnVersion(app_id))
            delivered = current if _is_delivery(current) else int(transaction.txnVersion(_delivered_id(app_id)))
            if current > own:
                raise FencedError(f"another engine has claimed {app_id} in {self._directory}; this one stops")
            try:
                if current < own:
                    self._commit(transaction, {app_id: own, _delivered_id(app_id): delivered})
                return delivered
            except Py4JError as error:
                # An append of the engine before, or a change of the table, came in between; or the outcome is unknown.
                # The next look at the log shows which.
                fault = error
        reason = first_line(fault) if fault is not None else ""
        raise SinkError(f"sink {self._directory} cannot be claimed: {reason}") from fault

    def _commit(self, transaction: Any, numbers: dict[str, int]) -> None:
        now = self._jvm.scala.Some(int(time.time() * 1_000))
        actions = self._jvm.java.util.ArrayList()
        for app_id, number in numbers.items():
            if number != NONE:
                actions.add(self._delta.actions.SetTransaction(app_id, number, now))
        operation = getattr(getattr(self._delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        as_scala = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala
        transaction.commit(as_scala(actions).toList(), operation)


def _is_delivery(number: int) -> bool:
    return number != NONE and number != BatchStamp(number >> 32, -1).number


def _delivered_id(app_id: str) -> str:
    return f"{app_id}/delivered"
