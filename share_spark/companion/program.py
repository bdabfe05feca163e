"""The companion process: ``python -m share_spark.companion.program <fd>``, one end of a connection to the driver. On an
executor ``<fd> <pidfd> <lock>``: also the JVM of the executor, and a lock that shows that this process is there.

It ends when the driver is gone: then nothing new begins, calls that run may come to their end, and their answers are in
the ledger for the next engine. The same happens when its executor is gone, whose machine may be needed by others; then
the driver still gets the answers. It also ends after ``Failed``, and once most of its threads are stuck. Ctrl-C is none
of its business: the driver ends first.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from share_spark.companion.call_threads import ThreadsStuckError
from share_spark.companion.calls import Calls
from share_spark.companion.ledger import CompanionLedger
from share_spark.companion.messages import (
    LENGTH,
    Begin,
    Failed,
    Forget,
    FromCompanion,
    FromDriver,
    GiveBack,
    HandOver,
    Leaving,
    SetLimits,
    Unreachable,
    packed_message,
)
from share_spark.companion.reading import Handed, read_batches, record_schema
from share_spark.companion.stepping import task_of
from share_spark.delivery.packed_handler import unpacked
from share_spark.handlers.error_texts import exception_text
from share_spark.handlers.handler import Handler
from share_spark.handlers.handler_objects import close_on_loop, opened_on_loop
from share_spark.model.errors import HandlerError, ShareError, TopicError, TopicUnreachableError
from share_spark.model.requests import Loss

_log = logging.getLogger(__name__)

LAST_CALLS_S = 20.0
"""The time that calls have to end after the driver or the executor is gone, or after what ends the companion."""

_SEARCH_FROM = 20_000
"""The new objects after which the garbage collector searches for cycles; Python's own number is 700."""

CLOSE_S = 10.0
"""The time that the handler has for its ``close``."""


class Connection:
    """The connection to the driver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def next(self) -> FromDriver | None:
        """Return the next message; None: the driver is gone."""
        try:
            (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            message: FromDriver = pickle.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):  # OSError: its machine does not answer any more
            return None
        return message

    def send(self, message: FromCompanion) -> None:
        """Send it, unless the driver is gone."""
        if not self._writer.is_closing():
            self._writer.write(packed_message(message))

    async def close(self) -> None:
        """Send what was not sent yet, and close."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


class Companion:
    """One run of the program, from the first message to its end. ``executor``: what it must not outlive, as a pidfd;
    None beside the driver."""

    def __init__(self, begin: Begin, connection: Connection, executor: int | None = None) -> None:
        self._begin, self._connection, self._executor = begin, connection, executor
        self._loop = asyncio.get_running_loop()
        self._schema = record_schema(begin.columns, ordered=begin.ordered)
        # One thread: it loads the handler, then it reads one hand-over after another, in their order.
        self._thread = ThreadPoolExecutor(1)
        self._fault: asyncio.Future[Exception] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handler: Handler | None = None
        self._ledger = CompanionLedger(Path(begin.ledger), in_threads=begin.in_threads)
        self._calls = Calls(self._loop, begin, self._ledger, connection.send, self._fail)

    async def run(self) -> Exception | None:
        """Call the handler until the driver or the executor is gone, or for what it returns."""
        self._start(self._load())
        listening = self._loop.create_task(self._listen())
        leaving = self._loop.create_future()
        if self._executor is not None:
            self._loop.add_reader(self._executor, self._leave, self._executor, leaving)
        ends: list[asyncio.Future[Any]] = [listening, leaving, self._fault]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        fault = self._fault.result() if self._fault.done() else None
        await self._calls.end(None if isinstance(fault, ThreadsStuckError) else LAST_CALLS_S)
        if self._handler is not None:
            await asyncio.wait([self._loop.create_task(close_on_loop(self._handler))], timeout=CLOSE_S)
        self._ledger.close()
        return self._fault.result() if self._fault.done() else None

    def _leave(self, executor: int, leaving: asyncio.Future[None]) -> None:
        """Tell the driver that the executor has ended."""
        self._loop.remove_reader(executor)
        self._connection.send(Leaving())
        leaving.set_result(None)

    async def _load(self) -> None:
        loaded = await self._loop.run_in_executor(self._thread, _loaded, self._begin)
        self._handler = await opened_on_loop(loaded)
        self._calls.handle_with(self._handler)

    async def _listen(self) -> None:
        try:
            while (message := await self._connection.next()) is not None:
                self._obey(message)
        except Exception as fault:  # noqa: BLE001 - a message that cannot be read
            self._fail(fault)

    def _obey(self, message: FromDriver) -> None:
        match message:
            case HandOver():
                handed = Handed(message=message)
                self._calls.expect(handed)
                self._start(self._read(handed))
            case SetLimits(limits):
                self._calls.set_limits(limits)
            case GiveBack():
                self._calls.give_back()
            case Forget(numbers):
                self._calls.forget(numbers)
            case Begin():
                raise ShareError("a companion begins once")

    async def _read(self, handed: Handed) -> None:
        """Read a hand-over in the thread. What is taken comes before the end, as both are sent to the loop in turn."""
        try:
            await self._loop.run_in_executor(self._thread, self._take_all, handed)
        except Exception as fault:
            if handed.is_over:  # nobody waits for it, and it may be our own doing: reading was stopped
                return
            if not isinstance(fault, TopicError):
                raise
            self._calls.end_of(handed, Loss.NOT_ENTERED)
            self._calls.flush()
            self._connection.send(Unreachable(str(fault), not isinstance(fault, TopicUnreachableError)))
        else:
            self._calls.end_of(handed)

    def _take_all(self, handed: Handed) -> None:
        batches = read_batches(handed, self._schema, self._begin.most_rows)
        while not handed.is_over and (read := next(batches, None)) is not None:
            self._loop.call_soon_threadsafe(self._calls.take, handed, read)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task. Its error is what ends the companion."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if (fault := task.exception()) is not None:
                self._fail(fault if isinstance(fault, Exception) else ShareError(exception_text(fault)))

        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _fail(self, fault: Exception) -> None:
        if not self._fault.done():
            self._fault.set_result(fault)


