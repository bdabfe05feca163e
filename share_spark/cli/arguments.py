"""The arguments of the command line, and what they say together with a configuration file. Starts nothing; values of
Kafka options are in no message."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from share_spark.cli.config_files import GATEWAY_KEYS, START, ConfigFile, read_config, read_order
from share_spark.cli.dead_letter_arguments import add_dead_letters, add_record
from share_spark.cli.gateway_arguments import add_door, add_gateway, add_gateway_user, door_settings
from share_spark.cli.written_values import not_negative, positive
from share_spark.coordinator import STATE_PARTITIONS
from share_spark.maintenance.compaction_order import KEYS as COMPACTION_KEYS
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from share_spark.cli.job import Job
    from share_spark.kafka.options import KafkaOptions

CHOOSE_ONE = "choose where the topics are: --bootstrap-server or --topic-table"


def parse_job(arguments: Sequence[str]) -> Job:
    """Return the job: command line over file over defaults. Raises ConfigError, HandlerError; starts nothing."""
    given = parsed(arguments)
    file = read_config(given.config) if given.config else ConfigFile()
    said = {name: value for name, value in vars(given).items() if name not in _NOT_JOB and value not in (None, False)}
    settings: dict[str, str] = pairs_of("--option", given.option)
    if given.starting is not None:
        settings[START] = given.starting
    chosen = {**file.job, **said, "starting": settings.get(START, file.starting)}
    kafka = {**file.kafka, **pairs_of("--kafka-option", given.kafka_option)}
    output_kafka = {**file.output_kafka, **pairs_of("--output-kafka-option", given.output_kafka_option)}
    here = str(Path.cwd())
    if here not in sys.path:  # as for `python -m` and Spark's local workers
        sys.path.insert(0, here)
    from share_spark.cli.job import Job  # takes half a second; commands without Spark do not import it

    listening = {} if given.listen is None else door_settings(given, file.gateway)
    return Job.of(chosen, file.config.changed(settings), kafka, output_kafka, listening)


_KEY = re.compile(r"[\w.-]+")
_OF_DOOR = tuple(key.replace("-", "_") for key in GATEWAY_KEYS)
_NOT_JOB = ("command", "config", "option", "kafka_option", "output_kafka_option", "starting", "debug", *_OF_DOOR)


def pairs_of(option: str, given: Iterable[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not (_KEY.fullmatch(key.strip()) and equals) for key, equals, _ in pairs):
        raise ConfigError(f"{option} takes key=value")
    return {key.strip(): value for key, _, value in pairs}


def parse_compaction(arguments: Sequence[str]) -> CompactionOrder:
    """Return the order: command line over configuration file over defaults. Raises ConfigError; starts nothing."""
    given = parsed(arguments)
    file = read_order(given.config) if given.config else {}
    said = {key: getattr(given, key.replace("-", "_")) for key in COMPACTION_KEYS}
    return CompactionOrder.parse({**file, **{key: value for key, value in said.items() if value not in (None, False)}})


class TopicPlace(NamedTuple):
    """The place of the topics: one of the two; both None if none was given."""

    kafka: KafkaOptions | None
    topic_table: str | None


def topic_place(given: argparse.Namespace) -> TopicPlace:
    """Return where the topics are: command line over configuration file. Raises ConfigError."""
    from share_spark.kafka.options import KafkaOptions

    file, said = read_config(given.config) if given.config else ConfigFile(), _kafka_options(given)
    if said and given.topic_table is not None:
        raise ConfigError(CHOOSE_ONE)
    topic_table = given.topic_table if said or given.topic_table is not None else file.job.get("topic_table")
    if topic_table is not None:
        return TopicPlace(None, topic_table)
    servers = {"bootstrap.servers": file.job["bootstrap_server"]} if "bootstrap_server" in file.job else {}
    options = {**file.kafka, **servers, **said}
    return TopicPlace(KafkaOptions.parse(options) if options else None, None)


def _kafka_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of ``--bootstrap-server`` and ``--kafka-option``. Raises ConfigError."""
    servers = {"bootstrap.servers": given.bootstrap_server} if given.bootstrap_server else {}
    return {**pairs_of("--kafka-option", given.kafka_option), **servers}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options by name. Raises ConfigError for an unknown one."""
    given, rest = command_parser().parse_known_args(list(arguments))
    if rest:
        raise ConfigError(f"unknown argument {_unknown(rest)} (--help lists the options)")
    return given


_OPTION_NAME = re.compile(r"--[A-Za-z-]+|-[A-Za-z]")


def _unknown(rest: Sequence[str]) -> str:
    """Return the option's name only: what follows it may be a secret."""
    names = [found[0] for found in map(_OPTION_NAME.match, rest) if found]
    return names[0] if names else "without an option's name before it"


