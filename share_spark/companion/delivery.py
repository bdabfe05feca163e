"""Delivery to a handler that waits: companion processes have its calls, many at a time (``program``).

``deliver`` hands records over and returns the answers that are there, of this hand-over and of earlier ones; it does
not wait for calls. So the calls of one micro-batch do not wait for the slowest one of the micro-batch before.

    deliver    HandOver 1      in flight 1..500                                         none yet
    deliver    HandOver 2                in flight 1..900     Answered, of 1 and 2   -> these answers
    deliver    Forget 1        all of 1 was answered, and the state has it: its part of the ledger may go

There is one process beside the driver or, on a cluster, one beside each executor (``executors``); then each gets a part
of the records, and a share of the calls at a time. Records in order of their keys all go to one, beside the driver.

A process that has died is followed by another one at the next hand-over. Its ledgers say what was called
(``lost_calls``). All processes of an engine have their ledgers in one directory, each with numbers of its own.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.companion.answers import entered_in
from share_spark.companion.calls_at_a_time import CallsAtATime
from share_spark.companion.companions import LOOK_AGAIN_S, Companion, Companions
from share_spark.companion.executors import starts_for
from share_spark.companion.link import Ending
from share_spark.companion.lost_calls import LostCalls, lost_error_of, remove_ledgers
from share_spark.companion.messages import (
    Answered,
    Failed,
    Forget,
    FromCompanion,
    GiveBack,
    HandOver,
    Leaving,
    Limits,
    RecordAnswer,
    SetLimits,
    Unreachable,
)
from share_spark.companion.news import News
from share_spark.companion.record_parts import RecordParts
from share_spark.companion.starts import CompanionStarts
from share_spark.delivery.member_ledgers import LedgerDelivery, frame_of
from share_spark.delivery.output_files import OutputFiles
from share_spark.delivery.truncations import note_truncations
from share_spark.delta.data_file import DataFile
from share_spark.delta.table_layout import FilePlace
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    CallsLook,
    Delivered,
    DeliveryLimits,
)
from share_spark.engine.ports import Claim, TopicLog
from share_spark.handlers.handler import Handler
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
one at once. More if calls are short (``pace``)."""

_AHEAD_BY_KEY = 8
"""The same in order of keys: of the records that wait ahead, most may have keys that are called now."""

LEAST_ROOM = 0.25
"""The records of a hand-over for each call at a time, at least: each hand-over costs a companion some 2 ms, whatever it
has. As more records wait ahead, no call waits for that."""

_NO_LIMITS = Limits(1, 0)
"""The limits before the first delivery."""

