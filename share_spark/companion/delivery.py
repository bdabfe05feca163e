"""Delivery to a handler that waits: a process beside the driver has its calls, many at a time (``program``).

``deliver`` hands records over and returns the answers that are there, of this hand-over and of earlier ones; it does
not wait for calls. So the calls of one micro-batch do not wait for the slowest one of the micro-batch before.

    deliver    HandOver 1      in flight 1..500                                         none yet
    deliver    HandOver 2                in flight 1..900     Answered, of 1 and 2   -> these answers
    deliver    Forget 1        all of 1 was answered, and the state has it: its part of the ledger may go

A process that has died is followed by another one at the next hand-over. Its ledgers say what was called
(``lost_calls``). All processes of an engine have their ledgers in one directory, each with numbers of its own.
"""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.companion.answers import entered_in, rows_of
from share_spark.companion.calls_at_a_time import CallsAtATime
from share_spark.companion.hand_overs import HandOvers
from share_spark.companion.lost_calls import MOST_FILES, LostCalls, lost_error_of, remove_ledgers
from share_spark.companion.messages import (
    Answered,
    Begin,
    Failed,
    Forget,
    FromCompanion,
    GiveBack,
    HandOver,
    Limits,
    RecordAnswer,
    SetLimits,
    Unreachable,
)
from share_spark.companion.news import News
from share_spark.companion.process import CompanionProcess
from share_spark.delivery.acquired_records import acquired_records, with_earlier
from share_spark.delivery.arrow_stream import stream_of
from share_spark.delivery.deliver import unread_error
from share_spark.delivery.member_ledgers import LedgerDelivery, frame_of
from share_spark.delivery.output_files import OutputFiles
from share_spark.delivery.packed_handler import packed
from share_spark.delivery.reader_input import in_equal_parts
from share_spark.delivery.record_sources import most_rows
from share_spark.delivery.truncations import note_truncations
from share_spark.delta.data_file import DataFile
from share_spark.delta.table_layout import FilePlace
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    CallsLook,
    Delivered,
    DeliveryLimits,
    RunningCall,
)
from share_spark.engine.ports import Claim, TopicLog
from share_spark.handlers.handler import HANDLER_COLUMNS, Handler
from share_spark.handlers.handler_objects import has_close
from share_spark.handlers.time_limit import overrun_text
from share_spark.model.errors import HandlerError, ShareError, TopicError, TopicUnreachableError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_spark.delivery.kept_input import Wanted

_log = logging.getLogger(__name__)

_MOST_DEATHS = 10
"""The number of processes that may die in a row before any of them has made a call."""

_AHEAD = 2
"""The records in flight for each call at a time: the others wait ahead, so that a call that ends is followed by another
one at once."""

_AHEAD_BY_KEY = 8
"""The same in order of keys: of the records that wait ahead, most may have keys that are called now."""

_NO_LIMITS = Limits(1, 0)
"""The limits of no process."""

_PATIENCE_S = 30.0
"""The time beyond the limit of a call after which a process does not react any more."""


@dataclass(slots=True)
class _Companion:
    """A process with what it has. ``ledger``: its first one. ``entered``: records that were called, as it said.
    ``holds_places``: those of throttled calls, until it gets limits (``SetLimits``). ``taken``: its messages with
    answers; ``known``: those of which the answers were returned."""

    process: CompanionProcess
    ledger: Path
    limits: Limits
    hand_overs: HandOvers = field(default_factory=HandOvers)
    entered: int = 0
    has_failed: bool = False
    holds_places: bool = False
    taken: int = 0
    known: int = 0


