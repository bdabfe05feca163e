"""The running query: Spark's micro-batch loop around the engine, and how it stops.

The source only ticks: Spark keeps its checkpoint, paces the ticks by the trigger, shows them in its UI. The engine
reads all inputs itself. ``rate-micro-batch`` serves as the tick because it runs in the JVM: a Python source would be
one more process to start, to signal and to lose. A tick writes two files of Spark's checkpoint, on which nothing here
depends, and takes as long as the engine does for a few records. So without an interval, a tick runs as many
micro-batches of the engine as fit into TICK_S.

Stopping never cuts a micro-batch in two. ``stop`` waits for the running one, commits its acknowledgements in a
closing one that acquires nothing, and only then, between micro-batches, stops Spark's query. A fault does the same,
except when fenced: an engine that has been replaced writes nothing more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from share_spark.api.checkpoint import Checkpoint
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.progress import MicroBatchProgress
from share_spark.maintenance.background import BackgroundMaintenance
from share_spark.maintenance.heartbeat import EndKind, EngineEnd, wall_clock_ms
from share_spark.model.errors import EnvironmentFault, FencedError, ShareError
from share_spark.model.html_table import html_table
from share_spark.spark.errors import JVM_ERRORS, first_line, is_checkpoint_shared
from share_spark.state.state_store import DeltaShareStateStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from share_spark.gateway.listening_group import ListeningGroup
    from share_spark.metrics.endpoint import MetricsServer

_log = logging.getLogger(__name__)

TICK_S = 1.0
_IDLE_WAIT_S = 0.1
_LETTERS_WAIT_S = 0.02

_CALLS_WAIT_S = 0.03
"""The least pause while calls are in flight. Without it each answer would have a commit of its own."""

LISTENING_TICK_S = 30.0
"""The same as TICK_S where clients are waiting: between two ticks nobody is answered."""

_PROGRESS_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The start of micro-batches; ``processing_time`` None: as soon as the one before has ended."""

    processing_time: str | None = None
    available_now: bool = False