_INVALID_CHOICE = re.compile(r"invalid choice: .*? \((?=choose from)", re.DOTALL)
"""The part of argparse's message that quotes its input; in place of a command that may be the value of an option."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises errors, and does not print them with a screen of usage."""

    def error(self, message: str) -> NoReturn:
        shown = _INVALID_CHOICE.sub("invalid choice (", message)
        raise ConfigError(f"{shown} (--help lists the options)") from None


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of `share-spark` with all its commands."""
    parser = _Parser(prog="share-spark", description="Kafka share groups on Spark and Delta.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"share-spark {version('share_spark')}")
    names = "run, gateway, gateway-user, groups, configs, top, dead-letters, report, ui, exporter, compact, history"
    commands = parser.add_subparsers(
        dest="command", required=True, metavar=f"{names}, verify, doctor or prepare", parser_class=_Parser
    )
    for name, help_text, add_options in (
        ("run", "run a share group", _add_run),
        ("gateway", "serve topics of any Kafka or of a Delta table to share consumers, without Spark", add_gateway),
        ("gateway-user", "add a user who may log in at gateways, or change the password", add_gateway_user),
        ("groups", "list, describe, change, pause and delete share groups", _add_groups),
        ("configs", "settings of a group that can change while it runs", _add_configs),
        ("top", "the progress of groups, live in the terminal", _add_top),
        ("dead-letters", "records that failed, and their errors; send them again, or delete them", add_dead_letters),
        ("report", "write share groups as one HTML file", _add_report),
        ("ui", "serve share groups as a live page for the browser", _add_ui),
        ("exporter", "serve metrics of all groups to Prometheus, also while no engine runs", _add_exporter),
        ("compact", "keep the state tables small; run it by a schedule", _add_compact),
        ("history", "the history of one record", _add_history),
        ("verify", "check that the state log is consistent", _add_verify),
        ("prepare", "once: fetch the jars, and make the archive that halves the time of a start", lambda _: None),
        ("doctor", "check what a session needs; with --spark also which private API is available", _add_doctor),
    ):
        command = commands.add_parser(name, help=help_text, allow_abbrev=False)
        add_options(command)
        command.add_argument("--debug", "-v", action="store_true", help="tracebacks and more log lines")
    return parser


def _add_run(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--config", metavar="FILE", help="TOML: [job], [kafka], [output_kafka], [share_group]; the command line wins")
    add("--group", help="group id; two groups on a topic are independent of each other")
    add("--topic", action="append", help="topic to read; repeat it for more")
    add("--handler", metavar="MODULE:FUNCTION", help="the function that handles each record")
    add("--cost", metavar="MODULE:FUNCTION", help="what a call for a record will cost, for delivery.cost.limit")
    add("--value-from", metavar="MODULE:NAME", help="decodes the values for the handler, as a deserializer does")
    add("--bootstrap-server", metavar="HOST:PORT", help="read the topics of this Kafka cluster ...")
    add("--topic-table", metavar="PATH_OR_NAME", help="... or of this Delta table (no broker needed)")
    add("--state", metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    _add_output(command)
    add("--dead-letter", metavar="TOPIC_OR_TABLE", help="keep rejected and given-up records here")
    add("--starting", metavar="WHERE", help="a new group starts at earliest, latest (default) or by_duration:PT1H")
    add("--available-now", action="store_true", help="process what is in the log now, then end")
    add("--trigger", metavar="INTERVAL", help='least time between starts of micro-batches, "5 seconds"; default: none')
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="a setting of the share group; repeatable")
    add("--kafka-option", action="append", default=[], metavar="KEY=VALUE", help="a Kafka client setting; repeatable")
    add("--checkpoint", metavar="PATH", help="Spark's checkpoint; default: below the state directory")
    add("--query-name", metavar="NAME", help="name of the streaming query in Spark's UI")
    add("--listen", metavar="HOST:PORT", help="share consumers of Kafka join the group here; --handler may be left out")
    add_door(command)


def _add_output(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--to-delta", metavar="PATH_OR_NAME", help="write the handler's output rows to this table, exactly once ...")
    add("--output-schema", metavar="DDL", help='... with these columns, "id bigint, delay double"')
    add("--to-kafka", metavar="TOPIC", help="or send the handler's messages to this topic, at least once ...")
    add("--output-bootstrap-server", metavar="HOST:PORT", help="... of this Kafka cluster; default: that of the topics")
    text = "a Kafka client setting for that cluster; repeatable"
    add("--output-kafka-option", action="append", default=[], metavar="KEY=VALUE", help=text)


def _add_groups(command: argparse.ArgumentParser) -> None:
    """Add the verbs and options of ``kafka-share-groups.sh`` (Kafka 4.2)."""
    add = command.add_argument
    verbs = command.add_mutually_exclusive_group(required=True)
    verbs.add_argument("--list", action="store_true", help="list all groups")
    verbs.add_argument("--describe", action="store_true", help="show the offsets, members or state of a group")
    verbs.add_argument("--reset-offsets", action="store_true", help="set the start offsets of a group without engine")
    verbs.add_argument("--delete-offsets", action="store_true", help="delete the offsets of a topic of such a group")
    verbs.add_argument("--delete", action="store_true", help="delete such groups")
    verbs.add_argument("--pause", action="store_true", help="stop acquiring for a group; what is in flight is finished")
    verbs.add_argument("--resume", action="store_true", help="acquire again for a paused group")
    add("--until", metavar="TIME", help="with --pause: its end (UTC), or its duration (2h); default: until --resume")
    starts = command.add_mutually_exclusive_group()
    starts.add_argument("--to-earliest", action="store_true", help="with --reset-offsets: to the log start")
    starts.add_argument("--to-latest", action="store_true", help="... to the log end")
    starts.add_argument("--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="... to the first record since (UTC)")
    starts.add_argument("--to-offset", type=not_negative, metavar="OFFSET", help="... to this offset")
    starts.add_argument("--shift-by", type=int, metavar="NUMBER", help="... by so many records, back if below 0")
    add("--topic", action="append", default=[], metavar="TOPIC[:0,1,2]", help="these topics or partitions; repeatable")
    add("--all-topics", action="store_true", help="all topics of the group")
    changes = command.add_mutually_exclusive_group()
    changes.add_argument("--dry-run", action="store_true", help="show what would be done, change nothing (the default)")
    changes.add_argument("--execute", action="store_true", help="do it")
    add("--state", nargs="?", const="", metavar="STATE", help="with --list: show states, or only these (Stable, Empty)")
    add("--offsets", action="store_true", help="with --describe: offsets and lag (the default)")
    add("--members", action="store_true", help="with --describe: the engine that runs the group")
    add("--verbose", action="store_true", help="with --describe: more columns")
    add("--group", action="append", default=[], help="group id; repeatable")
    add("--all-groups", action="store_true", help="all groups")
    add("--json", action="store_true", help="print one JSON document, for programs")
    _add_place(command, timeout_ms=30_000)


def _add_configs(command: argparse.ArgumentParser) -> None:
    """Add the options of ``kafka-configs.sh`` (Kafka 4.2) for groups."""
    add = command.add_argument
    verbs = command.add_mutually_exclusive_group(required=True)
    verbs.add_argument("--describe", action="store_true", help="show the settings and their sources")
    verbs.add_argument("--alter", action="store_true", help="change dynamic settings; a running engine applies them")
    add("--all", action="store_true", help="with --describe: all settings, also those of the job and defaults")
    pairs = "with --alter: KEY=VALUE,KEY=[VALUE,VALUE]; repeatable"
    add("--add-config", action="append", default=[], metavar="PAIRS", help=pairs)
    add("--delete-config", action="append", default=[], metavar="KEYS", help="... keys to unset: KEY,KEY; repeatable")
    changes = command.add_mutually_exclusive_group()
    changes.add_argument("--dry-run", action="store_true", help="show what would be set, change nothing (the default)")
    changes.add_argument("--execute", action="store_true", help="do it")
    add("--entity-type", choices=["groups"], default="groups", help="as for Kafka's tool; only groups")
    add("--group", "--entity-name", action="append", default=[], help="group id; --describe takes several, or all")
    add("--json", action="store_true", help="with --describe: print one JSON document, for programs")
    add("--location", required=True, metavar="PATH", help="directory of the state tables")


def _add_place(command: argparse.ArgumentParser, timeout_ms: int, *, or_cluster: bool = False) -> None:
    """Add options for the place of state and topics. ``or_cluster``: without a state, the cluster's groups."""
    add = command.add_argument
    own = "; without it: Kafka's own share groups of --bootstrap-server" if or_cluster else ""
    add("--location", required=not or_cluster, metavar="PATH", help=f"directory of the state tables{own}")
    add("--bootstrap-server", metavar="HOST:PORT", help="the Kafka cluster of the topics; default: the engine's ...")
    add("--topic-table", metavar="PATH", help="... or the Delta table of the topics")
    add("--kafka-option", action="append", default=[], metavar="KEY=VALUE", help="a Kafka client setting; repeatable")
    add("--config", metavar="FILE", help="the TOML file of the run: its topics, and Kafka settings with credentials")
    allowed = f"longest wait for the cluster ({timeout_ms})"
    add("--timeout", type=not_negative, default=timeout_ms, metavar="MS", help=allowed)


