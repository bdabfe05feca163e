"""The queue between the event loop, where clients ask, and the thread of an engine, which answers by micro-batch."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from share_spark.coordinator.group import GroupRequests, ShareGroup
from share_spark.engine.client_asks import ClientAnswer, ClientAsk, GroupAnswer, GroupAsk
from share_spark.model.config import DEFAULT_CONFIG, GroupConfig
from share_spark.model.errors import FencedError, ShareError
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import PartitionResponse
from share_spark.partition.kafka_modes import KafkaRequest


class GroupUnavailableError(ShareError):
    """A group whose engine has ended, or has not begun yet: nothing that was asked has an answer."""


class Answered(NamedTuple):
    """The answer to an ask. ``moment``: of the queue, before the micro-batch that has answered."""

    responses: Mapping[SharePartitionKey, Sequence[PartitionResponse]]
    moment: int


class ClientQueue:
    """A ``Clients`` port. Its moments are the micro-batches that have answered, or changed something. The methods down
    to ``changed`` are for the thread of one event loop, ``open`` and those of the port for that of the engine.
    ``on_forget``: called in the loop when reads of logs are to be forgotten; None: of all logs. ``group``: as of the
    last commit of an engine, None if it never had a member. ``engines``: how many have begun. ``config``: the settings
    of the group."""

    def __init__(self, config: GroupConfig = DEFAULT_CONFIG) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count()
        self._news = threading.Condition()
        self._asked: list[ClientAsk] = []
        self._group_ask: GroupAsk | None = None
        self._is_open = self._is_woken = self._was_replaced = False
        self.group: ShareGroup | None = None
        self.engines = 0
        self.config = config
        self.on_forget: Callable[[Collection[SharePartitionKey] | None], None] = lambda _: None
        # Of the loop's thread alone:
        self._moment = 0
        self._changed_at: dict[SharePartitionKey, int] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._opened = asyncio.Event()
        self._watched: dict[SharePartitionKey, dict[asyncio.Event, None]] = {}  # who waits longest is first

    # ---------------------------------------------------------------------------------- for the event loop

    async def ask(self, requests: Mapping[SharePartitionKey, Sequence[KafkaRequest]]) -> Answered:
        """Return the answer once it is durable. If the caller is cancelled, what was asked may still be decided.
        Raises GroupUnavailableError."""
        found: Answered = await self._answer_to(lambda number: self._asked.append(ClientAsk(number, requests)))
        return found

    async def ask_group(self, requests: GroupRequests) -> GroupAnswer:
        """Do as ``ask``, for what members ask of the group; one at a time."""

        def add(number: int) -> None:
            self._group_ask = GroupAsk(number, requests)

        found: GroupAnswer = await self._answer_to(add)
        return found

    async def _answer_to(self, add: Callable[[int], None]) -> Any:
        """Return the answer to what ``add`` asks, with a number."""
        number, self._loop = next(self._numbers), asyncio.get_running_loop()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._answers[number] = answer
        try:
            with self._news:
                if not self._is_open:
                    raise GroupUnavailableError("the engine of the group does not run")
                add(number)
                self._news.notify_all()
            return await answer
        finally:
            self._answers.pop(number, None)

    @property
    def is_open(self) -> bool:
        """Return whether an engine takes what is asked."""
        return self._is_open

    @property
    def was_replaced(self) -> bool:
        """Return whether the engine has ended because another one, elsewhere, has the group."""
        return self._was_replaced

    async def is_open_within(self, seconds: float) -> bool:
        """Wait for an engine, at most so long. Return whether there is one."""
        self._loop = asyncio.get_running_loop()  # first: an engine that opens from now on says so in the loop
        if not self._is_open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._opened.wait(), seconds)
        return self._is_open

    async def changed(self, keys: Collection[SharePartitionKey], since: int, seconds: float) -> None:
        """Wait until the state of one of these share-partitions is another one than at the moment ``since``, or its log
        is; at most so long."""
        if any(self._changed_at.get(key, 0) > since for key in keys):
            return
        event = asyncio.Event()
        for key in keys:
            self._watched.setdefault(key, {})[event] = None
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return
        finally:
            for key in keys:
                self._watched[key].pop(event, None)
                if not self._watched[key]:
                    del self._watched[key]

    # ------------------------------------------------------------------------------------- for the engine

    def open(self, group: ShareGroup | None) -> None:
        """Take what is asked from now on: an engine has begun, and has found ``group`` in the log. It does not know
        what was read before."""
        self._call_in_loop(self.on_forget, None)
        with self._news:
            self.group, self.engines = group, self.engines + 1
            self._is_open, self._was_replaced = True, False
        self._call_in_loop(self._opened.set)

    def take(self) -> Sequence[ClientAsk]:
        """See ``Clients``."""
        with self._news:
            taken, self._asked = self._asked, []
        return taken

    def take_group(self) -> GroupAsk | None:
        """See ``Clients``."""
        with self._news:
            taken, self._group_ask = self._group_ask, None
        return taken

    def answer_group(self, answer: GroupAnswer) -> None:
        """See ``Clients``."""
        self.group = answer.group
        self._call_in_loop(self._resolve_one, answer.number, answer)

    def configure(self, config: GroupConfig) -> None:
        """See ``Clients``."""
        self.config = config

    def forget_reads(self, keys: Collection[SharePartitionKey]) -> None:
        """See ``Clients``."""
        self._call_in_loop(self.on_forget, keys)

    def answer(self, answers: Sequence[ClientAnswer], changed: Collection[SharePartitionKey]) -> None:
        """See ``Clients``."""
        self._call_in_loop(self._resolve, answers, changed)

    def refuse(self, fault: ShareError | None) -> None:
        """See ``Clients``."""
        with self._news:
            self._is_open, self._asked, self._group_ask = False, [], None
            self._was_replaced = isinstance(fault, FencedError)
        self._call_in_loop(self._give_up, fault)

    def wait(self, seconds: float) -> None:
        """See ``Clients``."""
        with self._news:
            self._news.wait_for(lambda: self._asked or self._group_ask or self._is_woken, max(0.0, seconds))
            self._is_woken = False

    @property
    def is_watched(self) -> bool:
        """Return whether a client waits for new records. From any thread."""
        return bool(self._watched)

    def stop_waiting(self) -> None:
        """See ``Clients``."""
        with self._news:
            self._is_woken = True
            self._news.notify_all()

    # ----------------------------------------------------------------------------------------- in the loop

    def _call_in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        """Call it in the loop; nobody has asked if there is none yet."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _resolve(self, answers: Sequence[ClientAnswer], changed: Collection[SharePartitionKey]) -> None:
        before = self._moment
        self._moment += 1
        for one in answers:
            self._resolve_one(one.number, Answered(one.responses, before))
        for key in changed:
            self._changed_at[key] = self._moment
            for event in self._watched.get(key, ()):
                event.set()

    def _resolve_one(self, number: int, result: Answered | GroupAnswer) -> None:
        answer = self._answers.get(number)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def _give_up(self, fault: ShareError | None) -> None:
        self._opened.clear()
        text = "the engine of the group has ended" + (f": {fault}" if fault is not None else "")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(GroupUnavailableError(text))