def _loaded(begin: Begin) -> Handler:
    """Load the handler, and first whatever would hold the loop when it is used for the first time."""
    for name in ("pandas", "pyarrow.compute", "pyarrow.ipc"):
        importlib.import_module(name)
    pa.array([1])
    try:
        handler = unpacked(begin.name, begin.handler)
    except SystemExit as fault:  # of a module of the user's: it would end the loop
        raise HandlerError(f"handler {begin.name} cannot be loaded: {exception_text(fault)}") from None
    gc.collect()
    # Thousands of objects of calls would be searched for cycles again and again while they wait, a fifth of all work.
    gc.freeze()
    gc.set_threshold(_SEARCH_FROM)
    return handler


async def _serve(fd: int, *more: int) -> int:
    """Return the exit code."""
    # Processes that the handler starts must not have them: nobody would see our end.
    for one in (fd, *more):
        os.set_inheritable(one, False)
    executor = more[0] if more else None
    loop: Any = asyncio.get_running_loop()
    loop.set_task_factory(task_of)
    connection = Connection(*await asyncio.open_connection(sock=socket.socket(fileno=fd)))
    begin = await connection.next()
    if not isinstance(begin, Begin):
        return 0
    try:
        fault = await Companion(begin, connection, executor).run()
    except ShareError as found:
        fault = found
    if isinstance(fault, ThreadsStuckError):  # no reason to end the query: another process follows
        _log.warning("%s", fault)
    elif fault is not None:
        text = str(fault) if isinstance(fault, ShareError) else exception_text(fault)
        connection.send(Failed(text, isinstance(fault, HandlerError)))
    await connection.close()
    return 0 if fault is None else 1


def _run_through(loop: asyncio.AbstractEventLoop, task: asyncio.Task[int]) -> int:
    """Run the loop until the task is done. asyncio also leaves the loop if a task that a handler has started raises one
    of these; for the handler, which awaits that task, it is an exception like any other."""
    while True:
        try:
            return loop.run_until_complete(task)
        except (KeyboardInterrupt, SystemExit):
            if task.done():
                raise


def main(arguments: list[str], leave: Callable[[int], None] = os._exit) -> None:
    """Run the program. ``leave`` takes the exit code: not by the interpreter's own end, which would wait for threads
    that read, and for calls that ignore that they are cancelled."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = asyncio.new_event_loop()
    code = _run_through(loop, loop.create_task(_serve(*map(int, arguments))))
    sys.stdout.flush()
    sys.stderr.flush()
    leave(code)


if __name__ == "__main__":
    main(sys.argv[1:])
