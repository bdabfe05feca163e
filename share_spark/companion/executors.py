"""Companions on the executors of a cluster, one beside each, as the driver has them started by Spark.

    driver                                                   on each executor
      a Spark job, now and then              ->                a task: is a companion here?
                                             <-                if not, it connects to the driver, says Hello,
                                                               and hands the connection to a new process
      Begin, over that connection            ->                the companion

A job has as many tasks as there are cores, which Spark spreads over the executors. Those that it misses, as they were
busy or came later, are found by another job. A companion ends with its executor. Dynamic allocation removes executors
that run no task: a block of data that each task leaves keeps them while there are calls.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import StorageLevel

from share_spark.companion.arrivals import Arrival, Arrivals
from share_spark.companion.companions import Companions
from share_spark.companion.executor_task import CompanionTask
from share_spark.companion.link import Ending, Link
from share_spark.companion.lost_calls import is_still_written
from share_spark.companion.starts import CompanionStarts
from share_spark.handlers.handler import Handler
from share_spark.spark.errors import first_line

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
"""The time after which executors without a companion are looked for again."""

_KEEP_AGAIN_S = 3.0
"""The same where executors were kept, and are no longer."""

_WAIT_S = 1.0
"""The time between two looks whether one has arrived, while a job runs."""

_MOST_LOOK_S = 60.0
"""The time that a job has before a companion beside the driver has to do."""

GONE_S = 60.0
"""The time after which a companion that was cut off has ended: it notices that as the driver does, and ends its calls.
"""

_ENCRYPTED = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")
"""Settings after which nothing of a job may cross the network in clear."""


def has_executors(spark: SparkSession) -> bool:
    """Return whether there are executors that companions can be beside."""
    master = str(spark.sparkContext.master)
    if master == "local" or master.startswith("local["):
        return False
    conf = spark.sparkContext.getConf()
    return not any(conf.get(name, "false") == "true" for name in _ENCRYPTED)


def starts_for(
    spark: SparkSession, handler: Handler, directory: Path, companions: Companions, *, ordered: bool
) -> CompanionStarts:
    """Return the start of companions where ``spark`` runs."""
    beside = CompanionStarts(spark=spark, handler=handler, ordered=ordered, directory=directory, companions=companions)
    if ordered or not has_executors(spark):
        return beside
    conf = spark.sparkContext.getConf()
    host = str(conf.get("spark.driver.host")).strip("[]")
    try:
        arrivals = Arrivals(host, str(conf.get("spark.driver.bindAddress", host)).strip("[]"), companions.heard)
    except OSError as fault:
        _log.warning("no companions on executors, which cannot reach the driver: %s", fault)
        return beside
    return ExecutorStarts(
        spark=spark, handler=handler, ordered=False, directory=directory, companions=companions, arrivals=arrivals
    )


@dataclass(slots=True, kw_only=True)
class ExecutorStarts(CompanionStarts):
    """The start of companions on executors, or of one beside the driver while no executor can have one.

    ``_is_looking``: a job runs, and the last one began at ``_began``. ``_kept``: the blocks that keep executors.
    """

    arrivals: Arrivals
    _is_looking: bool = field(default=False, init=False)
    _began: float = field(default=float("-inf"), init=False)
    _kept: RDD[str] | None = field(default=None, init=False)
    _has_calls: bool = field(default=False, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def see_to_it(self) -> None:
        """See to it that a companion takes records, unless waiting is stopped, and that those that are missing will.
        Raises HandlerError (the handler cannot be sent)."""
        self._has_calls = True
        if not self._is_looking and (self._is_due() or not self.companions.taking):
            self._is_looking, self._began = True, time.monotonic()
            threading.Thread(target=self._look, name="share-spark-companions-job", daemon=True).start()
        self._welcome()
        while not self.companions.taking and self._may_come():
            with self.companions.heard:
                self.companions.heard.wait_for(lambda: not self._may_come(), _WAIT_S)
            self._welcome()
        if not self.companions.taking and not self._is_stopped:
            _log.warning("handler %s: no executor has a companion, so one runs beside the driver", self.handler.name)
            self._begin_beside_driver()

    def note_lost(self) -> None:
        """Note that a companion has ended: another one is looked for at the next hand-over."""
        self._began = float("-inf")

    def note_idle(self) -> None:
        """Note that no calls are in flight: Spark may remove executors."""
        self._has_calls = False
        if self._kept is not None:
            self._keep(None)

    def stop_waiting(self) -> None:
        """Wait for no companion any more. From any thread."""
        with self.companions.heard:
            self._is_stopped = True
            self.companions.heard.notify_all()

    def close(self) -> None:
        """Start no more."""
        self.stop_waiting()
        self.arrivals.close()
        if self._is_looking:
            self.spark.sparkContext.cancelJobGroup(self.directory.name)
        self.note_idle()

    def _welcome(self) -> None:
        """Let those begin that have arrived."""
        for arrival in self.arrivals.take():
            ledger = self._next_ledger(arrival.hello.ledgers)
            is_read = arrival.hello.ledgers == str(self.directory)
            self._begin(ExecutorCompanion(arrival, ledger if is_read else None, self.companions.heard), ledger)

    def _may_come(self) -> bool:
        in_time = time.monotonic() < self._began + _MOST_LOOK_S
        return self._is_looking and in_time and not self._is_stopped

    def _is_due(self) -> bool:
        is_released = self._keeps and self._kept is None
        return time.monotonic() >= self._began + (_KEEP_AGAIN_S if is_released else LOOK_EVERY_S)

    @property
    def _keeps(self) -> bool:
        return self.spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"

    def _look(self) -> None:
        """Run a job that finds executors without a companion."""
        try:
            self._run_tasks()
        except Exception as fault:  # noqa: BLE001 - whatever Spark makes of a job that fails, or was cancelled
            level = logging.DEBUG if self._is_stopped else logging.WARNING
            _log.log(level, "executors without a companion cannot be found: %s", first_line(fault))
        finally:
            with self.companions.heard:
                self._is_looking = False
                self.companions.heard.notify_all()

    def _run_tasks(self) -> None:
        context = self.spark.sparkContext
        context.setJobGroup(self.directory.name, f"companions for handler {self.handler.name}")
        task = CompanionTask(
            name=self.directory.name,
            address=self.arrivals.address,
            secret=self.arrivals.secret,
            directory=str(self.directory),
        )
        tasks = context.defaultParallelism
        found = context.parallelize(range(tasks), tasks).mapPartitions(task)
        if self._keeps:
            found.persist(StorageLevel.MEMORY_ONLY)
        for fault in sorted(set(found.collect())):
            _log.warning("no companion on %s", fault)
        if self._keeps:
            self._keep(found)

    def _keep(self, found: RDD[str] | None) -> None:
        """Keep the executors that have blocks of ``found``, and no others; none if there are no calls any more."""
        with self.companions.heard:
            former, self._kept = self._kept, found if self._has_calls else None
            unused = [one for one in (former, found) if one is not None and one is not self._kept]
        for one in unused:
            one.unpersist()


class ExecutorCompanion(Link):
    """A companion on an executor. ``ledger``: its first one; None: it cannot be read from here."""

    def __init__(self, arrival: Arrival, ledger: Path | None, heard: threading.Condition) -> None:
        self._where, self._ledger = arrival.hello.where, ledger
        self._ended: float | None = None
        super().__init__(arrival.connection, heard)

    def ending(self) -> Ending | None:
        """Return how it has ended. While its ledger is locked, or nothing on its machine has said that it has ended,
        its calls may go on."""
        self._close()
        self._ended = self._ended or time.monotonic()
        is_over = time.monotonic() >= self._ended + GONE_S
        how = f"on {self._where}" + ("" if self._fault is None else f": {self._fault.strerror}")
        if self._ledger is not None and not is_still_written(self._ledger):
            return Ending(how)
        was_cut_off = self._fault is not None and not isinstance(self._fault, ConnectionResetError)
        if is_over or (self._ledger is None and not was_cut_off):
            return Ending(how, has_left_ledger=False)
        return None
