"""Background maintenance of a running engine, in one thread: the status table, pruning of closed segments, compaction.

All of it only reads what is committed and writes what the engine never reads, so it may fail, be late or be left out
without harm: a fault is logged and the next round tries again. The status table is filled from the live state; no
log is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from share_spark.delta.app_transactions import NONE, AppTransactions
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.log_clean_up import remove_old_versions
from share_spark.delta.table_maintenance import KeptTable
from share_spark.engine.outage import Outage
from share_spark.engine.ports import Claim
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.maintenance.heartbeat import (
    Beat,
    EndKind,
    EngineEnd,
    Heartbeat,
    heartbeat_file,
    wall_clock_ms,
)
from share_spark.maintenance.retention import drop_segments, oldest_kept_segment
from share_spark.model.config import GroupConfig
from share_spark.model.errors import StateError
from share_spark.model.ids import BatchStamp, SharePartitionKey
from share_spark.spark.on_demand import AnySpark, session_of
from share_spark.state.live_state import LiveState
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.state.state_view import replace_status, state_bucket, state_of_live, status_app_id
from share_spark.state.tables import log_table, state_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

LOG_RETENTION_MS = 30 * 86_400_000
"""The time for which old versions of the state's tables are kept: Delta's default."""

_LISTENING_LOG_RETENTION_MS = 600_000
"""The same where clients may come: each of their requests may be a commit."""

_CLEAN_INTERVAL_S = 60.0

_FILE_INTERVAL_S = 1.0
"""The age up to which rows stand in the notes of commits alone."""


def log_retention_ms(config: GroupConfig, *, has_clients: bool) -> int:
    """Return the time for which old versions of the state's tables are kept, by the settings of a group."""
    return config.log_retention_ms or (_LISTENING_LOG_RETENTION_MS if has_clients else LOG_RETENTION_MS)


