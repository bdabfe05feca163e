"""The calls of a handler that waits: many at a time on one event loop, each noted in the ledger.

Records wait in the order in which their hand-overs came. What a call returns or raises is judged as for any handler of
one record (``delivery.judging``); the answer goes to the ledger at once, and to the driver with all others that end in
the same turn of the loop.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from share_spark.companion.ledger import CallBlock, CompanionLedger
from share_spark.companion.messages import Begin, CallsNow, FromCompanion, Limits, RecordAnswer
from share_spark.companion.outbox import Outbox
from share_spark.companion.overruns import Overruns, stuck_file
from share_spark.companion.reading import Handed, OffsetRun, ReadBatch, offset_runs
from share_spark.companion.stepping import CURRENT_CALL, Stepped
from share_spark.delivery.calling import overrun_text
from share_spark.delivery.judging import Contract, Judged, judged
from share_spark.delivery.ledger import CallStatus
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.error_texts import error_text, exception_text
from share_spark.handlers.handler import Handler, Record
from share_spark.handlers.throttling import throttle_of
from share_spark.model.errors import HandlerError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss

_TELL_EVERY_S = 0.5
_MOST_TOLD = 10
_IN_HANDLER = int(CallStatus.IN_HANDLER)
_ACCEPTED = Judged(int(Ack.ACCEPT), None, None, [], int(CallStatus.ACCEPTED))


class _Waiting(NamedTuple):
    """A record that was read and not entered. ``position``: in its batch."""

    handed: Handed
    block: CallBlock
    position: int
    record: Record


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    """A call that runs (``Stepping``). ``cell_value``: 0 once it has ended, as its place in the ledger may get another
    record; tasks that it has started may go on. ``until``: its time limit. ``is_over``: what it still does is
    ignored."""

    of: _Waiting
    cell: memoryview
    cell_value: int
    began: float
    until: float
    limit_ms: int
    round_number: int
    is_over: bool = False
    task: asyncio.Task[None] | None = None


class Calls:
    """The calls of one companion. ``send``: takes messages. ``fail``: takes the error after which nothing more can be
    called. It has to be used in the thread of ``loop`` only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Begin,
        ledger: CompanionLedger,
        send: Callable[[FromCompanion], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._loop, self._ledger, self._send, self._fail = loop, ledger, send, fail
        self._limits, self._held = begin.limits, 0
        self._handler: Handler | None = None
        self._names: dict[str, None] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._handed: dict[int, Handed] = {}
        self._running: dict[_Call, None] = {}  # in the order in which they began
        self._ignored: set[asyncio.Task[None]] = set()  # cancelled, and not at an end
        self._contract = Contract()
        self._outbox = Outbox(None)
        self._overruns = Overruns(loop, stuck_file(begin.ledger), self._look)
        self._context = copy_context()  # without a call: what a call schedules would belong to it
        self._turn_is_due = self._check_is_due = self._tells = self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def handle_with(self, handler: Handler) -> None:
        """Begin the calls, with this handler."""
        self._handler = handler
        self._names = None if handler.output is None else dict.fromkeys(handler.output.names)
        self._outbox = Outbox(handler.output)
        self._plan_turn()

    def set_limits(self, limits: Limits) -> None:
        """Use these limits for calls that begin from now on."""
        self._limits, self._held = limits, 0
        self._plan_turn()

    # ------------------------------------------------------------------------------------------ hand-overs

    def expect(self, handed: Handed) -> None:
        """Note a hand-over that is about to be read. Once calls have come to their end, it is given back."""
        self._handed[handed.message.number] = handed
        if self._is_closed:
            self._stop_reading(handed)
            self._plan_turn()

    def take(self, handed: Handed, read: ReadBatch) -> None:
        """Add records that were read. If they cannot be noted, the hand-over is given back, before its end would make
        them gaps."""
        if handed.is_over:
            return
        try:
            block = self._ledger.begin(handed.message.number, read.batch)
        except Exception as fault:  # noqa: BLE001 - whatever it is, nothing can be called any more
            self._fail(fault)
            self._stop_reading(handed)
            return
        handed.note_read(read.offsets)
        self._waiting += (_Waiting(handed, block, position, record) for position, record in enumerate(read.records))
        self._plan_turn()

    def end_of(self, handed: Handed, answer: int = AcknowledgeType.GAP) -> None:
        """Note that all records of a hand-over were taken that can be read. ``answer``: for the other offsets."""
        if handed.is_over:
            return
        self._answer_runs(handed, handed.unread(), answer)
        handed.is_read = True
        handed.message = handed.message._replace(part=None, records=None)
        self._plan_turn()

    def give_back(self) -> None:
        """Answer all records that were not entered as such, read or not; those that run go on."""
        for handed, runs in _runs_of(self._waiting):
            self._answer_runs(handed, runs, Loss.NOT_ENTERED)
        self._waiting.clear()
        for handed in self._handed.values():
            self._stop_reading(handed)
        self._plan_turn()

    def flush(self) -> None:
        """Send the answers that are known."""
        try:
            message = self._outbox.take()
        except Exception as fault:  # noqa: BLE001 - the ledger cannot be written, or the fault is ours
            self._fail(fault)
            return
        if message is not None:
            self._send(message)

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop hand-overs with all their calls, which get no answer."""
        self.flush()
        dropped = {number: self._handed.pop(number) for number in numbers if number in self._handed}
        for handed in dropped.values():
            handed.is_over = True
            handed.stopping.set()
        self._waiting = deque(one for one in self._waiting if one.handed.message.number not in dropped)
        for call in [call for call in self._running if call.of.handed.message.number in dropped]:
            self._cancel(call)
        for number in dropped:
            self._ledger.forget(number)
        self._plan_turn()

    async def end(self, within_s: float) -> None:
        """Begin no more calls, give back what was not entered, and wait until no call runs, but not for longer."""
        self._is_closed = True
        self.give_back()
        try:
            await asyncio.wait_for(self._idle.wait(), within_s)
        except TimeoutError:
            pass
        finally:
            self.flush()
            self._overruns.close()

    def _stop_reading(self, handed: Handed) -> None:
        """Give back what was not read of a hand-over."""
        if not handed.is_read:
            handed.stopping.set()
            self.end_of(handed, Loss.NOT_ENTERED)
        handed.is_over = True

    def _answer_runs(self, handed: Handed, runs: Iterable[OffsetRun], answer: int) -> None:
        for run in runs:
            self._outbox.add(RecordAnswer(handed.message.number, *run, int(answer)))

    # ----------------------------------------------------------------------------------------------- calls

    def _plan_turn(self) -> None:
        """Send answers and begin calls at the end of this turn of the loop."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        self._turn_is_due = False
        self.flush()
        handler = self._handler
        if self._check_is_due and handler is not None:
            self._check(handler)
        while self._waiting and handler is not None and self._may_begin(self._waiting[0]):
            self._begin(self._waiting.popleft(), handler)
        if self._running:
            self._overruns.watch(self._limit_ms(handler) / 1_000)
        else:
            self._idle.set()
        if self._running and not self._tells:
            self._tells = True
            self._tell_later()

    def _may_begin(self, one: _Waiting) -> bool:
        """Return whether the next record may begin. In turn means alone, so it waits for all, and all for it. The place
        of a throttled call is ``_held`` until there are new limits: it would be throttled again and again meanwhile."""
        if len(self._running) + self._held >= self._limits.most_calls:
            return False
        if not self._running:
            return True
        if one.handed.message.in_turn:
            return False
        return not next(iter(self._running)).of.handed.message.in_turn

    def _begin(self, one: _Waiting, handler: Handler) -> None:
        now, limit_ms = time.monotonic(), self._limit_ms(handler)
        call = _Call(
            of=one,
            cell=one.block.cell,
            cell_value=one.block.cell_value(one.position),
            began=now,
            until=now + limit_ms / 1_000,
            limit_ms=limit_ms,
            round_number=self._limits.round_number,
        )
        self._running[call] = None
        self._idle.clear()
        call.task = self._loop.create_task(self._run(call, handler))

    def _limit_ms(self, handler: Handler | None) -> int:
        own = handler.timeout_ms if handler is not None else None
        return self._limits.timeout_ms if own is None else own

    async def _run(self, call: _Call, handler: Handler) -> None:
        one = call.of
        CURRENT_CALL.set(call)
        one.block.status[one.position] = _IN_HANDLER
        fault: BaseException | None = None
        answer: Any = None
        try:
            answer = await Stepped(handler.call(one.record), call)
        except BaseException as raised:  # noqa: BLE001 - what a handler raises is an answer
            fault = raised
        if call.is_over:
            return
        try:
            self._ended(call, self._judged(call, answer, fault))
        except Exception as trouble:  # noqa: BLE001 - the ledger cannot be written, or the fault is ours
            self._fail(trouble)

    def _judged(self, call: _Call, answer: Any, fault: BaseException | None) -> Judged:
        """Judge the end of a call. The user's objects are looked at, so it is a part of the call."""
        if fault is None and (answer is None or answer is Ack.ACCEPT):
            return _ACCEPTED
        call.cell[0] = call.cell_value
        try:
            return judged(answer, self._names) if fault is None else self._judged_fault(fault)
        except HandlerError as misfit:
            self._contract.note_misfit(str(misfit))
            return _released(str(misfit))
        finally:
            call.cell[0] = 0

    def _judged_fault(self, fault: BaseException) -> Judged:
        throttle = throttle_of(fault)
        return _released(exception_text(fault)) if throttle is None else judged(throttle, self._names)

    def _ended(self, call: _Call, found: Judged) -> None:
        """Note the answer of a call: error and delay in the ledger, then the status; only then it may be sent."""
        code, error, delay_ms, rows, status, cost = found
        one = call.of
        handed, block, position, record = one
        if error is not None or delay_ms is not None:
            block.note(position, error, delay_ms)
        block.status[position] = status
        del self._running[call]
        call.cell_value = 0
        self._count(one)
        at = TopicPartition(record.topic, record.partition)
        text = None if error is None else error_text(error)
        answer = RecordAnswer(handed.message.number, at, record.offset, record.offset, code, text, delay_ms)
        self._outbox.add(answer, time.monotonic() - call.began, cost)
        if code == Loss.THROTTLED:
            self._held += 1
            self._outbox.note_throttled(call.round_number)
        if rows:
            self._outbox.add_rows(rows, lambda misfit: self._release(one, misfit))
        self._plan_turn()

    def _count(self, one: _Waiting) -> None:
        """Count a call that has ended; after the last one of a hand-over the handler is judged."""
        handed, contract = one.handed, self._contract
        contract.entered += 1
        contract.first_times += one.record.delivery_count == 1
        handed.left -= 1
        self._check_is_due |= not handed.left and handed.is_read

    def _check(self, handler: Handler) -> None:
        self._check_is_due = False
        try:
            self._contract.check(handler)
        except HandlerError as fault:
            self._fail(fault)

    def _release(self, one: _Waiting, misfit: str) -> None:
        """Release a record after all: its output does not fit."""
        self._contract.note_misfit(misfit)
        one.block.note(one.position, misfit, None)
        one.block.status[one.position] = CallStatus.RELEASED

    def _cancel(self, call: _Call) -> None:
        """Cancel a call, and ignore what it still does."""
        call.is_over = True
        call.cell_value = 0
        self._running.pop(call, None)
        if call.task is not None:
            call.task.cancel()
            self._ignored.add(call.task)
            call.task.add_done_callback(self._ignored.discard)

    def _look(self, now: float) -> bool:
        """Cancel the calls that take too long; return whether there are still calls, or what is left of them."""
        for call in [call for call in self._running if call.until <= now]:
            self._ended(call, _released(overrun_text(call.limit_ms)))
            self._cancel(call)
        return bool(self._running or self._ignored)

    # ----------------------------------------------------------------------------------------------- report

    def _tell_later(self) -> None:
        self._loop.call_later(_TELL_EVERY_S, self._tell, context=self._context)

    def _tell(self) -> None:
        """Tell what runs; the last time, that nothing does."""
        now = time.monotonic()
        oldest = tuple((*call.of.record[:3], now - call.began) for call in itertools.islice(self._running, _MOST_TOLD))
        self._send(CallsNow(len(self._running), len(self._waiting), oldest))
        self._tells = bool(self._running)
        if self._tells:
            self._tell_later()


def _released(error: str) -> Judged:
    return Judged(int(Ack.RELEASE), error, None, [], int(CallStatus.RELEASED))


def _runs_of(waiting: Iterable[_Waiting]) -> Iterator[tuple[Handed, Iterator[OffsetRun]]]:
    """Yield the offsets of records that wait, by hand-over and topic-partition."""
    found: dict[tuple[Handed, TopicPartition], list[int]] = {}
    for one in waiting:
        at = TopicPartition(one.record.topic, one.record.partition)
        found.setdefault((one.handed, at), []).append(one.record.offset)
    for (handed, at), offsets in found.items():
        yield handed, offset_runs(at, np.sort(np.array(offsets, np.int64)))
