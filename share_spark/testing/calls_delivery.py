"""Delivery to a handler that waits, by the code of a companion in this process. It waits for all of its calls."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from share_spark.companion.calls import Calls
from share_spark.companion.hand_overs import HandOvers
from share_spark.companion.ledger import CompanionLedger
from share_spark.companion.lost_calls import MOST_FILES, LostCalls
from share_spark.companion.messages import Answered, Begin, FromCompanion, HandOver, Limits
from share_spark.companion.news import News
from share_spark.companion.reading import Handed, read_batches, record_schema
from share_spark.companion.stepping import task_of
from share_spark.delivery.ledger import LedgerEntries
from share_spark.delivery.traces import WORKER_LOST
from share_spark.engine.delivery_port import AcquiredSpan, Delivered, DeliveryLimits
from share_spark.engine.ports import Claim
from share_spark.handlers.handler import HANDLER_COLUMNS, Handler
from share_spark.handlers.handler_objects import close_on_loop, opened_on_loop
from share_spark.model.errors import HandlerError, ShareError
from share_spark.testing.called_handler import CallLog
from share_spark.testing.delivery_here import BATCH_ROWS, DeliveryHere

_NO_LIMITS = Limits(1, 0)
"""The limits before the first delivery."""


@dataclass(slots=True, kw_only=True)
class CallsDelivery(DeliveryHere):
    """Delivery port. ``_process``: the present one, of so many ``_processes``. ``_number``: of the last hand-over."""

    _directory: Path | None = None
    _processes: int = 0
    _process: _Process | None = None
    _number: int = 0

    def start(self, claim: Claim) -> None:
        """See ``Delivery``."""
        self._directory = self._ledgers.start(None, claim).directory(uuid.uuid4().hex)

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:
        """Call the handler with the records, and wait for all answers; a process that dies has its own. Raises
        ShareError."""
        process = self._process = self._process or self._begun()
        most_calls = self.handler.calls_at_a_time(limits.most_calls)
        process.limits = Limits(most_calls, limits.timeout_ms, limits.round_number)
        part = pickle.dumps(self._part(acquired), protocol=5)
        self._number += 1
        message = HandOver(self._number, acquired, part, in_turn=in_turn, answers_known=process.taken)
        news = process.work_off(Handed(message=message))
        self.calls_log.note(process.ledgers())
        if process.has_ended:
            self._process = None
        else:
            process.forget(self._number)
        self.rows = news.rows
        return news.delivered(process.limits, 0)._replace(in_flight=None)

    def _begun(self) -> _Process:
        assert self._directory is not None, "asked before start"
        self._processes += 1
        ledger = self._directory / str(self._processes * MOST_FILES)
        return _Process.begin(self.handler, ledger, self.calls_log, ordered=self.ordered)

    def close(self) -> None:
        """Close the handler."""
        if self._process is not None:
            self._process.end()


@dataclass(slots=True, kw_only=True)
class _Process:
    """A companion without a process of its own. ``taken``: the messages with answers so far. ``lost``: what its ledgers
    said when it died."""

    loop: asyncio.AbstractEventLoop
    handler: Handler
    ledger_path: Path
    ledger: CompanionLedger
    ordered: bool
    limits: Limits = _NO_LIMITS
    taken: int = 0
    lost: LostCalls | None = None
    has_ended: bool = False
    _calls: Calls = field(init=False)
    _hand_overs: HandOvers = field(default_factory=HandOvers)
    _news: News = field(default_factory=News)
    _fault: Exception | None = None
    _heard: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def begin(cls, handler: Handler, ledger: Path, log: CallLog, *, ordered: bool) -> _Process:
        """Open the handler. Raises HandlerError."""
        loop: Any = asyncio.new_event_loop()
        loop.set_task_factory(task_of)
        in_threads = handler.threads is not None
        opened = loop.run_until_complete(opened_on_loop(handler))
        notes = CompanionLedger(ledger, in_threads=in_threads)
        process = cls(loop=loop, handler=opened, ledger_path=ledger, ledger=notes, ordered=ordered)
        begin = Begin(b"", handler.name, (), str(ledger), process.limits, BATCH_ROWS, in_threads, ordered)
        process._calls = Calls(loop, begin, process.ledger, process._take, process._fail)
        loop.call_soon(process._calls.handle_with, log.counted(opened, process._die))
        return process

    def work_off(self, handed: Handed) -> News:
        """Return the answers to a hand-over, all of them."""
        self._hand_overs.add(handed.message.number, handed.message.acquired)
        self._run(self._worked_off(handed))
        if self.lost is not None or self._fault is not None:
            self._run(self._calls.end(0.0))
            self._bury(self.lost or LostCalls.read(self.ledger_path))
        news, self._news = self._news, News()
        return news

    def ledgers(self) -> Iterable[LedgerEntries]:
        """Return what its ledgers say."""
        return (self.lost or LostCalls.read(self.ledger_path)).files

    def forget(self, number: int) -> None:
        """Forget a hand-over whose answers were returned."""
        self._hand_overs.take_answered()
        self.loop.call_soon(self._calls.forget, [number])
        self._run(asyncio.sleep(0))

    def end(self) -> None:
        """End it in order."""
        self._run(self._calls.end(None))
        self._run(close_on_loop(self.handler))
        self._leave()

    def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(work)

    async def _worked_off(self, handed: Handed) -> None:
        self._calls.set_limits(self.limits)
        self._calls.expect(handed)
        columns = self.handler.columns or HANDLER_COLUMNS
        for read in read_batches(handed, record_schema(columns, ordered=self.ordered), BATCH_ROWS):
            self._calls.take(handed, read)
        self._calls.end_of(handed)
        while self._hand_overs.in_flight and self._fault is None and self.lost is None:
            await self._heard.wait()
            self._heard.clear()

    def _take(self, message: FromCompanion) -> None:
        if isinstance(message, Answered) and self.lost is None:
            self._news.note_answered(message, self._hand_overs)
            self.taken += 1
            self._heard.set()

    def _fail(self, fault: Exception) -> None:
        self._fault = self._fault or fault
        self._heard.set()

    def _die(self) -> None:
        """Die in a call, perhaps in its thread: what the ledgers say now is all that is left."""
        self.lost = self.lost or LostCalls.read(self.ledger_path)
        self.loop.call_soon_threadsafe(self._heard.set)

    def _bury(self, lost: LostCalls) -> None:
        """Answer what has no answer, from the ledgers, as a driver does."""
        self._news.note_lost(lost, self._hand_overs, WORKER_LOST)
        if (fault := self._fault) is not None:
            self._news.note_fault(fault if isinstance(fault, HandlerError) else ShareError(str(fault)))
        else:
            self._news.dead.append(self.ledger_path)
        self._leave()

    def _leave(self) -> None:
        self.has_ended = True
        for task in (left := asyncio.all_tasks(self.loop)):
            task.cancel()
        self._run(asyncio.wait(left, timeout=1.0) if left else asyncio.sleep(0))
        self.ledger.close()
        self.loop.close()