_SHOWN = ("redelivered", "accepted", "released", "archived")
_MOST_SHOWN = 10
"""The counts, and the number of micro-batches, that a query shows in a notebook."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ShareGroupQuery:
    """A running share group, made by ``ShareGroup.start``. The methods are those of Spark's ``StreamingQuery``.

    ``name``: the argument of ``ShareGroup.queryName``, or None. ``without_secrets``: removes the secrets of this run
    from a text.
    """

    spark: SparkSession
    engine: ShareGroupEngine
    store: DeltaShareStateStore
    maintenance: BackgroundMaintenance
    trigger: Trigger
    name: str | None
    checkpoint: Checkpoint
    listeners: tuple[Callable[[MicroBatchProgress], None], ...] = ()
    metrics: MetricsServer | None = None
    door: ListeningGroup | None = None
    without_secrets: Callable[[str], str] = str
    _writer: DataStreamWriter | None = None
    _query: StreamingQuery | None = None
    _batch_id: int = -1
    _closed: bool = False
    _fault: BaseException | None = None
    _progress: deque[MicroBatchProgress] = field(default_factory=lambda: deque(maxlen=_PROGRESS_KEPT))
    _turn: threading.RLock = field(default_factory=threading.RLock)
    _over: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _begun: int = 0
    _caught_up: int = 0
    _lag: int = 0
    _in_micro_batch: bool = False

    def __repr__(self) -> str:
        state = "active" if self.isActive else "ended"
        return f"ShareGroupQuery(group={self.store.log.group_id!r}, name={self.name!r}, {state})"

    def _repr_html_(self) -> str:
        """Return the status and the last micro-batches as HTML, for notebooks."""
        title = f"Share group {self.store.log.group_id}: {self.status['message']}"
        names = ("micro-batch", "acquired", *_SHOWN, "lag", "seconds")
        rows = [
            (one.batch_id, one.acquired, *(getattr(one, name) for name in _SHOWN), one.lag, sum(one.steps.values()))
            for one in self.recentProgress[-_MOST_SHOWN:]
        ]
        return html_table(title, names, rows)

    def start(self, handler_name: str) -> None:
        """Claim the group, load its state, start Spark's loop. Raises what ``ShareGroupEngine.start`` raises."""
        claim = self.engine.start()
        self.checkpoint.sign(claim.group_id, handler_name, claim.writer_epoch, has_state=self.engine.has_state)
        self.maintenance.start(claim)
        ticks = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = ticks.writeStream.foreachBatch(self._tick)
        writer = writer.option("checkpointLocation", self.checkpoint.directory)
        writer = writer.trigger(processingTime=self.trigger.processing_time or "0 seconds")
        self._writer = writer.queryName(self.name) if self.name else writer
        self.store.log.refuse_if_fenced()
        if self.door is not None:
            self.door.clients.open(self.store.group)
        self._query = self._start_loop()
        threading.Thread(target=self._watch, name="share-spark-watch", daemon=True).start()

    @property
    def id(self) -> str:
        """Spark's id of the query, valid as long as its checkpoint."""
        return str(self._query.id) if self._query else ""

    @property
    def runId(self) -> str:  # noqa: N802
        """Spark's id of this start of the query."""
        return str(self._query.runId) if self._query else ""

    @property
    def listensOn(self) -> str | None:  # noqa: N802
        """The address on which clients of Kafka's protocol are served, None if they are not."""
        return None if self.door is None else str(self.door.gateway.address)

    @property
    def status(self) -> dict[str, Any]:
        """The state of the query. ``message``; ``isDataAvailable``: some offsets were not finished at the end of the
        last micro-batch; ``isTriggerActive``: a micro-batch is running."""
        active = self._in_micro_batch
        running = f"Running micro-batch {self._batch_id}" if active else "Waiting for the next micro-batch"
        message = running if self.isActive else "Stopped" if self._fault is None else f"Failed: {self._fault}"
        return {"message": message, "isDataAvailable": self._lag > 0, "isTriggerActive": active}

    @property
    def sparkQuery(self) -> StreamingQuery | None:  # noqa: N802
        """Spark's own query, for listeners and its view of progress."""
        return self._query

    @property
    def isActive(self) -> bool:  # noqa: N802 - StreamingQuery's name
        """Whether the query is still running."""
        return not self._ended.is_set()

    @property
    def lastProgress(self) -> MicroBatchProgress | None:  # noqa: N802
        """The last micro-batch that did anything."""
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[MicroBatchProgress]:  # noqa: N802
        """The last hundred micro-batches that did anything."""
        return list(self._progress)

    def exception(self) -> BaseException | None:
        """Return the error that ended the query, None if it runs or ended well."""
        return self._fault

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait for the end, at most ``timeout`` seconds; return whether it has ended. Raises its error (ShareError)."""
        ended = self._ended.wait(timeout)
        if ended and self._fault is not None:
            raise self._fault
        return ended

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until every record that is in the topics now is finished (accepted or archived), or the query has ended.
        This includes retries, their delays and the locks of dead engines. It may wait long while records keep coming or
        something is paused. Raises what ended the query (ShareError)."""
        with self._news:
            begun = self._begun
            self._news.wait_for(lambda: self._caught_up > begun or self._ended.is_set())
        if self._ended.is_set() and self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Stop after the running micro-batch and give back what was not handled. Brokers that do not answer are not
        waited for. Safe to call twice."""
        self._over.set()
        self.engine.stop_waiting()
        self._ended.wait()

    def _tick(self, _ticks: DataFrame, batch_id: int) -> None:
        """Run micro-batches for one tick of Spark's foreachBatch; the frame of ticks is never read. The engine's own
        numbers are not below ``batch_id``."""
        self._batch_id = max(self._batch_id, batch_id - 1)
        tick_s = TICK_S if self.door is None else LISTENING_TICK_S
        until_s = time.monotonic() + (0 if self.trigger.processing_time else tick_s)
        while self._micro_batch() and time.monotonic() < until_s:
            pass

    def _micro_batch(self) -> bool:
        """Run one micro-batch; return whether another one may follow."""
        with self._turn:
            if self._closed or self._over.is_set():
                return False
            self._batch_id += 1
            self._begun += 1
            self._in_micro_batch = True
            try:
                progress = self.engine.run(self._batch_id)
            except BaseException as fault:
                self._fail(fault)
                raise
            finally:
                self._in_micro_batch = False
            self._note(progress)
            self.maintenance.note_outage(self.engine.outage)
            self._note_lag(progress.lag)
            if self.engine.done:
                self._over.set()
        if self.engine.has_calls and not self._over.wait(_CALLS_WAIT_S):
            self.engine.wait_for_answers(_IDLE_WAIT_S)
        elif progress.idle and self.door is not None:
            self.door.clients.wait(_IDLE_WAIT_S)
        elif progress.idle:
            self._over.wait(_LETTERS_WAIT_S if self.engine.waits_for_letters else _IDLE_WAIT_S)
        return not self._over.is_set()

    def _note(self, progress: MicroBatchProgress) -> None:
        if progress.idle:
            return
        self._progress.append(progress)
        self.maintenance.note(progress.touched, self.store.segment)
        for listener in self.listeners:
            listener(progress)

    def _note_lag(self, lag: int) -> None:
        with self._news:
            self._lag = lag
            if lag == 0:
                self._caught_up = self._begun
            self._news.notify_all()

    def _fail(self, fault: BaseException) -> None:
        self._fault = fault
        if isinstance(fault, FencedError):
            self._end_calls()
        else:
            self._close_engine()
        self._closed = True
        self._over.set()

    def _close_engine(self) -> None:
        try:
            if not self.engine.done:
                # Before the append, not after it: a successor may be the cause of the fault, by what it removed.
                self.store.log.refuse_if_fenced()
                self._note(self.engine.run(self._batch_id + 1, stopping=True))
            self.engine.close()
        except Exception as fault:  # noqa: BLE001 - the first fault is the one to report; locks end by themselves
            if self._fault is not None and isinstance(fault, FencedError):
                self._fault = fault  # its cause: the successor has taken what was in use
            _log.warning("what group %s held could not be given back; its locks will run out", self.store.log.group_id)
            self._end_calls()

    def _end_calls(self) -> None:
        """End the calls of handlers that wait: in a process of their own, they would go on."""
        try:
            self.engine.ports.delivery.close()
        except Exception:  # noqa: BLE001 - the query ends by another fault
            _log.debug("ending the calls", exc_info=True)

    def _watch(self) -> None:
        """End the query between micro-batches: when the work is done, on ``stop``, after a fault of Spark itself."""
        assert self._query is not None
        while not self._over.wait(1.0):
            if not self._is_running(self._query) and not self._goes_on(self._query):
                break
        with self._turn:
            if not self._closed:
                self._close_engine()
            self._closed = True
        with ThreadPoolExecutor(1, thread_name_prefix="share-spark-close") as beside:
            beside.submit(self.maintenance.finish_rounds)
            self._end_query(self._query)
        self.maintenance.close(self._end())
        if self.metrics is not None:
            self.metrics.close()
        if self.door is not None:
            self.door.close(self._fault)
        with self._news:
            self._ended.set()
            self._news.notify_all()

    def _end(self) -> EngineEnd:
        if self._fault is not None:
            name = "" if isinstance(self._fault, ShareError) else f"{type(self._fault).__name__}: "
            error = self.without_secrets(name + first_line(self._fault))
            return EngineEnd(EndKind.FAILED, wall_clock_ms(), error)
        return EngineEnd(EndKind.WORKED_OFF if self.engine.done else EndKind.STOPPED, wall_clock_ms())

    def _is_running(self, query: StreamingQuery) -> bool:
        try:
            return query.isActive
        except Exception as fault:  # noqa: BLE001 - whatever PySpark makes of a JVM that is gone
            self._fault = self._fault or EnvironmentFault(f"Spark's JVM does not answer any more: {fault}")
            return False

    def _start_loop(self) -> StreamingQuery:
        """Start Spark's query. If an engine that starts at the same moment has made the checkpoint, it is there now."""
        assert self._writer is not None
        try:
            return self._writer.start()
        except JVM_ERRORS as fault:
            if not is_checkpoint_shared(fault):
                raise
            return self._writer.start()

    def _goes_on(self, query: StreamingQuery) -> bool:
        """Start Spark's query again if it has ended because another engine of the group wrote to its checkpoint. Of
        the two the one that has claimed the group last goes on."""
        try:
            ended = query.exception()
            if ended is None or not is_checkpoint_shared(ended):
                return False
            self.store.log.refuse_if_fenced()
            self._query = self._start_loop()
        except FencedError as fault:
            self._fail(fault)
            return False
        except JVM_ERRORS:
            _log.debug("starting the query again", exc_info=True)
            return False
        _log.info("another engine wrote to the checkpoint of group %s; going on", self.store.log.group_id)
        return True

    def _end_query(self, query: StreamingQuery) -> None:
        """Stop Spark's query, which only starts micro-batches. If it fails after the engine was told to end, nothing is
        lost: on a local file system Spark starts `chmod` for each file, and a Ctrl-C reaches that process as well."""
        was_to_end = self._over.is_set()
        try:
            fault = query.exception()
            if fault is not None and self._fault is None:
                failed = EnvironmentFault(f"Spark's streaming query has failed: {first_line(fault)}")
                if was_to_end:
                    _log.warning("%s (after the end of the work)", failed)
                else:
                    failed.__cause__ = fault
                    self._fault = failed
            query.stop()
        except Exception:  # noqa: BLE001 - it is over either way
            _log.debug("stopping the query", exc_info=True)
