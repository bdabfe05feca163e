"""The engine of one group in a plain loop: micro-batches follow one another without Spark.

It is the same engine as in a Spark query, on the same tables: claims, epochs and fencing are between all of them. An
engine that ends by a fault is followed by a new one after a pause, since clients stay and ask again; one that was
replaced is not, as somebody else has the group now.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from share_spark.delivery.no_handler import NoHandler
from share_spark.delta.location import Location
from share_spark.engine.client_asks import Clients
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.ports import DeadLetterSink, TopicLog
from share_spark.engine.topics import SubscribedTopics
from share_spark.engine.world import Ports
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.former_topics import forget_former_topics, subscribe_existing
from share_spark.maintenance.background import BackgroundMaintenance, log_retention_ms
from share_spark.maintenance.heartbeat import EndKind, EngineEnd, dynamic_config_file, pause_file, wall_clock_ms
from share_spark.maintenance.operator_files import DynamicConfigReader, PauseReader
from share_spark.model.config import GroupConfig
from share_spark.model.errors import FencedError, ShareError, TopicError
from share_spark.output.dead_letter_sinks import AnnouncedDeadLetters, BackgroundDeadLetters, NoDeadLetters
from share_spark.output.dead_letter_table import DeltaDeadLetters
from share_spark.output.sink import FormerSinks
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_IDLE_WAIT_S = 0.1
"""The time after which an idle loop looks at the logs of its topics, if a client waits for new records."""

_UNWATCHED_WAIT_S = 1.0
"""The same if none does: a gateway may have a thousand groups whose clients have gone."""

_LOG_ENDS_AGE_MS = 80
"""The age that log ends of a cluster may have: a busy loop would spend half its time on asking for them. It is below
the wait of an idle loop, which so asks each time."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
"""The pause after an engine that ended by a fault; it doubles each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """The place of groups: where their state is, the log of their topics, and the settings that they begin with.
    ``topics``: the directory of the topics' table; ``kafka``: the cluster of the topics, if they are not in a table.
    ``dead_letters``: the table of records that are archived without success; None: they are only archived."""

    state: Location
    log: TopicLog
    topics: str | None = None
    kafka: str | None = None
    config: GroupConfig
    dead_letters: DeltaDeadLetters | None = None

    def opened(self, group_id: str, clients: Clients) -> OpenedGroup:
        """Return an engine without handlers, and its maintenance. Makes the tables if they are missing. Raises
        StateError."""
        config, where = self.config, (None, self.state, group_id)
        log = GroupLog(
            spark=None, location=self.state, group_id=group_id, run_id=uuid.uuid4().hex[:12], notes_rows=True
        )
        log.opened()
        store = DeltaShareStateStore(
            log=log, updates_per_snapshot=config.updates_per_snapshot, audit=config.history_retention_ms > 0
        )
        topics = SubscribedTopics(
            group_id=group_id,
            topics=(),
            log=self.log,
            clock=wall_clock_ms,
            most_age_ms=0 if self.kafka is None else _LOG_ENDS_AGE_MS,
        )
        ports = Ports(
            topics=topics,
            store=store,
            delivery=NoHandler(spark=None),
            dead_letters=self._letters(),
            sink=FormerSinks(spark=None),
            clock=wall_clock_ms,
            config=DynamicConfigReader(dynamic_config_file(*where), config),
            pauses=PauseReader(pause_file(*where)),
            clients=clients,
        )
        maintenance = BackgroundMaintenance(
            spark=None,
            location=self.state,
            store=store,
            refresh_ms=config.state_refresh_ms,
            retention_ms=config.history_retention_ms,
            log_retention_ms=log_retention_ms(config, has_clients=True),
            kafka=self.kafka,
            table=self.topics,
            settings=config.not_default(),
        )
        return OpenedGroup(ShareGroupEngine(ports=ports), store, maintenance)

    def _letters(self) -> DeadLetterSink:
        if self.dead_letters is None:
            return NoDeadLetters(spark=None)
        self.dead_letters.check(None)
        return BackgroundDeadLetters(sink=AnnouncedDeadLetters(spark=None, log=self.log, target=self.dead_letters))


class OpenedGroup(NamedTuple):
    """An engine that has not started, with its state and its maintenance."""

    engine: ShareGroupEngine
    store: DeltaShareStateStore
    maintenance: BackgroundMaintenance


@dataclass(slots=True, kw_only=True)
class GroupHost:
    """The loop of one group, in a thread of its own. It begins with the first client. ``may_begin``: whether the group
    is still one of this gateway's."""

    group_id: str
    place: GroupPlace
    clients: ClientQueue
    may_begin: Callable[[], bool] = lambda: True
    _wanted: set[str] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)
    _fault: ShareError | None = None
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changes: threading.Lock = field(default_factory=threading.Lock)
    _is_changing: bool = False
    _has_ended: bool = False

    def subscribe(self, topics: Iterable[str]) -> Collection[str]:
        """Let the next micro-batch begin the share-partitions of these topics, which exist. Return those that the group
        reads, here all of them. What clients ask before the engine has claimed the group is refused. From any
        thread."""
        with self._lock:
            new = set(topics) - self._wanted
            self._wanted = self._wanted | new  # another set: the loop may be reading the old one
            self._start()
        if new:
            self.clients.stop_waiting()
        return self._wanted

    def without_engine(self, change: Callable[[], _Result]) -> _Result:
        """End the engine, and make a change to the state of the group. The next engine begins with the next client; it
        reads the topics that clients name from now on. Waits: not for the event loop. Raises what ``change`` raises."""
        with self._changes:
            self._end_engine()
            try:
                return change()
            finally:
                self._allow_engine()

    @property
    def is_idle(self) -> bool:
        """Return whether no engine was begun, or asked for, since the beginning or the last change."""
        return self._thread is None and not self._wanted

    @property
    def is_running(self) -> bool:
        """Return whether an engine runs, or follows one that has ended by a fault."""
        return (thread := self._thread) is not None and thread.is_alive()

    @property
    def was_replaced(self) -> bool:
        """Return whether another engine has the group now."""
        return isinstance(self._fault, FencedError)

    def end(self) -> None:
        """Let the loop end after the present micro-batch, and begin no other. From any thread."""
        self._has_ended = True
        self._over.set()
        self.clients.stop_waiting()

    def join(self) -> None:
        """Wait until the loop has ended."""
        if (thread := self._thread) is not None:
            thread.join()

    # ---------------------------------------------------------------------------------------------- the loop

    def _start(self) -> None:
        """Begin, unless the loop runs already or must not."""
        if self._thread is None and not self._is_changing and not self._has_ended and self.may_begin():
            self._fault = None
            self._thread = threading.Thread(target=self._run, name=f"share-spark-group-{self.group_id}", daemon=True)
            self._thread.start()

    def _end_engine(self) -> None:
        with self._lock:
            self._is_changing = True
            self._wanted = set()
        self._over.set()
        self.clients.stop_waiting()
        self.join()
        self._thread = None

    def _allow_engine(self) -> None:
        """Let an engine begin; clients that have come during the change have one at once."""
        with self._lock:
            self._is_changing = False
            if not self._has_ended:
                self._over.clear()
            if self._wanted:
                self._start()

    def _run(self) -> None:
        """Run one engine after another until the loop is to end, or somebody else has the group."""
        pause_s = _FIRST_PAUSE_S
        while not self._over.is_set() and not self.was_replaced:
            began_s = time.monotonic()
            self._fault = self._fault_of_engine()
            if self._fault is None:
                return
            _log.warning("the engine of group %s has ended: %s", self.group_id, self._fault)
            pause_s = _FIRST_PAUSE_S if time.monotonic() - began_s > _LONGEST_PAUSE_S else pause_s
            self._over.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _fault_of_engine(self) -> ShareError | None:
        """Run one engine until it ends; return its fault, None if it was stopped."""
        fault: ShareError | None = None
        try:
            if isinstance(self._fault, TopicError) and not self._fault.retriable:
                forget_former_topics(self.place.state, self.group_id, self.place.log)
            self._run_engine(self.place.opened(self.group_id, self.clients))
        except ShareError as found:
            fault = found
        except Exception as found:  # noqa: BLE001 - whatever it is, clients ask again, and an engine follows
            _log.debug("the engine of group %s", self.group_id, exc_info=True)
            fault = ShareError(f"{type(found).__name__}: {found}")
        finally:
            self.clients.refuse(fault)
        return fault

    def _run_engine(self, opened: OpenedGroup) -> None:
        engine, maintenance = opened.engine, opened.maintenance
        known = {topic for topic, _ in opened.store.known_topics()}
        self._subscribe(engine.ports.topics, known | self._wanted)
        maintenance.start(engine.start())
        end = EngineEnd(EndKind.STOPPED, 0)
        try:
            self.clients.open(opened.store.group)
            self._run_micro_batches(opened)
        except Exception as fault:
            end = EngineEnd(EndKind.FAILED, 0, f"{type(fault).__name__}: {fault}")
            raise
        finally:
            maintenance.close(end._replace(at_ms=wall_clock_ms()))
            engine.close()

    def _subscribe(self, topics: SubscribedTopics, names: Iterable[str]) -> bool:
        """Let the engine read these topics, and return whether some are new. Those that are not there are left out, as
        in Kafka, until a client names them again. Raises TopicUnreachableError."""
        new = sorted(set(names).difference(topics.topics))
        missing = subscribe_existing(topics, new)
        if missing:
            _log.info("group %s goes on without topics that are not there: %s", self.group_id, ", ".join(missing))
            with self._lock:
                self._wanted = self._wanted.difference(missing)
        return len(missing) < len(new)

    def _run_micro_batches(self, opened: OpenedGroup) -> None:
        engine, batch_id = opened.engine, 0
        topics = engine.ports.topics
        while not self._over.is_set():
            if self._subscribe(topics, self._wanted) and (live := opened.store.live) is not None:
                topics.check_identity(live.topics())
            progress = engine.run(batch_id)
            batch_id += 1
            if not progress.idle:
                opened.maintenance.note(progress.touched, opened.store.segment)
            self.clients.wait(_IDLE_WAIT_S if self.clients.is_watched else _UNWATCHED_WAIT_S)
