"""Delta's application transactions (the ``txn`` actions of a table's log): they fence a sink, and recovery decides by
them. They are in every checkpoint, so they outlive log clean-up, OPTIMIZE and other writers; commit notes do not.

Two entries per writer:
- its own, a number that only grows (``BatchStamp.number``): a delivery's, or the number below a whole writer epoch, put
  there by the claim of that epoch. Delta skips an append with a number that is not higher, **silently**;
- the last delivery's, carried along by claims in the same commit. So a claim after any number of claims without a
  delivery still knows which delivery was written last.

A claim is one commit that counts only if the writer's entry has not moved since it was read (``direct_append``).
Spark's writer can set one entry only, so where such commits are impossible a claim takes several appends without rows
(``public_claim``), which leave a third entry; either way of claiming continues what the other has left.
"""

from __future__ import annotations

from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.direct_append import DirectAppends, MovedError
from share_spark.delta.public_claim import (
    PublicClaim,
    delivered_id,
    entries_in_log,
    is_delivery,
    is_unsettled,
    progress_id,
)
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.model.errors import FencedError, SinkError
from share_spark.model.ids import BatchStamp
from share_spark.spark.capabilities import DELTA_TRANSACTIONS, use
from share_spark.spark.delta_log import NONE, transaction_number
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.files import NoHardLinksError
from share_spark.spark.on_demand import AnySpark, session_of

__all__ = ["NONE", "AppTransactions"]

_CLAIM_ATTEMPTS = 10


_CLAIM_ERRORS: tuple[type[Exception], ...] = (MovedError, ValueError, *JVM_ERRORS)
"""Errors after which a claim is tried again. ValueError: a commit of the sink's log that cannot be read."""


class AppTransactions:
    """The transactions of one table."""

    def __init__(self, spark: AnySpark, directory: str) -> None:
        self._spark = spark
        self._directory = directory
        self._log: TableLog | None = None

    def latest(self, app_id: str) -> int:
        """Return the writer's number, NONE if it has none. Reads the present log: if commits were removed, only the
        checkpoint has the number."""
        self._log = None
        try:
            return self.log().transactions.get(app_id, NONE)
        except UnknownTableError as reason:
            return self._latest_by_delta(app_id, reason)

    def log(self) -> TableLog:
        """Return the table's log at its latest version; it is opened once. Raises UnknownTableError."""
        self._log = self._log or TableLog.open(CommitFiles.at(self._spark, self._directory))
        self._log.refresh()
        return self._log

    def _latest_by_delta(self, app_id: str, reason: UnknownTableError) -> int:
        spark = session_of(self._spark, f"{self._directory} is read by Spark ({reason})")
        return use(
            DELTA_TRANSACTIONS,
            lambda: transaction_number(spark, self._directory, app_id),
            lambda: entries_in_log(spark, self._directory, [app_id]).numbers[app_id],
        )

    def claim(self, app_id: str, writer_epoch: int) -> int:
        """Stop older epochs from appending. Returns the number of the last delivery, of whatever epoch, NONE if there
        was none. Raises FencedError (a higher epoch was here), SinkError."""
        own = BatchStamp(writer_epoch, -1).number
        fault: Exception | None = None
        for _ in range(_CLAIM_ATTEMPTS):
            try:
                return self._claim(app_id, own)
            except _CLAIM_ERRORS as error:
                # An append of the previous engine, or a change of the table, came between; or the outcome is unknown.
                # The next read of the log shows which.
                fault = error
        reason = first_line(fault) if fault is not None else ""
        raise SinkError(f"sink {self._directory} cannot be claimed: {reason}") from fault

    def _claim(self, app_id: str, own: int) -> int:
        try:
            return self._claim_in_one_commit(DirectAppends.of(self._spark, self._directory, self.log()), app_id, own)
        except NoHardLinksError as reason:
            # Deliveries could not compare and swap either, and Spark's rename does not.
            raise SinkError(
                f"sink {self._directory} cannot be claimed: its file system has no hard links, without which two "
                "engines could commit the same version; put the table on one that has them"
            ) from reason
        except NotImplementedError as reason:
            return self._public(app_id, reason).claim(own)

    def _claim_in_one_commit(self, appends: DirectAppends, app_id: str, own: int) -> int:
        log = appends.log
        current = log.transactions.get(app_id, NONE)
        if current > own:
            raise FencedError(f"another engine has claimed {app_id} in {self._directory}; this one stops")
        if is_unsettled(current, log.transactions.get(progress_id(app_id), NONE)):
            self._public(app_id, "a claim by several appends is to be settled").settle(current)
            log.refresh()
            current = log.transactions.get(app_id, NONE)
        delivered = current if is_delivery(current) else log.transactions.get(delivered_id(app_id), NONE)
        if current < own:
            numbers = {app_id: own, delivered_id(app_id): delivered}
            known = {name: number for name, number in numbers.items() if number != NONE}
            appends.commit([], transactions=known)
        return delivered

    def _public(self, app_id: str, reason: object) -> PublicClaim:
        spark = session_of(self._spark, f"{self._directory} can be claimed by Spark only ({reason})")
        return PublicClaim(spark=spark, directory=self._directory, app_id=app_id)