@dataclass(slots=True, kw_only=True)
class CompanionDelivery(LedgerDelivery):
    """Delivery port of a handler that waits.

    Output rows of the answers that were returned last are kept until the next ones. ``output_place``: where the driver
    writes them to files; None: they are a frame. ``ordered``: in order of keys.
    """

    spark: SparkSession
    log: TopicLog
    handler: Handler
    ordered: bool = False
    output_place: FilePlace | None = None
    _directory: Path | None = field(default=None, init=False)
    _companion: _Companion | None = field(default=None, init=False)
    _started: int = field(default=0, init=False)
    _absorbed: Sequence[Path] = field(default=(), init=False)
    _deaths: int = field(default=0, init=False)
    _number: int = field(default=0, init=False)
    _calls: CallsAtATime = field(default_factory=CallsAtATime, init=False)
    _news: News = field(default_factory=News, init=False)
    _returned: tuple[int, ...] = field(default=(), init=False)
    _rows: Sequence[pa.Table] = field(default=(), init=False)
    _outputs: DataFrame | Sequence[DataFile] | None = field(default=None, init=False)

    def start(self, claim: Claim) -> None:
        """Begin. The process is started when there is something for it."""
        self._ledgers.start(self.spark, claim)

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:
        """Hold the rows that earlier engines have left, with their companions or with workers."""
        rows = self._ledgers.take_rows(accepted, self.handler.output)
        if rows is None:
            return False
        self.free_outputs()
        self._rows = [rows] if rows.num_rows else ()
        return True

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        """Hand the records over, and return the answers that have come. Records that cannot be read are given back, and
        the error is the fault. Raises HandlerError, StateError."""
        self._forget_returned()
        self._take()
        terms = Limits(self._calls_of(limits), limits.timeout_ms, limits.round_number)
        companion = self._companion
        if companion is not None and (companion.holds_places or companion.limits != terms):
            companion.limits, companion.holds_places = terms, False
            companion.process.send(SetLimits(terms))
        if acquired:
            self._hand_over(acquired, terms, in_turn=in_turn)
            self._take()
        return self._delivered(terms)

    def room(self, limits: DeliveryLimits) -> int | None:
        """Return how many records may be acquired now: what waits ahead is to be as many as the calls at a time."""
        ahead = _AHEAD_BY_KEY if self.ordered else _AHEAD
        return max(0, ahead * self.handler.records_in(self._calls_of(limits)) - self._in_flight)

    def wait(self, seconds: float) -> None:
        """Wait for answers that were not returned, at most so long; not if nothing is in flight."""
        if self._companion is not None and self._in_flight and not self._news.answers:
            self._companion.process.wait(seconds)

    def drain(self) -> Delivered:
        """Let no more calls begin, wait for those that run, and return the answers."""
        companion = self._companion
        if companion is not None:
            companion.process.send(GiveBack())
            until = time.monotonic() + self._limit_ms(companion) / 1_000 + _PATIENCE_S
            self._take()
            while self._companion is companion and companion.hand_overs.in_flight:
                companion.process.wait(until - time.monotonic())
                if time.monotonic() >= until:
                    companion.process.end()
                self._take()
        return self._delivered(companion.limits if companion is not None else _NO_LIMITS)

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        """Forget what is in flight at and above ``ends``; these calls go on, and their answers are dropped. Raises
        StateError."""
        self._forget_returned()
        if self._directory is not None:  # before new records with these offsets come
            note_truncations(self._directory, ends, self._number)
        if self._companion is not None:
            self._companion.hand_overs.forget(ends)
            self._companion.process.send(Forget(self._companion.hand_overs.take_answered()))

    def stop_waiting(self) -> None:
        """End ``wait``. A companion that waits for records is told by ``drain``."""
        companion = self._companion
        if companion is not None:
            companion.process.wake()

    def close(self) -> None:
        """End the process, and the calls that it still has."""
        if self._companion is not None:
            self._companion.process.end()
            self._companion = None
        self.free_outputs()

    @property
    def calls(self) -> CallsLook:
        """The calls as the process has told them last, which it does twice a second."""
        companion = self._companion
        now = companion.process.calls_now if companion is not None else None
        if companion is None or now is None:
            return CallsLook(0, 0, 0 if companion is None else companion.limits.most_calls)
        oldest = None
        for topic, partition, offset, age_s in now.oldest[:1]:
            oldest = RunningCall(TopicPartition(topic, partition), offset, age_s)
        return CallsLook(now.running, now.waiting, companion.limits.most_calls, oldest)

    @property
    def outputs(self) -> DataFrame | Sequence[DataFile] | None:
        """The output rows of the answers that were returned last, as a frame or in files; None if there are none.
        Raises SinkError: they cannot be written."""
        if self._rows:
            rows, self._rows = pa.concat_tables(self._rows), ()
            self._outputs = frame_of(self.spark, rows) if self.output_place is None else _files(rows, self.output_place)
        return self._outputs

    def free_outputs(self) -> None:
        """Free the output rows."""
        self._rows, self._outputs = (), None

    def kept_records(self, wanted: Wanted) -> pa.Table | None:  # noqa: ARG002
        """Return None: the companion keeps no records for dead letters."""
        return None

    # ------------------------------------------------------------------------------- to the process

    def _hand_over(self, acquired: Sequence[AcquiredSpan], limits: Limits, *, in_turn: bool) -> None:
        self._number += 1
        (spans,) = in_equal_parts(acquired, 1)
        # What a dead process had of these keys is answered, and was not known when these records were acquired.
        if self.ordered and self._news.dead:
            self._news.answers += _given_back(self._number, spans)
            return
        try:
            part, records = self._prepared(in_equal_parts(with_earlier(acquired), 1)[0] if self.ordered else spans)
        except TopicError as fault:
            self._news.note_fault(fault)
            self._news.answers += _given_back(self._number, spans)
            return
        companion = self._companion
        if companion is None:
            companion = self._companion = self._new_companion(limits)
        companion.hand_overs.add(self._number, spans)
        companion.process.send(HandOver(self._number, spans, part, records, in_turn, companion.known))

    def _prepared(self, spans: Sequence[AcquiredSpan]) -> tuple[bytes | None, bytes | None]:
        """Return (the part that reads the records, the records where Spark has to read them). Raises TopicError."""
        reader = self.log.for_workers(self.spark, spans, ordered=False)
        if reader is not None:
            return pickle.dumps(reader.part(spans), protocol=5), None
        tasks = self.spark.sparkContext.defaultParallelism
        try:
            found = acquired_records(self.spark, self.log, spans, tasks=tasks, third="delivery_count").toArrow()
        except ShareError:
            raise
        except Exception as fault:
            raise unread_error(self.handler.name, fault) from fault
        return None, stream_of(found.sort_by("offset") if self.ordered else found)

    def _new_companion(self, limits: Limits) -> _Companion:
        """Start a process. Raises HandlerError (it cannot be sent), StateError."""
        if self._directory is None:
            self._directory = self._ledgers.place.directory(uuid.uuid4().hex)
        ledger = self._directory / str(self._started * MOST_FILES)
        begin = Begin(
            handler=packed(self.handler),
            name=self.handler.name,
            columns=tuple(self.handler.columns or HANDLER_COLUMNS),
            ledger=str(ledger),
            limits=limits,
            most_rows=most_rows(self.spark),
            in_threads=self.handler.threads is not None,
            ordered=self.ordered,
        )
        self._started += 1
        return _Companion(CompanionProcess(begin, has_close=has_close(self.handler)), ledger, limits)

    def _forget_returned(self) -> None:
        """Forget what the state has by now: all that was returned."""
        self.free_outputs()
        self._ledgers.drop_rows()
        if self._companion is not None and self._returned:
            self._companion.process.send(Forget(self._returned))
        for ledger in self._absorbed:
            remove_ledgers(ledger)
        self._returned = self._absorbed = ()

    # ----------------------------------------------------------------------------- from the process

    def _take(self) -> None:
        """Take in what the process has said."""
        companion = self._companion
        if companion is None:
            return
        messages, has_ended = companion.process.take()
        for message in messages:
            self._note(companion, message)
        if has_ended:
            self._companion = None
            self._bury(companion)

    def _note(self, companion: _Companion, message: FromCompanion) -> None:
        match message:
            case Answered(answers, _, _, busy_s, throttled, cost):
                found = companion.hand_overs.note(answers)
                companion.entered += entered_in(found)
                companion.taken += 1
                self._news.answers += found
                self._news.busy_s += busy_s
                self._news.cost += cost
                self._news.throttled.update(throttled)
                companion.holds_places |= bool(throttled)
                self._news.rows += rows_of(message, found)
            case Unreachable(text, is_topic):
                self._news.note_fault(TopicError(text) if is_topic else TopicUnreachableError(text))
            case Failed(text, is_handler):
                companion.has_failed = True
                self._news.note_fault(HandlerError(text) if is_handler else ShareError(text))

    def _bury(self, companion: _Companion) -> None:
        """Answer what a process that has ended has not answered, from its ledgers."""
        how = companion.process.end()
        calls = LostCalls.read(companion.ledger)
        lost_error = lost_error_of(calls.stuck, overrun_text(self._limit_ms(companion)))
        answers = list(calls.answers(companion.hand_overs.unanswered(), lost_error))
        self._news.rows += calls.rows_of(answers)
        self._news.answers += companion.hand_overs.note(answers)
        self._news.dead.append(companion.ledger)
        if companion.has_failed:
            return
        _log.warning("the companion process of handler %s has ended: %s", self.handler.name, how)
        if calls.killed_many:
            self._calls.killed(companion.limits.most_calls, time.monotonic())
        self._deaths = 0 if companion.entered or calls.entries else self._deaths + 1
        if self._deaths >= _MOST_DEATHS:
            text = f"the companion process of handler {self.handler.name} ends again and again: {how}"
            self._news.note_fault(HandlerError(text))

    def _delivered(self, limits: Limits) -> Delivered:
        """Return the news."""
        news, self._news = self._news, News()
        if self._companion is not None:
            self._returned += self._companion.hand_overs.take_answered()
            self._companion.known = self._companion.taken
        self._rows, self._absorbed = news.rows, news.dead
        return news.delivered(limits, self._in_flight)

    @property
    def _in_flight(self) -> int:
        return self._companion.hand_overs.in_flight if self._companion is not None else 0

    def _calls_of(self, limits: DeliveryLimits) -> int:
        return self._calls.of(self.handler.calls_at_a_time(limits.most_calls), time.monotonic())

    def _limit_ms(self, companion: _Companion) -> int:
        return self.handler.limit_ms(companion.limits.timeout_ms)


def _given_back(number: int, spans: Iterable[AcquiredSpan]) -> list[RecordAnswer]:
    return [
        RecordAnswer(number, one.partition, first, last, Loss.NOT_ENTERED)
        for one in spans
        for first, last, _ in one.ranges.tolist()
    ]


def _files(rows: pa.Table, place: FilePlace) -> list[DataFile]:
    files = OutputFiles(place)
    try:
        files.write(rows)
        return files.close()
    finally:
        files.discard()
