"""Output rows in a Delta table, each exactly once: the sink's commit decides the acknowledgements as well.

    claim(epoch)   older engines can no longer write; returns the last of their deliveries that no state row absorbed
    commit(...)    journal the acknowledgements, append the rows under the micro-batch's number, read back
    forget()       a state row has absorbed the acknowledgements

A crash before the append leaves a journal entry without rows: nothing happened. A crash after it leaves both, and the
next engine finds that the number of the entry was the last one written: its acknowledgements count. Of the entries that
are left, only that one can matter: an engine absorbs what its claim returned, and every delivery of its own, before it
writes the next, or says it again in the entry of the next. So each lower number has been absorbed, or was never
written, or is a part of the last.

The previous engine may still run, in the middle of ``commit`` or ``forget``, while the next one claims. So the sink is
claimed first and the journal is read then: what is not written by now never will be. An entry that it removes meanwhile
was absorbed by a state row that it wrote before the claim of the group, or it would have found that claim.

The journal is beside the state, the numbers are in the sink's own log (``app_transactions``). A claim is journaled too,
so that an engine with another sink is fenced in the sink that it writes to.

``DeltaOutput`` is the engine's port. Rows get into the table in one of three ways:

    the workers write files in its directory            a plain table on this machine
    a worker makes the files, the driver puts them      such a table elsewhere, as on an object store; few rows
    Spark's writer appends them                         all others

In the first two ways a commit that compares and swaps names the files (``direct_append``). In the last two the rows
are kept on the executors until they are written. The start logs which way it is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from share_spark.delivery.frame_files import files_of
from share_spark.delivery.result import is_lost_output
from share_spark.delta.app_transactions import AppTransactions
from share_spark.delta.commit_files import CommitFiles
from share_spark.delta.data_file import DataFile
from share_spark.delta.direct_append import DirectAppends, MovedError
from share_spark.delta.location import Location
from share_spark.delta.table_layout import FilePlace
from share_spark.delta.table_log import UnknownTableError
from share_spark.engine.delivery_port import AcknowledgedSpans
from share_spark.engine.ports import Claim, CommittedOutput
from share_spark.model.errors import FencedError, OutputLostError, OutputUnknownError, SinkError
from share_spark.model.ids import BatchStamp
from share_spark.output.payload import from_payload, to_payload
from share_spark.output.sink_journal import (
    SinkEntry,
    SinkTarget,
    SinkWriter,
    as_sink_error,
    as_state_error,
    claim_sink,
    settle,
)
from share_spark.output.sink_table import prepare_table
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.frames import is_frame
from share_spark.spark.on_demand import AnySpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_APPEND_ERRORS: tuple[type[Exception], ...] = (*JVM_ERRORS, NotImplementedError, MovedError)


@dataclass(slots=True, kw_only=True)
class DeltaSink:
    """The sink of one run: first ``prepare``, then ``claim``, then the rest."""

    spark: SparkSession
    table: Location
    _writer: SinkWriter | None = None
    _transactions: AppTransactions | None = None
    _direct: DirectAppends | None = None
    _files: CommitFiles | None = None
    _version: int = -1
    _unabsorbed: set[BatchStamp] = field(default_factory=set)

    def prepare(self, output: StructType) -> None:
        """Make the table, or check that rows of this schema fit into it; before anything else is changed.

        Raises ConfigError (no Delta table, columns that do not fit), SinkError (it cannot be made or read).
        """
        with as_sink_error(self.table):
            prepare_table(self.spark, self.table, output)

    @property
    def writer(self) -> SinkWriter:
        """The engine that has claimed the sink."""
        assert self._writer is not None, "used before claim"
        return self._writer

    def claim(self, writer: SinkWriter, last_counted: BatchStamp) -> bytes | None:
        """Stop engines of lower epochs from writing, here or to their own sink. Returns the payload of the last
        delivery that was written, if its entry is still there; else a state row up to ``last_counted``, the last
        micro-batch that counts, has absorbed it.

        Raises FencedError, SinkError, StateError.
        """
        self._writer = writer
        with as_state_error():
            writer.journal.put(BatchStamp(writer.writer_epoch, -1), self._entry().to_bytes())
        left = settle(writer, [self._target], self._claimed, last_counted)
        if left is None:
            return None
        self._unabsorbed.add(left.stamp)
        return left.payload

    @property
    def place_for_workers(self) -> FilePlace | None:
        """The directory where workers write files of output rows; None: ``commit`` takes the rows instead."""
        return self._direct.place_for_workers if self._direct is not None else None

    def commit(self, stamp: BatchStamp, rows: DataFrame | Sequence[DataFile] | None, payload: bytes) -> None:
        """Append ``rows``, which makes ``payload`` count. Without rows nothing happens here.

        Raises FencedError (a later engine has claimed the sink), SinkError (it refused the rows), OutputLostError (the
        rows were lost before they could be written); in each case nothing was written. StateError: the journal cannot
        be written, so nothing else was. OutputUnknownError: it cannot be known whether the rows were written.
        """
        if rows is None:
            return
        with as_sink_error(self.table):
            self._check_there()
        with as_state_error():
            self.writer.journal.put(stamp, self._entry(payload).to_bytes())
        is_there, fault = self._append(rows, stamp)
        try:
            if not is_there:
                self._read_back(stamp, fault)
                if self._direct is not None:
                    self._direct.log.refresh()  # our own commit must not look like another writer's
        except JVM_ERRORS as unknown:
            raise OutputUnknownError(
                f"sink {self.table} does not say what is in it: {first_line(unknown)}"
            ) from unknown
        self._unabsorbed.add(stamp)

    def forget(self) -> None:
        """Remove the entries of what ``claim`` returned and ``commit`` wrote, as a state row has absorbed it. Raises
        StateError; SinkError: another writer has overwritten the rows, and they cannot be committed again."""
        self._make_good()
        with as_state_error():
            for stamp in sorted(self._unabsorbed):
                self.writer.journal.remove(stamp)
        self._unabsorbed.clear()

    def _make_good(self) -> None:
        """Commit overwritten rows again, while the journal still has their acknowledgements."""
        if self._direct is None or not self._unabsorbed:
            return
        try:
            with as_sink_error(self.table):
                self._direct.make_good()
        except (MovedError, NotImplementedError) as fault:
            raise SinkError(
                f"sink {self.table}: another writer has overwritten rows that cannot be committed again: {fault}"
            ) from fault

    @property
    def _target(self) -> SinkTarget:
        return SinkTarget(self.table, self.writer.app_id)

    def _entry(self, payload: bytes = b"") -> SinkEntry:
        return SinkEntry(self._target, self.writer.run_id, payload)

    def _claimed(self, target: SinkTarget) -> int:
        """Claim a sink; return the number of the last delivery there."""
        if target != self._target:
            return claim_sink(self.spark, target, self.writer.writer_epoch)
        with as_sink_error(target.table):
            directory = target.table.directory(self.spark)
            self._transactions = AppTransactions(self.spark, directory)
            self._files = CommitFiles.at(self.spark, directory)
            self._version = self._files.latest_version()
            delivered = self._transactions.claim(target.app_id, self.writer.writer_epoch)
            self._direct = self._direct_appends(directory, self._transactions)
            return delivered

    def _direct_appends(self, directory: str, transactions: AppTransactions) -> DirectAppends | None:
        """Return the direct appends, None where Spark has to write the rows."""
        try:
            appends = DirectAppends.of_files(self.spark, directory, transactions.log())
        except UnknownTableError as reason:
            _log.warning("sink %s: rows are appended by Spark, which takes longer: %s", self.table, reason)
            return None
        whose = "the driver puts files" if appends.place_for_workers is None else "the workers write files"
        _log.info("sink %s: %s of rows, and one commit names them", self.table, whose)
        return appends

    def _note(self, stamp: BatchStamp) -> str:
        """Return the ``userMetadata`` of the append, by which it is found again."""
        note = {"share_spark": 1, "kind": "output", "app_id": self.writer.app_id, "run_id": self.writer.run_id}
        return json.dumps({**note, **stamp._asdict()}, separators=(",", ":"))

    def _append(self, rows: DataFrame | Sequence[DataFile], stamp: BatchStamp) -> tuple[bool, Exception | None]:
        """Append the rows. Returns (whether they are certainly there, the error); an error may leave them there."""
        try:
            files = self._in_files(rows) if is_frame(rows) else rows
            if files is not None:
                self._append_files(files, stamp)
            elif is_frame(rows):
                self._append_by_spark(rows, stamp)
        except _APPEND_ERRORS as fault:
            return False, fault
        return files is not None, None

    def _in_files(self, rows: DataFrame) -> Sequence[DataFile] | None:
        """Return the rows as files, None if Spark has to write them."""
        if self._direct is None:
            return None
        files = files_of(rows, self._direct)
        if files is None:
            _log.info("sink %s: the rows of this micro-batch are many; Spark appends them", self.table)
        return files

    def _append_by_spark(self, rows: DataFrame, stamp: BatchStamp) -> None:
        options = {"txnAppId": self.writer.app_id, "txnVersion": str(stamp.number)}
        self.table.append(rows, options | {"userMetadata": self._note(stamp)})

    def _append_files(self, files: Sequence[DataFile], stamp: BatchStamp) -> None:
        """Append the files in one commit, which no later engine's claim can precede."""
        assert self._direct is not None
        numbers = {self.writer.app_id: stamp.number}
        self._version = self._direct.commit(files, note=self._note(stamp), transactions=numbers)

    def _read_back(self, stamp: BatchStamp, fault: Exception | None) -> None:
        """Check the table's log for the rows: Delta skips an append below the table's number without an error."""
        assert self._transactions is not None
        if self._is_in_log(self._note(stamp)):
            return
        number = self._transactions.latest(self.writer.app_id)
        if number == stamp.number:
            return
        if number > stamp.number:
            epoch = BatchStamp.of_number(number).writer_epoch
            raise FencedError(
                f"another engine has claimed sink {self.table} (writer epoch {epoch}); "
                f"this one (epoch {stamp.writer_epoch}) stops"
            )
        if is_lost_output(fault):
            raise OutputLostError(f"output for {self.table} was lost with its executor before it was written")
        reason = first_line(fault) if fault is not None else "the append is not in its log"
        raise SinkError(f"sink {self.table} refused the rows: {reason}") from fault

    def _check_there(self) -> None:
        """Refuse a table that is gone: Delta would create it again, without the claims that fence older engines."""
        assert self._files is not None, "commit before claim"
        if self._files.exists(self._version):
            return
        if not self.table.exists(self.spark) or self._files.latest_version() < self._version:
            raise SinkError(f"sink {self.table} is gone")

    def _is_in_log(self, note: str) -> bool:
        """Return whether one of the commits since our own last one has this note."""
        assert self._files is not None
        found = False
        while (commit := self._files.read(self._version + 1)) is not None:
            found = found or commit.note == note
            self._version += 1
        return found