def _add_letter_table(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dead-letter", metavar="PATH", help="the table of dead letters; default: the engine's")


def _add_report(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--html", required=True, metavar="FILE", help="the file to write")
    add("--group", action="append", default=[], help="this group only; repeatable; default: all of them")
    earlier = command.add_mutually_exclusive_group()
    earlier.add_argument("--at", metavar="TIME", help="the state at this time (UTC), if the log still has it ...")
    earlier.add_argument("--version", metavar="NUMBER", help="... or at this version of the state log (Delta's)")
    _add_letter_table(command)
    _add_place(command, timeout_ms=30_000, or_cluster=True)


def _add_top(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--group", action="append", default=[], help="this group only; repeatable; default: all of them")
    add("--interval", type=_seconds, default=2.0, metavar="SECONDS", help="between two reads (2)")
    add("--count", type=positive, default=-1, metavar="NUMBER", help="number of reads; default: until Ctrl-C")
    _add_place(command, timeout_ms=5_000)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return found


def _add_ui(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--port", type=_port, default=8932, metavar="NUMBER", help="port of the page (8932); 0: any free one")
    add(
        "--host",
        default="127.0.0.1",
        help="127.0.0.1 (default): this machine only; else all machines that reach this address ...",
    )
    add("--token", metavar="TEXT", help="... and send this token, which is then required")
    _add_letter_table(command)
    _add_place(command, timeout_ms=5_000, or_cluster=True)


def _add_exporter(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--port", type=_port, default=9405, metavar="NUMBER", help="port of the metrics (9405); 0: any free one")
    add(
        "--host",
        default="127.0.0.1",
        help="127.0.0.1 (default): this machine only; else all machines that reach this address",
    )
    add("--interval", type=_seconds, default=15.0, metavar="SECONDS", help="between two reads of the tables (15)")
    _add_letter_table(command)
    _add_place(command, timeout_ms=5_000)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _add_doctor(command: argparse.ArgumentParser) -> None:
    text = "start a session and try each use of Spark's and Delta's private API (about a minute)"
    command.add_argument("--spark", action="store_true", help=text)


def _add_verify(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--location", required=True, metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    add("--group", help="this group only; default: all of them")
    add("--bucket", type=_bucket, metavar="NUMBER", help="only keys of this partition of Kafka's state topic")


def _bucket(text: str) -> int:
    if not text.isdecimal() or int(text) >= STATE_PARTITIONS:
        raise argparse.ArgumentTypeError(f"unknown bucket {text}: they are 0 to {STATE_PARTITIONS - 1}")
    return int(text)


def _add_history(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--location", required=True, metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    add("--group", required=True, help="group id")
    add_record(command)


def _add_compact(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--config", metavar="FILE", help="TOML: table [compaction]; the command line overrides it")
    add("--state", metavar="PATH_OR_SCHEMA", help="directory or schema of the state tables")
    add("--group", help="this group only; default: all of them")
    add("--idle", metavar="DURATION", help="a group that is silent for this long has no engine (10m)")
    add("--history-retention", metavar="DURATION", help="drop older closed segments; default: left to the engines")
    add("--vacuum-retention", metavar="DURATION", help="keep older versions of the tables readable for this long (7d)")
    add("--dead-letter", metavar="TABLE", help="a dead-letter table to compact as well ...")
    add("--dead-letter-retention", metavar="DURATION", help="... and drop its older letters")
    add("--topic-table", metavar="TABLE", help="a topic table to compact as well ...")
    add("--topic-retention", metavar="DURATION", help="... and drop its older records")
    add("--dry-run", action="store_true", help="show what would be done, change nothing")
