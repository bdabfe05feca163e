"""A handler as one process has it: opened, with its calls counted; the process may die in one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from share_spark.delivery.ledger import CallStatus, LedgerEntries
from share_spark.handlers.handler import Handler, Record
from share_spark.handlers.kinds import is_async
from share_spark.handlers.values import ArgumentOf, UndecodableError


class HandlerCall(NamedTuple):
    """A record that a call had. ``delivery_count``: as the handler has seen it."""

    offset: int
    delivery_count: int


class Crash(KeyboardInterrupt):
    """The death of a process in a call. The code that calls handlers takes whatever they raise for an answer, but not
    this: Spark ends tasks by it."""


@dataclass(slots=True, kw_only=True)
class CallLog:
    """The calls of a handler in all of its processes. ``crash_at``: the numbers of the calls in which a process dies,
    from 1. ``calls``: the records that were in one."""

    crash_at: Collection[int] = ()
    calls: list[HandlerCall] = field(default_factory=list)
    _begun: int = 0
    _undecoded: set[HandlerCall] = field(default_factory=set)

    def begin(self) -> bool:
        """Count a call; return whether its process dies in it."""
        self._begun += 1
        return self._begun in self.crash_at

    def note(self, ledgers: Iterable[LedgerEntries]) -> None:
        """Note the records that were in a call, from the ledgers of a delivery."""
        for one in ledgers:
            entered = np.flatnonzero(one.status != CallStatus.NOT_ENTERED)
            found = map(HandlerCall, one.offset[entered].tolist(), one.count[entered].tolist())
            self.calls += [call for call in found if call not in self._undecoded]

    def counted(self, opened: Handler, die: Callable[[], None] = lambda: None) -> Handler:
        """Return an opened handler whose calls are counted. ``die``: is called in a call in which the process dies."""
        call = opened.call

        async def call_and_wait(argument: Any) -> Any:
            if self.begin():
                die()
                await asyncio.get_running_loop().create_future()
            return await call(argument)

        def call_at_once(argument: Any) -> Any:
            if self.begin():
                die()
                raise Crash
            return call(argument)

        argument_of = None if opened.argument_of is None else self._noting(opened.argument_of)
        return replace(opened, call=call_and_wait if is_async(call) else call_at_once, argument_of=argument_of)

    def _noting(self, argument_of: ArgumentOf) -> ArgumentOf:
        """Return the same, which notes records that cannot be decoded: no call has them."""

        def argument(record: Record[Any]) -> Any:
            try:
                return argument_of(record)
            except UndecodableError:
                self._undecoded.add(HandlerCall(record.offset, record.delivery_count))
                raise

        return argument