class RowSource(Protocol):
    """A delivery whose handler has output. ``output_place``: where rows are written to files, None if they are not."""

    output_place: FilePlace | None

    @property
    def outputs(self) -> DataFrame | Sequence[DataFile] | None:
        """The output rows of the answers that it returned last; None if there are none. Raises SinkError."""
        ...

    def free_outputs(self) -> None:
        """Free these rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOutput:
    """An OutputSink for the output of ``delivery``. See ``engine.ports``."""

    sink: DeltaSink
    delivery: RowSource

    @property
    def has_output(self) -> bool:
        """Whether there is output: always."""
        return True

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        """Claim the sink for this run. Raises FencedError, SinkError, StateError."""
        payload = self.sink.claim(SinkWriter.of(self.sink.spark, claim), last_counted)
        self.delivery.output_place = self.sink.place_for_workers
        return None if payload is None else from_payload(claim.group_id, payload)

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None = None) -> None:
        """Commit the delivery's output. Raises FencedError, SinkError, OutputLostError, StateError."""
        rows = self.delivery.outputs
        if rows is not None:
            output = CommittedOutput(stamp, member_id or self.sink.writer.member_id, answers)
            self.sink.commit(stamp, rows, to_payload(output))
        self.delivery.free_outputs()

    def forget(self) -> None:
        """Remove absorbed entries from the journal. Raises StateError."""
        self.sink.forget()


@dataclass(slots=True, kw_only=True)
class FormerSinks:
    """An OutputSink of a run without output. Earlier engines may have had a sink, and a frozen one may be about to
    write there. So all of their sinks are claimed, and what is in them and was not absorbed counts."""

    spark: AnySpark
    _writer: SinkWriter | None = None
    _unabsorbed: BatchStamp | None = None

    @property
    def has_output(self) -> bool:
        """Whether there is output: never."""
        return False

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        """Claim the sinks of earlier engines. Raises FencedError, SinkError, StateError."""
        self._writer = writer = SinkWriter.of(self.spark, claim)
        left = settle(writer, [], lambda target: claim_sink(self.spark, target, writer.writer_epoch), last_counted)
        if left is None:
            return None
        self._unabsorbed = left.stamp
        return from_payload(claim.group_id, left.payload)

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None = None) -> None:
        """Do nothing: there is no output."""

    def forget(self) -> None:
        """Remove the absorbed entry from the journal. Raises StateError."""
        if self._writer is not None and self._unabsorbed is not None:
            with as_state_error():
                self._writer.journal.remove(self._unabsorbed)
            self._unabsorbed = None
