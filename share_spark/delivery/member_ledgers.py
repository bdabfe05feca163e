"""The ledgers of one engine, and those that others have left: what all deliveries do with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.delivery.ledger_file import is_written
from share_spark.delivery.ledger_place import LedgerPlace, task_files
from share_spark.delivery.output_rows import left_rows
from share_spark.delivery.traces import LeftCalls, left_calls, member_traces
from share_spark.engine.attempts import FinishedCalls, MemberTrace
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.ports import Claim
from share_spark.spark.schemas import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_log = logging.getLogger(__name__)

_LAST_CALLS_S = 25.0
"""The longest wait for calls of an engine before: a companion process gives them less after the end of its driver."""

_LOOK_AGAIN_S = 0.2


@dataclass(slots=True, kw_only=True)
class MemberLedgers:
    """The ledgers of one engine. ``are_written``: its handler leaves traces, and so did its predecessors'."""

    are_written: bool = True
    _place: LedgerPlace | None = field(default=None, init=False)
    _others: Sequence[str] = field(default=(), init=False)
    _left: LeftCalls | None = field(default=None, init=False)

    def start(self, spark: SparkSession | None, claim: Claim) -> LedgerPlace:
        """Begin, beside the state log; return the place. In local mode all workers run where the driver does, and
        without Spark there are none."""
        one_machine = spark is None or str(spark.sparkContext.master).startswith("local")
        self._place = place = LedgerPlace.beside(
            claim.directory, claim.log_id, claim.group_id, claim.member_id, one_machine=one_machine
        )
        self._others = place.all_others()
        if self.are_written:
            place.start()
        return place

    @property
    def place(self) -> LedgerPlace:
        """The place of the ledgers."""
        assert self._place is not None, "asked before start"
        return self._place

    def finished_calls(self) -> Iterable[FinishedCalls]:
        """Yield the finished calls of other members, those of the last delivery first."""
        if not self.are_written:
            return
        self._wait_for_last_calls()
        for left in left_calls(self.place):
            self._left = left
            yield left.calls

    def _wait_for_last_calls(self) -> None:
        """Wait for workers and companion processes that have outlived their engines: calls that run come to their end,
        for a while, and no more begin."""
        until = time.monotonic() + _LAST_CALLS_S
        for member in self._others:
            self.place.show_stop_sign(member)
        ledgers = (at for member in self.place.others() for at in self.place.deliveries(member))
        written = [file for directory in ledgers for file in task_files(directory)]
        while written and time.monotonic() < until:
            written = [file for file in written if is_written(file)]
            if written:
                time.sleep(_LOOK_AGAIN_S)
        if written:
            _log.warning("calls of an earlier engine still run: what they answer is lost")

    def take_rows(self, accepted: Iterable[AcknowledgedSpan], output: pa.Schema | None) -> pa.Table | None:
        """Return the output rows of these records of the last finished calls; None if they do not fit ``output``."""
        rows = left_rows(self._left.rows_of(accepted), output) if self._left is not None else None
        self.drop_rows()
        return rows

    def drop_rows(self) -> None:
        """Drop the rows of the last finished calls."""
        self._left = None

    def traces(self) -> Sequence[MemberTrace]:
        """Return what other members have left about their last deliveries."""
        return member_traces(self.place) if self.are_written else ()

    def forget_others(self) -> None:
        """Remove what the members that were there at the start have left."""
        self.place.forget(self._others)

    def show_stop_sign(self) -> None:
        """Tell workers that read the topics themselves, from any thread."""
        if self._place is not None:
            self._place.show_stop_sign(self._place.member_id)


@dataclass(slots=True, kw_only=True)
class LedgerDelivery:
    """The part of a Delivery that is about what members have left in ledgers."""

    _ledgers: MemberLedgers = field(default_factory=MemberLedgers, init=False)

    def finished_calls(self) -> Iterable[FinishedCalls]:
        """See ``Delivery``."""
        return self._ledgers.finished_calls()

    def traces(self) -> Sequence[MemberTrace]:
        """See ``Delivery``."""
        return self._ledgers.traces()

    def forget_traces(self) -> None:
        """See ``Delivery``."""
        self._ledgers.forget_others()


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return output rows as a frame of one task."""
    schema = spark_schema(pa.schema([column.with_nullable(True) for column in rows.schema]))
    return spark.createDataFrame(rows, schema).coalesce(1)
