"""Output rows into a Delta table, each exactly once: the sink's commit decides the acknowledgements as well.

    claim(epoch)   older engines can no longer write; what the last of them wrote and did not live to absorb
    commit(...)    journal the acknowledgements, append the rows under the micro-batch's number, read back
    forget()       a state row has absorbed the acknowledgements

A crash before the append leaves a journal entry without rows: nothing happened. A crash after it leaves both, and the
next engine finds the number of the entry to be the last one written: its acknowledgements count. Of the entries that
are left, only that one can matter: an engine absorbs what its claim returned, and every delivery of its own, before it
writes the next, so each lower number has been absorbed, or was never written.

The engine before may be alive, and in the middle of ``commit`` or ``forget``, while the next one claims. So the sink is
claimed first and the journal is read then: what is not written by now never will be. An entry that it removes meanwhile
is absorbed by a state row that it wrote before the claim of the group, or it would have found that one.

The journal is beside the state, the numbers are in the sink's own log (``app_transactions``). A claim is journaled too,
so that an engine that was given another sink is fenced in the one that it writes to.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from share_spark.delta.app_transactions import NONE, AppTransactions
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.journal import Journal
from share_spark.delta.location import Location
from share_spark.model.errors import FencedError, OutputLostError, OutputUnknownError, SinkError, StateError
from share_spark.model.ids import BatchStamp
from share_spark.output.sink_entry import SinkEntry, SinkTarget
from share_spark.output.sink_table import prepare_table
from share_spark.spark.errors import JVM_ERRORS, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_BATCH_BITS = 2**32 - 1
"""The part of ``BatchStamp.number`` that is the batch id, and one."""


def sink_app_id(group_id: str, log_id: str) -> str:
    """The name under which a group writes: it and its state, as two states may know a group of the same name."""
    return f"share_spark/{group_id}@{log_id}"


@dataclass(slots=True, kw_only=True)
class DeltaSink:
    """The sink of one run. ``journal``: of the group, for this purpose alone. It and ``app_id`` are asked for when they
    are first needed, after the group's claim."""

    spark: SparkSession
    table: Location
    journal: Callable[[], Journal]
    app_id: Callable[[], str]
    run_id: str
    _transactions: AppTransactions | None = None
    _files: CommitFiles | None = None
    _version: int = -1
    _unabsorbed: set[BatchStamp] = field(default_factory=set)

    def prepare(self, output: StructType) -> None:
        """Make the table, or see that rows of this schema fit into it; before anything else is changed.

        Raises ConfigError (no Delta table, columns that do not fit), SinkError (it cannot be made or read).
        """
        with _as_sink_error(self.table):
            prepare_table(self.spark, self.table, output)

    def claim(self, writer_epoch: int, last_counted: BatchStamp) -> bytes | None:
        """From now on engines of lower epochs cannot write, here or to whatever sink they were given. Returns the
        payload of the last delivery that was written, if its entry is there still; else a state row up to
        ``last_counted``, the last micro-batch that counts, has absorbed it.

        Raises FencedError, SinkError, StateError.
        """
        with _as_state_error():
            self.journal().put(BatchStamp(writer_epoch, -1), self._entry().to_bytes())
        delivered, left = self._claim_all(writer_epoch)
        written = [stamp for stamp, entry in left.items() if delivered[entry.target] == stamp.number]
        last = max(written, default=None)
        self._check_explained(delivered, set(written), writer_epoch, last_counted)
        with _as_state_error():
            for stamp in left.keys() - {last}:
                self.journal().remove(stamp)
        if last is None:
            return None
        self._unabsorbed.add(last)
        return left[last].payload

    def commit(self, stamp: BatchStamp, rows: DataFrame | None, payload: bytes) -> None:
        """Append ``rows``, and with them ``payload`` counts. Without rows nothing happens here.

        Raises FencedError (a later engine has claimed the sink), SinkError (it refused the rows), OutputLostError (the
        rows were lost before they could be written); in each case nothing was written. StateError: the journal cannot
        be written, so nothing else was. OutputUnknownError: nobody can tell whether the rows were written.
        """
        if rows is None:
            return
        with _as_sink_error(self.table):
            self._check_there()
        with _as_state_error():
            self.journal().put(stamp, self._entry(payload).to_bytes())
        fault = self._append(rows, stamp)
        try:
            self._read_back(stamp, fault)
        except JVM_ERRORS as unknown:
            raise OutputUnknownError(
                f"sink {self.table} does not tell what is in it: {first_line(unknown)}"
            ) from unknown
        self._unabsorbed.add(stamp)
        threading.Thread(target=self._warm, name="share-spark-sink-warm", daemon=True).start()

    def forget(self) -> None:
        """A state row that counts has absorbed all that ``claim`` returned and ``commit`` wrote. Raises StateError."""
        with _as_state_error():
            for stamp in sorted(self._unabsorbed):
                self.journal().remove(stamp)
        self._unabsorbed.clear()

    @property
    def _target(self) -> SinkTarget:
        return SinkTarget(self.table, self.app_id())

    def _entry(self, payload: bytes = b"") -> SinkEntry:
        return SinkEntry(self._target, self.run_id, payload)

    def _claim_all(self, writer_epoch: int) -> tuple[dict[SinkTarget, int], dict[BatchStamp, SinkEntry]]:
        """The number of the last delivery to each target, and the entries of older engines.

        Listed after the claims: an older engine makes its entry before it appends, and appends before the claim or not
        at all, so the entry of every delivery is in the list unless somebody has absorbed it and forgotten it.
        """
        delivered = {self._target: self._claimed(self._target, writer_epoch)}
        while True:
            with _as_state_error():
                left = self._left(writer_epoch)
            unclaimed = {entry.target for entry in left.values()} - delivered.keys()
            if not unclaimed:
                return delivered, left
            delivered |= {target: self._claimed(target, writer_epoch) for target in unclaimed}

    def _check_explained(
        self,
        delivered: Mapping[SinkTarget, int],
        written: Collection[BatchStamp],
        writer_epoch: int,
        last_counted: BatchStamp,
    ) -> None:
        """Each delivery has its entry or is absorbed, and what absorbs it is a later micro-batch that counts. Where
        neither is so, a later engine may be at work here already; if not, the journal is damaged."""
        numbers = {stamp.number for stamp in written}
        for target, number in delivered.items():
            if number in numbers or number < last_counted.number:
                continue
            self._claimed(target, writer_epoch)
            raise StateError(
                f"sink {target.table} holds rows of micro-batch {(number & _BATCH_BITS) - 1} of writer epoch "
                f"{number >> 32}, whose acknowledgements are neither in the state nor in the journal beside it"
            )

    def _left(self, writer_epoch: int) -> dict[BatchStamp, SinkEntry]:
        """Entries of older engines. One that is removed meanwhile, by an engine before, has been absorbed."""
        journal = self.journal()
        stamps = [stamp for stamp in journal.stamps() if stamp.writer_epoch < writer_epoch]
        contents = {stamp: journal.read(stamp) for stamp in stamps}
        return {stamp: SinkEntry.from_bytes(text) for stamp, text in contents.items() if text is not None}

    def _claimed(self, target: SinkTarget, writer_epoch: int) -> int:
        """The number of the last delivery there."""
        with _as_sink_error(target.table):
            if target != self._target and not target.table.exists(self.spark):
                _log.warning("sink %s is gone, and with it what was written there", target.table)
                return NONE
            directory = target.table.directory(self.spark)
            transactions = AppTransactions(self.spark, directory)
            if target == self._target:
                self._transactions, self._files = transactions, CommitFiles(self.spark, directory)
                self._version = self._files.latest_version()
            return transactions.claim(target.app_id, writer_epoch)

    def _note(self, stamp: BatchStamp) -> str:
        """``userMetadata`` of the append, by which it is found again."""
        told = {"share_spark": 1, "kind": "output", "app_id": self.app_id(), "run_id": self.run_id}
        return json.dumps({**told, **stamp._asdict()}, separators=(",", ":"))

    def _append(self, rows: DataFrame, stamp: BatchStamp) -> Exception | None:
        """What was raised; the rows may be there all the same, and where nothing was raised they need not be."""
        options = {"txnAppId": self.app_id(), "txnVersion": str(stamp.number), "userMetadata": self._note(stamp)}
        try:
            self.table.append(rows, options)
        except JVM_ERRORS as fault:
            return fault
        return None

    def _read_back(self, stamp: BatchStamp, fault: Exception | None) -> None:
        """Delta skips an append below the table's number without a word: believe what is in the log."""
        assert self._transactions is not None
        if self._is_in_log(self._note(stamp)):
            return
        number = self._transactions.latest(self.app_id())
        if number == stamp.number:
            return
        if number > stamp.number:
            raise FencedError(
                f"another engine has claimed sink {self.table} (writer epoch {number >> 32}); "
                f"this one (epoch {stamp.writer_epoch}) stops"
            )
        if OutputLostError.__name__ in str(fault):
            raise OutputLostError(f"output for {self.table} was lost with its executor before it was written")
        reason = first_line(fault) if fault is not None else "the append is not in its log"
        raise SinkError(f"sink {self.table} refused the rows: {reason}") from fault

    def _check_there(self) -> None:
        """Delta would make a table that is gone anew, where nobody is fenced."""
        assert self._files is not None, "commit before claim"
        if self._files.exists(self._version):
            return
        if not self.table.exists(self.spark) or self._files.latest_version() < self._version:
            raise SinkError(f"sink {self.table} is gone")

    def _is_in_log(self, note: str) -> bool:
        """Look at the commits since our own last one."""
        assert self._files is not None
        found = False
        while (commit := self._files.read(self._version + 1)) is not None:
            found = found or commit.note == note
            self._version += 1
        return found

    def _warm(self) -> None:
        try:
            if self._transactions is not None:
                self._transactions.warm()
        except Exception:  # noqa: BLE001 - the next append does it itself
            _log.debug("warming sink %s", self.table, exc_info=True)


@contextmanager
def _as_sink_error(table: Location) -> Iterator[None]:
    try:
        yield
    except JVM_ERRORS as fault:
        raise SinkError(f"sink {table}: {first_line(fault)}") from fault


@contextmanager
def _as_state_error() -> Iterator[None]:
    try:
        yield
    except JVM_ERRORS as fault:
        raise StateError(f"the journal of the sink cannot be used: {first_line(fault)}") from fault
