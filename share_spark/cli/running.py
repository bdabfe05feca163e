"""`share-spark run`: start a share group, follow it to its end, print what it did."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from share_spark.cli.command import RunError, command_session
from share_spark.cli.job import Job
from share_spark.cli.run_report import RunTotals, histogram_lines, progress_line, summary_lines
from share_spark.cli.signals import StopSignals
from share_spark.delta.location import Location
from share_spark.model.errors import ConfigError
from share_spark.spark.jvm_log import mute_query_faults
from share_spark.state.tables import log_table, state_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.api.query import ShareGroupQuery
    from share_spark.engine.progress import MicroBatchProgress

_log = logging.getLogger(__name__)

_POLL_S = 1.0


def run_job(job: Job) -> int:
    """`share-spark run`. Raises ShareError."""
    job.ask_broker()
    with StopSignals() as signals, command_session(job.query_name or f"share-spark {job.group}") as spark:
        signals.adopt(spark)
        if not _log.isEnabledFor(logging.INFO):
            mute_query_faults(spark)
        run(job, spark, signals)
    return 0


def run(job: Job, spark: SparkSession, signals: StopSignals) -> RunTotals:
    """Wire the share group, start it, follow it to its end, print the summary. Raises ShareError: nothing started."""
    require_start(job, spark)
    live = _LiveProgress()
    group = job.share_group(spark).listen(live.note)
    if signals.requested:
        return live.totals
    query = group.start()
    live.begin()
    _say(f"group {job.group}, topics {', '.join(job.topics)} of {job.source}, handler {job.handler.name}")
    _say(f"start: {start_text(job, query)}; state in {job.state}")
    try:
        follow(query, signals, live)
    except BaseException as fault:
        raise RunError(fault) from fault
    _print_summary(job, live, signals.requested)
    return live.totals


def require_start(job: Job, spark: SparkSession) -> None:
    """Kafka's default start, ``latest``, leaves nothing to a run of what is there now: ask. Raises ConfigError."""
    if job.available_now and job.starting is None and not _has_state(spark, job):
        raise ConfigError(
            f"group {job.group!r} is new, and --available-now from the default start 'latest' would do nothing: "
            "choose --starting earliest, latest or by_duration:PT1H"
        )


def _has_state(spark: SparkSession, job: Job) -> bool:
    from share_spark.state.state_view import read_state

    location = Location.parse(job.state)
    if log_table(location).is_free(spark):
        return False
    return not read_state(spark, location, job.group).isEmpty()


def follow(query: ShareGroupQuery, signals: StopSignals, live: _LiveProgress) -> None:
    """Until the query ends, by itself or because it was asked to. Raises what ended it."""
    try:
        while not query.awaitTermination(_POLL_S / 4):
            live.show()
            if signals.requested:
                _say(f"{signals.requested}: stopping after the current micro-batch (once more: at once)")
                query.stop()
    finally:
        live.finish()


def start_text(job: Job, query: ShareGroupQuery) -> str:
    """Where this run begins, as readable text."""
    chosen = job.starting or "latest (Kafka's default)"
    return f"the group's state ({chosen} for new topics)" if query.engine.has_state else chosen


class _LiveProgress:
    """At most a line a second on stderr, and only if something happened; on a terminal they are one line."""

    def __init__(self) -> None:
        self.totals = RunTotals()
        self._shown = RunTotals()
        self._terminal = sys.stderr.isatty()
        self.begin()

    def begin(self) -> None:
        """The clock of the run starts now."""
        self._began = self._shown_at = time.monotonic()

    def note(self, progress: MicroBatchProgress) -> None:
        """On the query's thread."""
        self.totals = self.totals.plus(progress)
        steps = "  ".join(f"{name} {seconds:.2f}" for name, seconds in progress.steps.items())
        _log.info("micro-batch %s, seconds: %s", progress.batch_id, steps)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def show(self) -> None:
        """On the main thread."""
        now = time.monotonic()
        if now - self._shown_at < _POLL_S or self.totals.micro_batches == self._shown.micro_batches:
            return
        line = progress_line(self.totals, self._shown, now - self._shown_at)
        print(
            f"\r{line}\x1b[K" if self._terminal else line,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )
        self._shown, self._shown_at = self.totals, now

    def finish(self) -> None:
        """The last line, if it says anything new."""
        self._shown_at -= _POLL_S
        self.show()
        if self._terminal and self._shown.micro_batches:
            print(file=sys.stderr)


def _say(text: str) -> None:
    print(f"share-spark: {text}", file=sys.stderr, flush=True)


def _print_summary(job: Job, live: _LiveProgress, stopped_by: str | None) -> None:
    ended = f"stopped by {stopped_by}" if stopped_by else "everything in the log was worked off"
    print(f"\nshare group {job.group} on {', '.join(job.topics)}: {ended}\n")
    print("\n".join(summary_lines(live.totals, live.seconds)))
    if live.totals.deliveries:
        print("\n  records per delivery (logarithmic)")
        print("\n".join(histogram_lines(live.totals.deliveries)))
    print(f"\n  state   {job.state}\n  SQL     {state_sql(job.state, job.group)}", flush=True)


def state_sql(state: str, group: str) -> str:
    """The query that shows the group's state, for any session with Delta."""
    name, quoted = state_table(Location.parse(state)).sql_name(), group.replace("'", "\\'")
    return f"SELECT * FROM {name} WHERE group_id = '{quoted}' ORDER BY topic, partition"
