"""The command line: parse, call, print. `share-spark run` and `spark-submit jobs/run_share_group.py` are the same code,
as are `share-spark compact` and `jobs/compact_share_state.py`.

Whatever can be judged without Spark is judged before a JVM is started (process/job.py). Bad input is one line on
stderr and exit code 2, a fault of the run one line and exit code 1; the traceback is for those who ask for it
(`--debug`). Values of Kafka options are never printed, nor is any text that could hold one.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from share_spark.coordinator import STATE_PARTITIONS
from share_spark.delta.compaction_order import KEYS as COMPACTION_KEYS
from share_spark.delta.compaction_order import CompactionOrder, read_order
from share_spark.delta.location import Location
from share_spark.delta.long_work import PROGRESS_LOGGER
from share_spark.delta.tables import log_table, state_table
from share_spark.model.errors import ConfigError, EnvironmentFault, ShareError
from share_spark.process.job import START, Job, read_config
from share_spark.process.run_report import RunTotals, histogram_lines, progress_line, summary_lines
from share_spark.process.signals import StopSignals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.engine.progress import MicroBatchProgress
    from share_spark.process.query import ShareGroupQuery

_log = logging.getLogger(__name__)

BAD_INPUT, FAILED = 2, 1

_POLL_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; prints what is wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = bool({"--debug", "-v"} & set(given))
    logging.basicConfig(
        format="%(asctime)s share-spark: %(message)s" if debug else "share-spark: %(message)s",
        level=logging.INFO if debug else logging.WARNING,
    )
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger(PROGRESS_LOGGER).setLevel(logging.INFO)
    return guarded(lambda: _command(given), debug=debug)


def _command(given: Sequence[str]) -> int:
    if given[:1] == ["compact"]:
        return _compact(parse_compaction(given))
    if given[:1] == ["history"]:
        return _history(given)
    if given[:1] == ["verify"]:
        return _verify(given)
    return _run_job(parse_job(given))


def guarded(command: Callable[[], int], *, debug: bool = False) -> int:
    """Run it; an error becomes one line and an exit code: 2 for bad input, 1 for anything else."""
    try:
        return command()
    except _RunError as fault:
        return _tell(fault.cause, FAILED, debug)
    except ShareError as fault:
        return _tell(fault, FAILED if isinstance(fault, EnvironmentFault) else BAD_INPUT, debug)
    except Exception as fault:  # noqa: BLE001 - the person at the terminal gets one line of that, too
        return _tell(fault, FAILED, debug)


class _RunError(Exception):
    """What ended a run that had begun well."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


