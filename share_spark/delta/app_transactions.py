"""Delta's application transactions (the ``txn`` actions of a table's log): what fences a sink and what recovery judges
by. They are in every checkpoint, so they outlive log clean-up, OPTIMIZE and other writers; commit notes do not.

Two entries per writer:
- its own, a number that only grows (``BatchStamp.number``): a delivery's, or the number below a whole writer epoch, put
  there by the claim of that epoch. Delta skips an append with a number that is not higher, **silently**;
- the last delivery's, carried along by claims in the same commit. So whoever claims after any number of claims that
  came to nothing still knows which delivery was the last to be written.

A claim reads and writes in one of Delta's transactions, which fails if the writer's entry has moved meanwhile; Spark's
writer can set one entry only, so it is committed by Delta's own classes. Where those are not to be had, it takes
several appends without rows (``public_claim``), which leave a third entry; either way of claiming goes on from what the
other has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from share_spark.delta.public_claim import (
    PublicClaim,
    delivered_id,
    entries_in_log,
    is_delivery,
    is_unsettled,
    progress_id,
)
from share_spark.model.errors import FencedError, SinkError
from share_spark.model.ids import BatchStamp
from share_spark.spark.capabilities import DELTA_TRANSACTIONS, SINK_CLAIM, use
from share_spark.spark.delta_log import NONE, DeltaTransaction, transaction_number, warm_transactions
from share_spark.spark.errors import JVM_ERRORS, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NONE", "AppTransactions"]

_CLAIM_ATTEMPTS = 10


class AppTransactions:
    """The transactions of one table."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._spark = spark
        self._directory = directory

    def latest(self, app_id: str) -> int:
        """The writer's number now, NONE if it has none. A job unless this version was asked before."""
        return use(
            DELTA_TRANSACTIONS,
            lambda: transaction_number(self._spark, self._directory, app_id),
            lambda: entries_in_log(self._spark, self._directory, [app_id]).numbers[app_id],
        )

    def warm(self) -> None:
        """Have Delta work out the transactions of the newest version that it knows, and keep them: the next append
        needs them and would take some tenths of a second for it."""
        use(DELTA_TRANSACTIONS, lambda: warm_transactions(self._spark, self._directory), lambda: None)

    def claim(self, app_id: str, writer_epoch: int) -> int:
        """From now on older epochs cannot append. Returns the number of the last delivery, of whatever epoch, NONE if
        there was none. Raises FencedError (a higher epoch was here), SinkError."""
        own = BatchStamp(writer_epoch, -1).number
        fault: Exception | None = None
        for _ in range(_CLAIM_ATTEMPTS):
            try:
                return use(
                    SINK_CLAIM, lambda: self._claim_in_one_commit(app_id, own), lambda: self._public(app_id).claim(own)
                )
            except JVM_ERRORS as error:
                # An append of the engine before, or a change of the table, came in between; or the outcome is unknown.
                # The next look at the log shows which.
                fault = error
        reason = first_line(fault) if fault is not None else ""
        raise SinkError(f"sink {self._directory} cannot be claimed: {reason}") from fault

    def _claim_in_one_commit(self, app_id: str, own: int) -> int:
        transaction = DeltaTransaction(self._spark, self._directory)
        current = transaction.number(app_id)
        if current > own:
            raise FencedError(f"another engine has claimed {app_id} in {self._directory}; this one stops")
        if is_unsettled(current, transaction.number(progress_id(app_id))):
            self._public(app_id).settle(current)
            transaction = DeltaTransaction(self._spark, self._directory)
            current = transaction.number(app_id)
        delivered = current if is_delivery(current) else transaction.number(delivered_id(app_id))
        if current < own:
            transaction.commit({app_id: own, delivered_id(app_id): delivered})
        return delivered

    def _public(self, app_id: str) -> PublicClaim:
        return PublicClaim(spark=self._spark, directory=self._directory, app_id=app_id)
