"""`share-spark run`: start a share group, follow it to its end, print its totals."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from share_spark.admin.table_files import small_files_text
from share_spark.cli.arguments import parse_job
from share_spark.cli.command import RunError, command_session
from share_spark.cli.job import Job
from share_spark.cli.live_progress import EVERY_S, LiveProgress
from share_spark.cli.run_report import RunTotals, histogram_lines, summary_lines
from share_spark.cli.signals import StopSignals
from share_spark.delta.location import Location
from share_spark.handlers.handler import shown_name
from share_spark.maintenance.heartbeat import dynamic_config_file
from share_spark.model.dynamic_config import configs_text
from share_spark.model.errors import ConfigError, ShareError, StateError
from share_spark.spark.session import mute_query_faults
from share_spark.state.tables import log_table, state_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.api.query import ShareGroupQuery

_log = logging.getLogger(__name__)


def run_given(arguments: Sequence[str]) -> int:
    """Run `share-spark run`. Raises ShareError."""
    job = parse_job(arguments)
    job.ask_brokers()
    with StopSignals() as signals, command_session(job.query_name or f"share-spark {job.group}") as spark:
        signals.adopt(spark)
        if not _log.isEnabledFor(logging.INFO):
            mute_query_faults(spark)
        run(job, spark, signals)
    return 0


def run(job: Job, spark: SparkSession, signals: StopSignals) -> RunTotals:
    """Wire the share group, start it, follow it to its end, print the summary. Raises ShareError: nothing started."""
    require_start(job, spark)
    live = LiveProgress()
    group = job.share_group(spark).listen(live.note)
    if signals.requested:
        return live.totals
    query = group.start()
    live.begin(query.engine.look)
    _say(f"group {job.group}, topics {', '.join(job.topics)} of {job.source}, handler {shown_name(job.handler)}")
    if query.listensOn is not None:
        _say(f"share consumers connect to {query.listensOn}")
    _say(f"start: {start_text(job, query)}; state in {job.state}")
    _say_dynamic_configs(spark, job)
    try:
        follow(query, signals, live)
    except BaseException as fault:
        raise RunError(fault) from fault
    _print_summary(job, live, signals.requested)
    return live.totals


def require_start(job: Job, spark: SparkSession) -> None:
    """Refuse a run until the present end from the default start, ``latest``: it has no records. Raises ConfigError."""
    if job.available_now and job.starting is None and not _has_state(spark, job):
        raise ConfigError(
            f"group {job.group!r} is new, and --available-now from the default start 'latest' would do nothing: "
            "choose --starting earliest, latest or by_duration:PT1H"
        )


def _has_state(spark: SparkSession, job: Job) -> bool:
    from share_spark.admin.state_reader import StateReader
    from share_spark.state.state_view import read_state

    location = Location.parse(job.state)
    if log_table(location).is_free(spark):
        return False
    try:
        reader = StateReader.open(job.state)
        return job.group in reader.groups() and bool(reader.group(job.group).partitions)
    except ShareError as reason:
        _log.debug("the state of group %s is read by Spark: %s", job.group, reason)
    return not read_state(spark, location, job.group).isEmpty()


def follow(query: ShareGroupQuery, signals: StopSignals, live: LiveProgress) -> None:
    """Follow the query until it ends, by itself or on request. Raises its error."""
    try:
        with live.beside_logs():
            while not query.awaitTermination(EVERY_S / 4):
                live.show()
                if signals.requested:
                    live.say(f"{signals.requested}: stopping after the current micro-batch (once more: at once)")
                    query.stop()
    finally:
        live.finish()


def start_text(job: Job, query: ShareGroupQuery) -> str:
    """Return where this run begins, as text."""
    chosen = job.starting or "latest (Kafka's default)"
    return f"the group's state ({chosen} for new topics)" if query.engine.has_state else chosen


def _say_dynamic_configs(spark: SparkSession, job: Job) -> None:
    """Print dynamic configs, which win and may have been set long ago. The engine warns of a broken file."""
    with suppress(StateError):
        found = dynamic_config_file(spark, Location.parse(job.state), job.group).read()
        if found:
            _say(f"dynamic settings, which win over those of the job: {configs_text(found)}")


def _say(text: str) -> None:
    print(f"share-spark: {text}", file=sys.stderr, flush=True)


def _print_summary(job: Job, live: LiveProgress, stopped_by: str | None) -> None:
    ended = f"stopped by {stopped_by}" if stopped_by else "everything in the log was worked off"
    print(f"\nshare group {job.group} on {', '.join(job.topics)}: {ended}\n")
    print("\n".join(summary_lines(live.totals, live.seconds)))
    if live.totals.deliveries:
        print("\n  records per delivery (logarithmic)")
        print("\n".join(histogram_lines(live.totals.deliveries)))
    print(f"\n  state   {job.state}\n  SQL     {state_sql(job.state, job.group)}", flush=True)
    if job.to_delta is not None and (text := small_files_text(job.to_delta)):
        print(f"  sink    {text}", flush=True)


def state_sql(state: str, group: str) -> str:
    """Return the query that shows the group's state, for any session with Delta."""
    name, quoted = state_table(Location.parse(state)).sql_name(), group.replace("'", "\\'")
    return f"SELECT * FROM {name} WHERE group_id = '{quoted}' ORDER BY topic, partition"