@dataclass(slots=True, kw_only=True)
class BackgroundMaintenance:
    """The maintenance of one engine. It refreshes ``share_partition_state`` at most every ``refresh_ms``, prunes
    segments closed for ``retention_ms``, removes versions of the tables that are older than ``log_retention_ms``, and
    compacts every ``compaction_interval_ms`` (0: never). Its heartbeat has the topics' place (``kafka``: broker
    addresses, or ``table``), the dead ``letters`` table, the ``settings`` at the start, whether the circuit breaker is
    open and the present calls (both asked each time), and at last the engine's end. ``spark``: used only where files do
    not suffice."""

    spark: AnySpark
    location: Location
    store: DeltaShareStateStore
    refresh_ms: int
    retention_ms: int
    compaction_interval_ms: int = 0
    log_retention_ms: int = LOG_RETENTION_MS
    kafka: str | None = None
    table: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    letters: str | None = None
    is_breaker_open: Callable[[], bool] = lambda: False
    calls_text: Callable[[], str] = str
    _claim: Claim | None = None
    _changed: set[int] | None = None
    _segment: int = -1
    _pruned: int = -1
    _filed_version: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _beat: Beat | None = None
    _heartbeat: Heartbeat | None = None
    _unreachable_since_ms: int | None = None
    _compact_at_s: float = 0.0
    _transactions: AppTransactions | None = None
    _commits: DirectAppends | None = None
    _log: KeptTable | None = None
    _status: KeptTable | None = None
    _clean_at_s: float = 0.0

    def start(self, claim: Claim) -> None:
        """Start the thread; the first round rewrites every share-partition of the group."""
        self._claim = claim
        with self._lock:
            self._changed = None
        said = {"kafka": self.kafka, "table": self.table, "letters": self.letters, "settings": self.settings}
        beat = self._beat = Beat.of_this_process(claim, **said)
        file = heartbeat_file(self.spark, self.location, claim.group_id)
        self._heartbeat = Heartbeat(file=file, say=lambda: self._said(beat))
        self._heartbeat.start()
        self._compact_at_s = time.monotonic() + self.compaction_interval_ms / 1_000
        self._thread = threading.Thread(target=self._run, name=f"share-spark-maintenance-{claim.group_id}", daemon=True)
        self._thread.start()

    def note(self, keys: Iterable[SharePartitionKey], segment: int) -> None:
        """Note that these share-partitions have changed; ``segment`` is the one being written now."""
        buckets = {state_bucket(key) for key in keys}
        with self._lock:
            self._segment = segment
            if self._changed is not None:
                self._changed |= buckets

    def note_outage(self, outage: Outage | None) -> None:
        """Write at once that the engine has this outage, None: no longer one."""
        since_ms = None if outage is None else outage.since_ms
        if self._heartbeat is not None and since_ms != self._unreachable_since_ms:
            self._unreachable_since_ms = since_ms
            self._heartbeat.write()

    def finish_rounds(self) -> None:
        """Write a last round, and end the thread. The heartbeat goes on. Safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            # After the thread has ended, so that the status table shows the last micro-batch of the run.
            self._round(self._file_notes, self._refresh, self._prune)

    def close(self, end: EngineEnd | None = None) -> None:
        """End all of it, and write how the engine has ended; None: it was stopped, now."""
        self.finish_rounds()
        if self._heartbeat is not None and self._beat is not None:
            # Last: while the round writes, other programs must see that the group still has an engine.
            said = self._beat.ended_by(end or EngineEnd(EndKind.STOPPED, wall_clock_ms()))
            self._heartbeat.close(said.to_text())

    def _said(self, beat: Beat) -> str:
        before_ms = self._beat.breaker_open_ms if self._beat is not None else 0
        since_ms = (before_ms or wall_clock_ms()) if self.is_breaker_open() else 0
        self._beat = beat._replace(
            breaker_open_ms=since_ms,
            unreachable_since_ms=self._unreachable_since_ms,
            calls=self.calls_text(),
        )
        return self._beat.to_text()

    def _run(self) -> None:
        refresh_s = self.refresh_ms / 1_000
        interval_s = min(refresh_s, _FILE_INTERVAL_S) if self.store.log.notes_rows else refresh_s
        refresh_at_s = time.monotonic() + refresh_s
        while not self._stop.wait(interval_s):
            self._round(self._file_notes)
            if time.monotonic() >= refresh_at_s:
                self._round(self._refresh, self._prune, self._clean, self._compact)
                refresh_at_s = time.monotonic() + refresh_s

    def _round(self, *works: Callable[[], object]) -> None:
        for work in works:
            try:
                work()
            except Exception:  # noqa: BLE001 - late is allowed, stopping the engine is not
                _log.warning(
                    "%s of group %s failed; it will be tried again",
                    work.__name__,
                    self._claimed.group_id,
                    exc_info=True,
                )

    def _file_notes(self) -> None:
        """Write the rows in the notes of commits into files, if the engine has made commits since the last time."""
        version = self.store.log.version
        if version != self._filed_version:
            self._kept_log().file_noted_rows()
            self._filed_version = version

    def _refresh(self) -> None:
        with self._lock:
            buckets, self._changed = self._changed, set()
        if buckets is not None and not buckets:
            return
        try:
            self._rewrite(buckets)
        except BaseException:
            # It is not known which rows were written: the next round rewrites all of them.
            with self._lock:
                self._changed = None
            raise

    def _rewrite(self, buckets: set[int] | None) -> None:
        live = self.store.live
        if live is not None and not self._replaced_directly(live, buckets):
            session = session_of(self.spark, f"{state_table(self.location)} can be written by Spark only")
            self._write_rows(state_of_live(session, live, buckets), live)

    def _replaced_directly(self, live: LiveState, buckets: set[int] | None) -> bool:
        """Write the status table without Spark, unless a successor has written; return whether that was possible."""
        try:
            commits = self._commits = self._commits or DirectAppends.to(
                self.spark, state_table(self.location).directory(self.spark), replaces=True
            )
            commits.log.refresh()
            replace_status(commits, live, self._claimed.group_id, self._app_id, buckets)
        except NotImplementedError as reason:
            _log.debug("the status table is written by Spark: %s", reason)
            return False
        return True

    def _write_rows(self, rows: DataFrame, live: LiveState) -> None:
        table = state_table(self.location)
        # Delta takes most of a second to find out what a dynamic overwrite replaces; not needed for an empty table.
        if self._written() == NONE:
            table.append(rows, self._numbered(live))
        else:
            overwrite(table, rows, self._numbered(live))

    @property
    def _claimed(self) -> Claim:
        assert self._claim is not None, "a round before start"
        return self._claim

    @property
    def _app_id(self) -> str:
        return status_app_id(self._claimed.group_id, self._claimed.log_id)

    def _numbered(self, live: LiveState) -> dict[str, str]:
        """Return Delta's options by which an append of a fenced engine is skipped: its number is lower."""
        return {"txnAppId": self._app_id, "txnVersion": str(BatchStamp(live.writer_epoch, live.batch_id).number)}

    def _written(self) -> int:
        """Return the number of the group's last rows in the table, NONE if it has never had any."""
        if self._transactions is None:
            self._transactions = AppTransactions(self.spark, state_table(self.location).directory(self.spark))
        return self._transactions.latest(self._app_id)

    def _prune(self) -> None:
        """Drop whole closed segments by partition predicate: metadata only, so it never conflicts with an append."""
        current = self._segment
        if current <= self._pruned:
            return
        self._file_notes()  # a segment that is dropped gets no file any more
        log = self._kept_log()
        group_id, now_ms = self._claimed.group_id, wall_clock_ms()
        oldest_kept = oldest_kept_segment(log, group_id, current, retention_ms=self.retention_ms, now_ms=now_ms)
        is_done = oldest_kept <= 0 or drop_segments(log, group_id, oldest_kept)
        # Otherwise some closed segments are still within the retention: they are looked at again in the next round.
        if is_done and oldest_kept == current:
            self._pruned = current

    def _kept_log(self) -> KeptTable:
        self._log = self._log or KeptTable(self.spark, log_table(self.location))
        return self._log

    def _clean(self) -> None:
        """Remove old versions of both tables: a busy log has a hundred a second."""
        if time.monotonic() < self._clean_at_s:
            return
        self._clean_at_s = time.monotonic() + _CLEAN_INTERVAL_S
        self._status = self._status or KeptTable(self.spark, state_table(self.location))
        self._kept_log().file_noted_rows()  # those of other groups too, whose engine may be dead
        before_ms = wall_clock_ms() - self.log_retention_ms
        for table in (self._kept_log(), self._status):
            if (log := table.log()) is not None and (removed := remove_old_versions(log, before_ms)):
                _log.info("%s: %s old versions removed", table.place, removed)

    def _compact(self) -> None:
        """Compact as the scheduled job does, for this group, whose snapshots and pruning are done already."""
        if not self.compaction_interval_ms or time.monotonic() < self._compact_at_s:
            return
        self._compact_at_s = time.monotonic() + self.compaction_interval_ms / 1_000
        try:
            compact(self.spark, CompactionOrder(state=self.location, group_id=self._claimed.group_id))
        except StateError as fault:
            _log.info("%s; the next one is due in %s ms", fault, self.compaction_interval_ms)


def overwrite(table: Location, rows: DataFrame, options: Mapping[str, str]) -> None:
    """Replace exactly the partitions that ``rows`` has; ``options`` are Delta's."""
    writer = rows.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer = writer.options(**dict(options))
    if table.path is not None:
        writer.save(table.path)
    else:
        writer.saveAsTable(table.sql_name())
