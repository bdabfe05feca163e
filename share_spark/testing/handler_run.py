"""``run_handler``: some records through a share group with one handler, to their end."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from share_spark.admin.dead_letters import DeadLetters
from share_spark.admin.letters import Letter
from share_spark.delta.location import Location
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.topics import SubscribedTopics
from share_spark.engine.world import Ports
from share_spark.handlers.handler import Handler, as_handler
from share_spark.handlers.kinds import HandlerKind
from share_spark.handlers.message_rows import with_messages
from share_spark.handlers.output_schema import OutputSchema
from share_spark.model.config import DeliveryOrder, GroupConfig
from share_spark.model.errors import ConfigError, HandlerError
from share_spark.output.dead_letter_sinks import AnnouncedDeadLetters
from share_spark.output.dead_letter_table import DeltaDeadLetters
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.testing.called_handler import CallLog, HandlerCall
from share_spark.testing.calls_delivery import CallsDelivery
from share_spark.testing.collected_output import CollectedOutput
from share_spark.testing.task_delivery import TaskDelivery
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog

GROUP, TOPIC = "test", "records"

_MOST = timedelta(days=60)
"""The time that the records have: longer than any delay, and than any wait for a service."""

_LOOK_MS = 1_000
"""The time between two looks where nothing says when something happens."""

_FIELDS = {"value", "key", "headers", "timestamp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRun:
    """The result of a run. The offset of a record is its place among those given.

    ``rows``: the output rows of accepted records, as dicts, in the order of their commits. ``letters``: the dead
    letters, by offset. ``calls``: the records that calls of the handler had, in their order. ``waited``: the time that
    had to pass, for delays and for services that have asked for it. ``accepted``: the offsets of the accepted records,
    which are all that are no dead letters.
    """

    rows: list[dict[str, Any]]
    letters: list[Letter]
    calls: list[HandlerCall]
    accepted: list[int]
    waited: timedelta

    @property
    def counts(self) -> dict[int, int]:
        """The number of calls that each record was in, by offset; those that were in none are left out."""
        return dict(sorted(Counter(call.offset for call in self.calls).items()))


def run_handler(
    handler: Any,
    records: Sequence[bytes | Mapping[str, Any]],
    *,
    output: OutputSchema | None = None,
    limit: int = 5,
    crash_at: int | Collection[int] = (),
    ordered: bool = False,
    messages: bool = False,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> HandlerRun:
    """Run a share group with this handler until all records are accepted, or archived as dead letters.

    ``records``: values, or dicts with ``value`` and perhaps ``key``, ``headers`` (pairs of str and bytes) and
    ``timestamp``. ``handler``, ``output`` and ``settings`` are those of ``ShareGroup.process``. ``limit``: the most
    deliveries of a record (``share.delivery.count.limit``). ``crash_at``: the numbers of calls, from 1, in which the
    process of the handler dies; the next one goes on from what it has left. ``ordered``: by key. ``messages``: its
    output is for ``ShareGroup.to_kafka``. ``options``: other settings of the group, by their names.

    Raises HandlerError (the handler, or the schema; or it needs Spark), ConfigError.
    """
    made = as_handler(handler, output=output, **settings)
    made = with_messages(made) if messages else made
    if made.kind is HandlerKind.FRAME:
        raise HandlerError(f"handler {made.name} takes Spark's frames: a test of it needs Spark")
    appended = [_message(number, record) for number, record in enumerate(records)]
    order = DeliveryOrder.KEY if ordered else DeliveryOrder.NONE
    config = GroupConfig.parse(
        {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": limit, "delivery.order": order}
        | dict(options or {})
    )
    log = CallLog(crash_at={crash_at} if isinstance(crash_at, int) else {*crash_at})
    with tempfile.TemporaryDirectory(prefix="share_spark-test-") as directory:
        group = _Group(directory=Path(directory), handler=made, config=config, log=log)
        if not (made.waits and _has_running_loop()):
            return group.run(appended)
        with ThreadPoolExecutor(1) as thread:  # as in a notebook: a thread has one loop at a time
            return thread.submit(group.run, appended).result()


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _message(number: int, record: bytes | Mapping[str, Any]) -> Message:
    """Return a record as it is appended. Raises ConfigError."""
    if not isinstance(record, bytes | Mapping):
        raise ConfigError(f"record {number}: a record is bytes, or a dict, not {type(record).__name__}")
    given: Mapping[str, Any] = record if isinstance(record, Mapping) else {"value": record}
    if unknown := sorted(given.keys() - _FIELDS):
        raise ConfigError(f"record {number}: {unknown[0]!r} is no part of a record: {', '.join(sorted(_FIELDS))}")
    value = given.get("value")
    if value is not None and not isinstance(value, bytes):
        raise ConfigError(f"record {number}: a value is bytes, not {type(value).__name__}")
    return Message(value, given.get("key"), 0, given.get("timestamp") or datetime.now(UTC), given.get("headers"))


@dataclass(slots=True, kw_only=True)
class _Clock:
    """Time that passes only when nothing else is to do. ``now_ms``: since the epoch."""

    now_ms: int = field(default_factory=lambda: int(time.time() * 1_000))

    def __call__(self) -> int:
        return self.now_ms


@dataclass(slots=True, kw_only=True)
class _Group:
    """A share group on tables in ``directory``."""

    directory: Path
    handler: Handler
    config: GroupConfig
    log: CallLog
    clock: _Clock = field(default_factory=_Clock)

    def run(self, messages: Sequence[Message]) -> HandlerRun:
        """Append the messages, and run micro-batches until all are finished."""
        topics = EmbeddedTopicLog(None, self._place("topics"))
        topics.create_topic(TOPIC, 1)
        if messages:
            topics.append(TOPIC, messages)
        began_ms = self.clock.now_ms
        engine, output = self._engine(topics)
        engine.start()
        try:
            self._work_off(engine)
        finally:
            engine.close()
        letters = DeadLetters(self._place("letters")).letters()
        return HandlerRun(
            rows=output.rows,
            letters=sorted(letters, key=lambda letter: letter.offset),
            calls=self.log.calls,
            accepted=sorted({*range(len(messages))} - {letter.offset for letter in letters}),
            waited=timedelta(milliseconds=self.clock.now_ms - began_ms),
        )

    def _engine(self, topics: EmbeddedTopicLog) -> tuple[ShareGroupEngine, CollectedOutput]:
        log = GroupLog(spark=None, location=Location.parse(self._place("state")), group_id=GROUP, run_id="test")
        log.opened()
        kind = CallsDelivery if self.handler.waits else TaskDelivery
        is_ordered = self.config.delivery_order is DeliveryOrder.KEY
        delivery = kind(log=topics, handler=self.handler, ordered=is_ordered, calls_log=self.log)
        target = DeltaDeadLetters(self._place("letters"))
        target.check(None)
        sink = CollectedOutput(has_output=self.handler.output is not None, rows_of_delivery=lambda: delivery.rows)
        ports = Ports(
            topics=SubscribedTopics(group_id=GROUP, topics=(TOPIC,), log=topics, clock=self.clock),
            store=DeltaShareStateStore(log=log, updates_per_snapshot=self.config.updates_per_snapshot),
            delivery=delivery,
            dead_letters=AnnouncedDeadLetters(spark=None, log=topics, target=target),
            sink=sink,
            clock=self.clock,
            config=lambda: self.config,
        )
        return ShareGroupEngine(ports=ports, available_now=True), sink

    def _work_off(self, engine: ShareGroupEngine) -> None:
        until_ms = self.clock.now_ms + int(_MOST.total_seconds() * 1_000)
        batch_id = 0
        while not engine.done:
            progress = engine.run(batch_id)
            batch_id += 1
            if progress.idle:
                self.clock.now_ms = max(self.clock.now_ms + 1, self._next_ms(engine))
            if self.clock.now_ms > until_ms:
                raise ConfigError(f"after {_MOST.days} days there are still records that are not finished")

    def _next_ms(self, engine: ShareGroupEngine) -> int:
        """Return when something may happen."""
        summaries = engine.look().summaries.values()
        times = [until for one in summaries for until, _ in one.delayed[:1]]
        times += [one.next_deadline_ms for one in summaries if one.next_deadline_ms is not None]
        return min(times, default=self.clock.now_ms + _LOOK_MS)

    def _place(self, name: str) -> str:
        return str(self.directory / name)