_PATIENCE_S = 30.0
"""The time beyond the limit of a call after which a process does not react any more."""


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
    _companions: Companions = field(default_factory=Companions, init=False)
    _starts: CompanionStarts | None = field(default=None, init=False)
    _limits: Limits = field(default=_NO_LIMITS, init=False)
    _absorbed: Sequence[Path] = field(default=(), init=False)
    _deaths: int = field(default=0, init=False)
    _number: int = field(default=0, init=False)
    _calls: CallsAtATime = field(default_factory=CallsAtATime, init=False)
    _news: News = field(default_factory=News, init=False)
    _rows: Sequence[pa.Table] = field(default=(), init=False)
    _outputs: DataFrame | Sequence[DataFile] | None = field(default=None, init=False)

    def start(self, claim: Claim) -> None:
        """Begin. Processes are started when there is something for them."""
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
        self._companions.note_pace(time.monotonic())
        self._limits = Limits(self._calls_of(limits), limits.timeout_ms, limits.round_number)
        if acquired:
            self._see_to_companions()
        self._set_limits()
        if acquired:
            self._hand_over(acquired, in_turn=in_turn)
            self._take()
        return self._delivered()

    def room(self, limits: DeliveryLimits) -> int | None:
        """Return how many records may be acquired now: as many wait ahead as there are calls at a time, or more."""
        most_calls = self._calls_of(limits)
        if not self._companions.taking:
            return self._ahead(self._companions.free(most_calls))
        return sum(self._rooms(most_calls))

    def wait(self, seconds: float) -> None:
        """Wait for answers that were not returned, at most so long; not if nothing is in flight."""
        if self._companions.in_flight and not self._news.answers:
            self._companions.wait(seconds)

    def drain(self) -> Delivered:
        """Let no more calls begin, wait for those that run, and return the answers."""
        for one in self._companions:
            one.link.send(GiveBack())
        until = time.monotonic() + self._limit_ms / 1_000 + _PATIENCE_S
        self._take()
        while self._companions.in_flight:
            if time.monotonic() >= until:
                self._companions.end()
            self._companions.wait(max(LOOK_AGAIN_S, until - time.monotonic()))
            self._take()
        return self._delivered()

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        """Forget what is in flight at and above ``ends``; these calls go on, and their answers are dropped. Raises
        StateError."""
        self._forget_returned()
        if self._starts is not None:  # before new records with these offsets come
            note_truncations(self._starts.directory, ends, self._number)
        for one in self._companions:
            one.hand_overs.forget(ends)
            one.link.send(Forget(one.hand_overs.take_answered()))

    def stop_waiting(self) -> None:
        """End ``wait``. A companion that waits for records is told by ``drain``."""
        self._companions.wake()
        if self._starts is not None:
            self._starts.stop_waiting()

    def close(self) -> None:
        """End the processes, and the calls that they still have."""
        if self._starts is not None:
            self._starts.close()
        self._companions.end()
        for one in self._companions:
            one.link.ending()
            self._companions.remove(one)
        self.free_outputs()

    @property
    def calls(self) -> CallsLook:
        """The calls as the processes have told them last, which they do twice a second."""
        return self._companions.look(self._limits.most_calls)

    @property
    def outputs(self) -> DataFrame | Sequence[DataFile] | None:
        """The output rows of the answers that were returned last, as a frame or in files; None if there are none.
        Raises SinkError: they cannot be written."""
        if self._rows:
            rows, self._rows = pa.concat_tables(self._rows), ()
            self._outputs = frame_of(self.spark, rows) if self.output_place is None else _files(rows, self.output_place)
        return self._outputs

    def outputs_here(self) -> pa.Table | None:
        """Return the output rows of the answers that were returned last, None if there are none."""
        return pa.concat_tables(self._rows) if self._rows else None

    def free_outputs(self) -> None:
        """Free the output rows."""
        self._rows, self._outputs = (), None

    def kept_records(self, wanted: Wanted) -> pa.Table | None:  # noqa: ARG002
        """Return None: the companion keeps no records for dead letters."""
        return None

    # ----------------------------------------------------------------------------- to the processes

    def _see_to_companions(self) -> None:
        """See to it that a companion takes records. Raises HandlerError (the handler cannot be sent), StateError."""
        if self._starts is None:
            directory = self._ledgers.place.directory(uuid.uuid4().hex)
            self._starts = starts_for(self.spark, self.handler, directory, self._companions, ordered=self.ordered)
        self._starts.see_to_it()

    def _set_limits(self) -> None:
        """Give each companion its share of the calls. One that has none any more gives back what waits there."""
        shares = self._companions.shares(self._limits.most_calls)
        for one, share in zip(self._companions.taking, shares, strict=True):
            limits = self._limits._replace(most_calls=share)
            if one.holds_places or one.limits != limits:
                one.limits, one.holds_places = limits, False
                one.link.send(SetLimits(limits))
                if not share:
                    one.link.send(GiveBack())

    def _hand_over(self, acquired: Sequence[AcquiredSpan], *, in_turn: bool) -> None:
        """Hand each companion the part that it has room for, or one of them all."""
        taking = self._companions.taking
        # What a dead process had of these keys is answered, and was not known when these records were acquired.
        if not taking or (self.ordered and self._news.dead):
            self._give_back(acquired)
            return
        rooms = self._rooms(self._limits.most_calls)
        if in_turn or not any(rooms):
            one = max(taking, key=lambda companion: companion.limits.most_calls)
            rooms = [int(companion is one) for companion in taking]
        try:
            parts = RecordParts(self.spark, self.log, self.handler.name, self.ordered).of(acquired, rooms)
        except TopicError as fault:
            self._news.note_fault(fault)
            self._give_back(acquired)
            return
        for one, part in zip(taking, parts, strict=True):
            if part.spans:
                self._number += 1
                one.hand_overs.add(self._number, part.spans)
                one.link.send(HandOver(self._number, *part, in_turn, one.known))

    def _give_back(self, acquired: Iterable[AcquiredSpan]) -> None:
        """Answer records that no companion gets."""
        self._news.answers += (
            RecordAnswer(0, span.partition, first, last, Loss.NOT_ENTERED)
            for span in acquired
            for first, last, _ in span.ranges.tolist()
        )

    def _forget_returned(self) -> None:
        """Forget what the state has by now: all that was returned."""
        self.free_outputs()
        self._ledgers.drop_rows()
        for one in self._companions:
            if one.returned:
                one.link.send(Forget(one.returned))
                one.returned = ()
        for ledger in self._absorbed:
            remove_ledgers(ledger)
        self._absorbed = ()

    # --------------------------------------------------------------------------- from the processes

    def _take(self) -> None:
        """Take in what the processes have said."""
        for one in self._companions:
            messages, one.is_cut_off = one.link.take()
            for message in messages:
                self._note(one, message)
            if one.is_cut_off and (ending := one.link.ending()) is not None:
                self._companions.remove(one)
                self._bury(one, ending)

    def _note(self, one: Companion, message: FromCompanion) -> None:
        match message:
            case Answered():
                one.entered += entered_in(self._news.note_answered(message, one.hand_overs))
                one.taken += 1
                one.holds_places |= bool(message.throttled)
            case Unreachable(text, is_topic):
                self._news.note_fault(TopicError(text) if is_topic else TopicUnreachableError(text))
            case Leaving():
                one.is_leaving = True
                self._note_lost()
            case Failed(text, is_handler):
                one.has_failed = True
                self._news.note_fault(HandlerError(text) if is_handler else ShareError(text))

    def _bury(self, one: Companion, ending: Ending) -> None:
        """Answer what a process that has ended has not answered, from its ledgers."""
        calls = LostCalls.read(one.ledger) if ending.has_left_ledger else LostCalls.unknown()
        lost_error = lost_error_of(calls.stuck, overrun_text(self._limit_ms))
        self._news.note_lost(calls, one.hand_overs, lost_error)
        self._news.dead += [one.ledger] if calls.are_known else []
        self._note_lost()
        if one.has_failed:
            return
        level = logging.INFO if one.is_leaving else logging.WARNING
        _log.log(level, "the companion process of handler %s has ended: %s", self.handler.name, ending.how)
        if calls.killed_many:
            self._calls.killed(self._limits.most_calls, time.monotonic())
        self._deaths = 0 if one.entered or one.is_leaving or calls.entries else self._deaths + 1
        if self._deaths >= _MOST_DEATHS:
            text = f"the companion process of handler {self.handler.name} ends again and again: {ending.how}"
            self._news.note_fault(HandlerError(text))

    def _note_lost(self) -> None:
        if self._starts is not None:
            self._starts.note_lost()

    def _delivered(self) -> Delivered:
        """Return the news."""
        news, self._news = self._news, News()
        for one in self._companions:
            one.returned += one.hand_overs.take_answered()
            one.known = one.taken
        self._rows, self._absorbed = news.rows, news.dead
        in_flight = self._companions.in_flight
        if not in_flight and self._starts is not None:
            self._starts.note_idle()
        return news.delivered(self._limits, in_flight)

    def _rooms(self, most_calls: int) -> list[int]:
        """Return how many more records each companion may get."""
        taking, shares = self._companions.taking, self._companions.shares(most_calls)
        return [self._room(one, share) for one, share in zip(taking, shares, strict=True)]

    def _room(self, one: Companion, calls: int) -> int:
        room = max(self._ahead(calls), one.pace.recent if calls else 0) - one.hand_overs.in_flight
        # In order of keys those that wait ahead may all have keys that are called now.
        least = 0 if self.ordered else int(LEAST_ROOM * self.handler.records_in(calls))
        return room if room >= max(1, least) else 0

    def _ahead(self, calls: int) -> int:
        return (_AHEAD_BY_KEY if self.ordered else _AHEAD) * self.handler.records_in(calls)

    def _calls_of(self, limits: DeliveryLimits) -> int:
        return self._calls.of(self.handler.calls_at_a_time(limits.most_calls), time.monotonic())

    @property
    def _limit_ms(self) -> int:
        return self.handler.limit_ms(self._limits.timeout_ms)


def _files(rows: pa.Table, place: FilePlace) -> list[DataFile]:
    files = OutputFiles(place)
    try:
        files.write(rows)
        return files.close()
    finally:
        files.discard()