def _tell(fault: BaseException, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(fault)
    text = _one_line(fault)
    named = text if isinstance(fault, ShareError) else f"{type(fault).__name__}: {text} (--debug tells more)"
    print(f"share-spark: {named}", file=sys.stderr, flush=True)
    return code


def _one_line(fault: BaseException) -> str:
    """The message without the stack traces that Spark's errors carry along; of a worker's traceback its last line."""
    text = str(fault).partition("\nJVM stacktrace")[0].strip()
    if "Traceback (most recent call last)" in text:
        text = text.splitlines()[-1]
    return " ".join(text.split("\n\n")[0].split()) or type(fault).__name__


# ------------------------------------------------------------------------------------------------- running


def _run_job(job: Job) -> int:
    from pyspark.sql import SparkSession

    from share_spark.session import build_session

    job.ask_broker()
    guest = SparkSession.getActiveSession() is not None
    with StopSignals() as signals:
        spark = build_session(job.query_name or f"share-spark {job.group}")
        try:
            signals.adopt(spark)
            run(job, spark, signals)
            return 0
        finally:
            if not guest:
                spark.stop()


def run(job: Job, spark: SparkSession, signals: StopSignals) -> RunTotals:
    """Wire the share group, start it, follow it to its end, print the summary. Raises ShareError: nothing was begun."""
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
        raise _RunError(fault) from fault
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
    from share_spark.delta.state_view import state

    location = Location.parse(job.state)
    if log_table(location).is_free(spark):
        return False
    return not state(spark, location, job.group).isEmpty()


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
    """Where this run begins, for people."""
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


@contextmanager
def _session(name: str) -> Iterator[SparkSession]:
    """A session for one command, ended with it; one that was there before stays."""
    from pyspark.sql import SparkSession

    from share_spark.session import build_session

    guest = SparkSession.getActiveSession() is not None
    spark = build_session(name)
    try:
        yield spark
    finally:
        if not guest:
            spark.stop()


# --------------------------------------------------------------------------------------------- compaction


def _compact(order: CompactionOrder) -> int:
    from share_spark.delta.compaction import compact
    from share_spark.delta.compaction_report import report_lines

    with _session(f"share-spark compact {order.state}") as spark:
        print("\n".join(report_lines(compact(spark, order))), flush=True)
    return 0


def parse_compaction(arguments: Sequence[str]) -> CompactionOrder:
    """Command line over configuration file over defaults. Raises ConfigError; starts nothing."""
    given, rest = _parser().parse_known_args(list(arguments))
    if rest:
        raise ConfigError(f"unknown argument {_unknown(rest)} (--help lists the options)")
    file = read_order(given.config) if given.config else {}
    said = {key: getattr(given, key.replace("-", "_")) for key in COMPACTION_KEYS}
    return CompactionOrder.parse({**file, **{key: value for key, value in said.items() if value not in (None, False)}})


# ------------------------------------------------------------------------------------------------- history


def _history(arguments: Sequence[str]) -> int:
    from share_spark.delta.history import record_history
    from share_spark.delta.history_report import history_lines

    given, rest = _parser().parse_known_args(list(arguments))
    if rest:
        raise ConfigError(f"unknown argument {_unknown(rest)} (--help lists the options)")
    place = Location.parse(given.state)
    record = {"group_id": given.group, "topic": given.topic, "partition": given.partition, "offset": given.offset}
    with _session(f"share-spark history {given.group}") as spark:
        print("\n".join(history_lines(record_history(spark, place, **record))), flush=True)
    return 0


# -------------------------------------------------------------------------------------------------- verify


def _verify(arguments: Sequence[str]) -> int:
    """0: all of the log agrees; 1: something in it does not."""
    from share_spark.delta.verify import verify
    from share_spark.delta.verify_report import verify_lines

    given, rest = _parser().parse_known_args(list(arguments))
    if rest:
        raise ConfigError(f"unknown argument {_unknown(rest)} (--help lists the options)")
    place = Location.parse(given.state)
    with _session(f"share-spark verify {given.state}") as spark:
        report = verify(spark, place, given.group, given.bucket)
    print("\n".join(verify_lines(report)), flush=True)
    return 0 if report.agrees else FAILED


# ----------------------------------------------------------------------------------------------- arguments


class _Parser(argparse.ArgumentParser):
    """Errors are raised, not printed with a screen of usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (--help lists the options)")


def parse_job(arguments: Sequence[str]) -> Job:
    """Command line over configuration file over defaults. Raises ConfigError, HandlerError; starts nothing."""
    given, rest = _parser().parse_known_args(list(arguments))
    if rest:
        raise ConfigError(f"unknown argument {_unknown(rest)} (--help lists the options)")
    file = read_config(given.config) if given.config else {"job": {}, "kafka": {}, "share_group": {}}
    said = {name: value for name, value in vars(given).items() if name not in _NOT_JOB and value not in (None, False)}
    chosen = {**file["job"], **said}
    settings = {**file["share_group"], **_pairs("--option", given.option)}
    if given.starting is not None:
        settings[START] = given.starting
    kafka = {**file["kafka"], **_pairs("--kafka-option", given.kafka_option)}
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` has it, and as Spark's local workers have it
        sys.path.insert(0, here)
    return Job.of(chosen, settings, kafka)


_NOT_JOB = ("command", "config", "option", "kafka_option", "starting", "debug")


def _unknown(rest: Sequence[str]) -> str:
    """Names only: what follows a name may be a secret."""
    names = [argument.partition("=")[0] for argument in rest if argument.startswith("-")]
    return names[0] if names else "without an option's name before it"


def _parser() -> _Parser:
    parser = _Parser(prog="share-spark", description="Kafka share groups on Spark and Delta.", allow_abbrev=False)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="run, compact, history or verify", parser_class=_Parser
    )
    command = commands.add_parser("run", help="run a share group", allow_abbrev=False)
    add = command.add_argument
    add("--config", metavar="FILE", help="TOML: tables [job], [kafka], [share_group]; the command line wins over it")
    add("--group", help="group id; two groups on a topic are independent of each other")
    add("--topic", action="append", help="topic to read; repeat it for more")
    add("--handler", metavar="MODULE:FUNCTION", help="what to do with each record")
    add("--bootstrap-server", metavar="HOST:PORT", help="read the topics of this Kafka cluster ...")
    add("--topic-table", metavar="PATH_OR_NAME", help="... or of this Delta table (no broker needed)")
    add("--state", metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    add("--to-delta", metavar="PATH_OR_NAME", help="where the handler's output rows go, exactly once ...")
    add("--output-schema", metavar="DDL", help='... and their columns, "id bigint, delay double"')
    add("--dead-letter", metavar="TOPIC_OR_TABLE", help="where rejected and given-up records are kept")
    add("--starting", metavar="WHERE", help="a new group starts at earliest, latest (default) or by_duration:PT1H")
    add("--available-now", action="store_true", help="work off what is in the log now, then end")
    add("--trigger", metavar="INTERVAL", help='how often a micro-batch may start, "5 seconds"; default: at once')
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="a setting of the share group; repeatable")
    add("--kafka-option", action="append", default=[], metavar="KEY=VALUE", help="a Kafka client setting; repeatable")
    add("--checkpoint", metavar="PATH", help="Spark's checkpoint; default: below the state directory")
    add("--query-name", metavar="NAME", help="name of the streaming query in Spark's UI")
    add("--debug", "-v", action="store_true", help="tracebacks and more log lines")
    _add_compact(commands.add_parser("compact", help="keep the state tables small, by a schedule", allow_abbrev=False))
    _add_history(commands.add_parser("history", help="what happened to one record", allow_abbrev=False))
    _add_verify(commands.add_parser("verify", help="check the state log against itself", allow_abbrev=False))
    return parser


def _add_verify(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--state", required=True, metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    add("--group", help="this group only; default: all groups of the location")
    add("--bucket", type=_bucket, metavar="NUMBER", help="only what Kafka would keep in this partition of the state")
    add("--debug", "-v", action="store_true", help="tracebacks and more log lines")


def _bucket(text: str) -> int:
    if not text.isdecimal() or int(text) >= STATE_PARTITIONS:
        raise argparse.ArgumentTypeError(f"unknown bucket {text}: they are 0 to {STATE_PARTITIONS - 1}")
    return int(text)


def _add_history(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--state", required=True, metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    add("--group", required=True, help="group id")
    add("--topic", required=True, help="topic of the record")
    add("--partition", required=True, type=_not_negative, metavar="NUMBER", help="its partition")
    add("--offset", required=True, type=_not_negative, metavar="NUMBER", help="its offset")
    add("--debug", "-v", action="store_true", help="tracebacks and more log lines")


def _not_negative(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def _add_compact(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--config", metavar="FILE", help="TOML: table [compaction]; the command line wins over it")
    add("--state", metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    add("--group", help="this group only; default: all groups of the location")
    add("--idle", metavar="DURATION", help="silent for so long: no engine runs the group (10m)")
    add("--history-retention", metavar="DURATION", help="drop closed segments as old; default: left to the engines")
    add("--vacuum-retention", metavar="DURATION", help="older versions of the tables stay readable for (7d)")
    add("--dead-letter", metavar="TABLE", help="a dead-letter table to compact as well ...")
    add("--dead-letter-retention", metavar="DURATION", help="... and to drop letters that are as old")
    add("--topic-table", metavar="TABLE", help="a topic table to compact as well ...")
    add("--topic-retention", metavar="DURATION", help="... and to drop records that are as old")
    add("--dry-run", action="store_true", help="say what would be done, change nothing")
    add("--debug", "-v", action="store_true", help="tracebacks and more log lines")


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not (key and equals) for key, equals, _ in pairs):
        raise ConfigError(f"{option} takes key=value")
    return {key.strip(): value for key, _, value in pairs}


if __name__ == "__main__":
    sys.exit(main())
