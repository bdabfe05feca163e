"""The calls of a handler that waits: many at a time on one event loop, each noted in the ledger.

Records wait in the order in which their hand-overs came (``waiting``). A call has one of them, or a list. What it
returns or raises is judged for each record (``judgement``); the answers go to the ledger at once, and to the driver
with all others that end within a few milliseconds.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

from share_spark.companion.call import Call
from share_spark.companion.call_threads import CallThreads, RaisedInThread
from share_spark.companion.judgement import ACCEPTED, Judgement, released
from share_spark.companion.key_queues import KeyQueues
from share_spark.companion.ledger import CompanionLedger
from share_spark.companion.messages import Begin, CallsNow, FromCompanion, Limits, RecordAnswer
from share_spark.companion.outbox import Outbox
from share_spark.companion.overruns import Overruns, stuck_file
from share_spark.companion.reading import Handed, OffsetRun, ReadBatch
from share_spark.companion.stepping import CURRENT_CALL, stepped
from share_spark.companion.timed import Collected, Repeated
from share_spark.companion.waiting import HeldBack, Waiting, WaitingRecords
from share_spark.delivery.judging import Judged
from share_spark.delivery.ledger import CallStatus
from share_spark.engine.key_order import FINISHED
from share_spark.handlers.error_texts import error_text
from share_spark.handlers.handler import Handler
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.time_limit import overrun_text
from share_spark.model.errors import HandlerError
from share_spark.model.requests import AcknowledgeType, Loss

_COLLECT_S = 0.01
"""The least time between two messages with answers: each one wakes the driver."""

_TELL_EVERY_S = 0.5
_MOST_TOLD = 10
_IN_HANDLER = int(CallStatus.IN_HANDLER)


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
        self._threads: CallThreads | None = None
        self._waiting = KeyQueues() if begin.ordered else WaitingRecords()
        self._handed: dict[int, Handed] = {}
        self._running: dict[Call, None] = {}  # in the order in which they began
        self._ignored: set[asyncio.Task[None]] = set()  # cancelled, and not at an end
        self._outbox, self._sent = Outbox(None), 0
        self._overruns = Overruns(loop, stuck_file(Path(begin.ledger)), self._look)
        self._context = copy_context()  # without a call: what a call schedules would belong to it
        self._turn_is_due = self._lingers = self._check_is_due = self._is_closed = False
        # In order of keys the successors wait until an answer is sent: one message for all that end in a turn.
        self._flushes = Collected(loop, self._context, 0.0 if begin.ordered else _COLLECT_S, self.flush)
        self._go_on = self._plan_turn if begin.ordered else lambda: self._context.run(self._turn)
        self._reports = Repeated(loop, self._context, _TELL_EVERY_S, self._tell)
        self._idle = asyncio.Event()
        self._idle.set()

    def handle_with(self, handler: Handler) -> None:
        """Begin the calls, with this handler."""
        self.flush()
        self._handler = handler
        self._judgement = Judgement(handler)
        self._outbox = Outbox(handler.output)
        self._waiting.most, self._waiting.linger_s = handler.batch or 1, handler.linger_s or 0.0
        if handler.threads is not None:
            self._threads = CallThreads(self._loop, handler.threads, self._plan_turn)
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
        self._hold_back(self._waiting.add(handed, block, read, time.monotonic(), self._sent))
        self._plan_turn()

    def end_of(self, handed: Handed, answer: int = AcknowledgeType.GAP) -> None:
        """Note that all records of a hand-over were taken that can be read. ``answer``: for the other offsets."""
        if handed.is_over:
            return
        self._answer_runs(handed, handed.unread(), answer)
        if answer == Loss.NOT_ENTERED:
            self._waiting.bar(self._sent)
        handed.is_read = True
        self._check_is_due |= handed.is_done  # quick calls end before the reading does
        handed.message = handed.message._replace(part=None, records=None)
        self._plan_turn()

    def give_back(self) -> None:
        """Answer all records that were not entered as such, read or not; those that run go on."""
        self._waiting.bar(self._sent)
        for handed, runs in self._waiting.clear():
            self._answer_runs(handed, runs, Loss.NOT_ENTERED)
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
            self._sent += 1
            self._flushes.note()
        self._hold_back(self._waiting.follow(self._sent))

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop hand-overs with all their calls, which get no answer."""
        self.flush()
        dropped = {number: self._handed.pop(number) for number in numbers if number in self._handed}
        for handed in dropped.values():
            handed.is_over = handed.is_forgotten = True
            handed.stopping.set()
        if any(handed.left for handed in dropped.values()):  # usually all of its calls have ended
            self._waiting.drop_forgotten()
            for call in [call for call in self._running if not call.present]:
                self._cancel(call)
        for number in dropped:
            self._ledger.forget(number)
        self._plan_turn()

    async def end(self, within_s: float | None) -> None:
        """Begin no more calls, give back what was not entered, and wait until no call runs, but not for longer; None:
        until each of them is over its limit."""
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
        self._flushes.soon()
        handler = self._handler
        if self._check_is_due and handler is not None:
            self._check(handler)
        while handler is not None and (first := self._waiting.first) is not None and self._may_begin(first):
            if self._waiting.most > 1 and (wait_s := self._waiting.ready_in(time.monotonic())) > 0.0:
                self._linger(wait_s)
                break
            self._begin(self._waiting.take(), handler)
        if self._running and handler is not None:
            self._idle.clear()
            self._overruns.watch(handler.limit_ms(self._limits.timeout_ms) / 1_000)
            self._reports.begin()
        else:
            self._idle.set()

    def _linger(self, wait_s: float) -> None:
        """Plan another turn for when the first record has waited for others long enough."""
        if not self._lingers:
            self._lingers = True
            self._loop.call_later(wait_s, self._lingered, context=self._context)

    def _lingered(self) -> None:
        self._lingers = False
        self._plan_turn()

    def _may_begin(self, one: Waiting) -> bool:
        """Return whether the next record may begin. In turn means alone, so it waits for all, and all for it. The place
        of a throttled call is ``_held`` until there are new limits: it would be throttled again and again meanwhile."""
        if self._threads is not None and not self._threads.has_free(len(self._running)):
            return False
        if len(self._running) + self._held >= self._limits.most_calls:
            return False
        if not self._running:
            return True
        running = next(iter(self._running)).records[0]
        return not (one.handed.message.in_turn or running.handed.message.in_turn)

    def _begin(self, records: Sequence[Waiting], handler: Handler) -> None:
        try:
            call = Call.of(records, handler, self._limits)
        except Exception as fault:  # noqa: BLE001 - whatever it is, nothing can be called any more
            self._fail(fault)
            self._hold_back([HeldBack(one, 0) for one in records])
            return
        self._running[call] = None
        call.task = asyncio.Task(self._run(call, handler), loop=self._loop)  # no part of a call, so without a factory

    async def _run(self, call: Call, handler: Handler) -> None:
        CURRENT_CALL.set(call)
        for one in call.records:
            if not one.handed.is_forgotten:
                one.block.status[one.position] = _IN_HANDLER
        answer = fault = None
        try:
            if self._judgement.prepares:
                for one, failed in call.prepare(self._judgement.prepared):
                    self._answer(one, failed, call.round_number)
                    self._plan_turn()
            if call.records:
                answer = await self._called(call, handler)
        except BaseException as raised:  # noqa: BLE001 - what a handler raises is an answer
            fault = raised
        if not call.is_over:
            self._take_answer(call, answer, fault)
        fault = call.task = None  # cycles would keep the records: a traceback has its frame, a context its call
        self._go_on()

    def _take_answer(self, call: Call, answer: Any, fault: BaseException | None) -> None:
        try:
            self._ended(call, self._judged(call, answer, fault))
        except Exception as trouble:  # noqa: BLE001 - no answer, the ledger cannot be written, or the fault is ours
            if isinstance(trouble, HandlerError):
                self._undo(call)
            self._fail(trouble)

    def _called(self, call: Call, handler: Handler) -> Awaitable[Any]:
        """Begin the call, and return what gives its answer."""
        if self._threads is not None:
            return self._threads.run(call, handler.call_of_record, call.argument)
        return stepped(handler.call(call.arguments if handler.kind is HandlerKind.LIST else call.argument), call)

    def _judged(self, call: Call, answer: Any, fault: BaseException | None) -> Sequence[Judged]:
        """Judge the end of a call. The user's objects are looked at, so it is a part of the call."""
        if not call.records:
            return ()
        if fault is None and self._judgement.is_plain_accept(answer):
            return ACCEPTED
        call.cell[0] = call.cell_value
        try:
            if fault is None:
                return self._judgement.of_answer(answer, len(call.records))
            if isinstance(fault, RaisedInThread):
                fault = fault.fault
            return self._judgement.of_fault(fault, len(call.records))
        finally:
            call.cell[0] = 0

    def _ended(self, call: Call, found: Sequence[Judged]) -> None:
        """Note the answers of a call."""
        is_throttled = False
        for one, answer in zip(call.records, found, strict=True):
            is_throttled |= answer.code == Loss.THROTTLED
            if not one.handed.is_forgotten:
                self._answer(one, answer, call.round_number)
        self._held += is_throttled
        self._outbox.note_call(time.monotonic() - call.began, call.cost(found))
        del self._running[call]
        call.cell_value = 0

    def _answer(self, one: Waiting, found: Judged, round_number: int) -> None:
        """Note the answer of a record: error and delay in the ledger, then the status; only then it may be sent."""
        code, error, delay_ms, rows, status, _ = found
        handed, block, position, record, _ = one
        self._waiting.ended(one, is_finished=code in FINISHED, delay_ms=delay_ms)
        if error is not None or delay_ms is not None:
            block.note(position, error, delay_ms)
        block.status[position] = status
        self._count(one)
        text = None if error is None else error_text(error)
        answer = RecordAnswer(handed.message.number, one.at, record.offset, record.offset, code, text, delay_ms)
        self._outbox.add(answer)
        if code == Loss.THROTTLED:
            self._outbox.note_throttled(round_number)
        if rows:
            self._outbox.add_rows(rows, one, lambda misfit: self._release(one, misfit))

    def _undo(self, call: Call) -> None:
        """Give back the records of a call that has not answered them, as its handler is at fault."""
        for one in call.present:
            one.block.status[one.position] = CallStatus.NOT_ENTERED
            self._give_back(one)
        del self._running[call]
        call.cell_value = 0

    def _hold_back(self, held: Sequence[HeldBack]) -> None:
        """Give back records whose keys are held back."""
        for one, wait_ms in held:
            self._check_is_due |= one.handed.settle_one()
            self._give_back(one, wait_ms or None)
        if held:
            self._plan_turn()

    def _give_back(self, one: Waiting, delay_ms: int | None = None) -> None:
        number, offset = one.handed.message.number, one.record.offset
        self._outbox.add(RecordAnswer(number, one.at, offset, offset, Loss.NOT_ENTERED, delay_ms=delay_ms))

    def _count(self, one: Waiting) -> None:
        """Count a record whose call has ended; after the last one of a hand-over the handler is judged."""
        contract = self._judgement.contract
        contract.entered += 1
        contract.first_times += one.record.delivery_count == 1
        self._check_is_due |= one.handed.settle_one()

    def _check(self, handler: Handler) -> None:
        self._check_is_due = False
        try:
            self._judgement.contract.check(handler)
        except HandlerError as fault:
            self._fail(fault)

    def _release(self, one: Waiting, misfit: str) -> None:
        """Release a record after all: its output does not fit."""
        self._judgement.contract.note_misfit(misfit)
        self._waiting.ended(one, is_finished=False, delay_ms=None)
        one.block.note(one.position, misfit, None)
        one.block.status[one.position] = CallStatus.RELEASED

    def _cancel(self, call: Call) -> None:
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
            text = overrun_text(call.limit_ms, len(call.records))
            self._ended(call, [released(text)] * len(call.records))
            self._cancel(call)
            self._plan_turn()
            if self._threads is not None and (fault := self._threads.stuck(call)) is not None:
                self._fail(fault)
        return bool(self._running or self._ignored)

    def _tell(self) -> bool:
        """Tell what runs; the last time, that nothing does. Return whether something runs."""
        now, first = time.monotonic(), itertools.islice(self._running, _MOST_TOLD)
        oldest = tuple((*call.records[0].record[:3], now - call.began) for call in first)
        self._send(CallsNow(len(self._running), len(self._waiting), oldest))
        return bool(self._running)
