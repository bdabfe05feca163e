"""The arguments of `share-spark dead-letters`. Starts nothing."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from share_spark.cli.written_values import not_negative

_FILTERS = ("group", "topic", "offsets", "reason", "error", "header", "since", "until", "redriven", "not_redriven")


def add_dead_letters(command: ArgumentParser) -> None:
    """Add its verbs."""
    verbs = command.add_subparsers(dest="verb", required=True, metavar="list, show, redrive or purge")
    for name, help_text, add_options in (
        ("list", "list letters by error (numbers and ids count as #), or one by one; no JVM", _add_list),
        ("show", "show one letter in full; no JVM", _add_show),
        ("redrive", "send letters again, as new records", _add_redrive),
        ("purge", "delete letters", _add_purge),
    ):
        verb = verbs.add_parser(name, help=help_text, allow_abbrev=False)
        add_options(verb)
        verb.add_argument("--debug", "-v", action="store_true", help="tracebacks and more log lines")


def has_filter(given: Namespace) -> bool:
    """Return whether any option chooses letters."""
    return any(getattr(given, name) for name in _FILTERS)


def _add_list(verb: ArgumentParser) -> None:
    _add_table(verb, required=True)
    _add_filters(verb)
    _add_redriven(verb)
    verb.add_argument("--letters", action="store_true", help="list letters one by one, the newest first")
    verb.add_argument("--limit", type=_above_zero, metavar="NUMBER", help="print at most this number of lines")
    verb.add_argument("--json", action="store_true", help="print one JSON document, for programs")


def _add_show(verb: ArgumentParser) -> None:
    add = verb.add_argument
    _add_table(verb, required=True)
    add("--group", help="show the letter of this group only; default: of all groups")
    add_record(verb)
    location_help = "the state tables: shows each delivery that history.retention keeps as well"
    add("--location", metavar="PATH_OR_SCHEMA", help=location_help)
    add("--most", type=_above_zero, default=4_000, metavar="CHARACTERS", help="most of a key or value (4000)")
    add("--json", action="store_true", help="print one JSON document, for programs")


def add_record(verb: ArgumentParser) -> None:
    """Add the options that name a record."""
    add = verb.add_argument
    add("--topic", required=True, help="topic of the record")
    add("--partition", required=True, type=not_negative, metavar="NUMBER", help="its partition")
    add("--offset", required=True, type=not_negative, metavar="NUMBER", help="its offset")


def _add_redrive(verb: ArgumentParser) -> None:
    add = verb.add_argument
    _add_table(verb, required=False)
    _add_filters(verb)
    _add_execute(verb)
    add("--limit", type=_above_zero, metavar="NUMBER", help="send at most this number of letters")
    add("--again", action="store_true", help="also send letters that were redriven before")
    add("--rate", type=_rate, metavar="NUMBER", help="send at most this number of letters a second")
    add("--to-topic", metavar="TOPIC", help="send to this topic; default: the letter's own topic and partition")
    add("--bootstrap-server", metavar="HOST:PORT", help="the Kafka cluster of the topics ...")
    add("--topic-table", metavar="PATH_OR_NAME", help="... or the Delta table of the topics")
    add("--kafka-option", action="append", default=[], metavar="KEY=VALUE", help="a Kafka client setting; repeatable")
    add("--config", metavar="FILE", help="the TOML file of the run: its topics, Kafka settings and dead-letter table")
    add("--timeout", type=_above_zero, default=30_000, metavar="MS", help="longest wait for the cluster (30000)")


def _add_purge(verb: ArgumentParser) -> None:
    _add_table(verb, required=True)
    _add_filters(verb)
    _add_redriven(verb)
    _add_execute(verb)


def _add_table(verb: ArgumentParser, *, required: bool) -> None:
    verb.add_argument(
        "--table",
        required=required,
        metavar="PATH_OR_NAME",
        help="the dead-letter table (a name of the catalog starts Spark)",
    )


def _add_filters(verb: ArgumentParser) -> None:
    add = verb.add_argument
    add("--group", help="only letters of this group")
    add(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:0,1,2]",
        help="only letters of these topics or partitions; repeatable",
    )
    add("--offsets", metavar="FIRST[-LAST]", help="only letters of these offsets")
    add("--reason", metavar="TEXT", help="only letters with this text in the reason")
    add("--error", metavar="TEXT", help="only letters with this text in the error")
    add("--header", metavar="NAME[=VALUE]", help="only letters with this header")
    add("--since", metavar="YYYY-MM-DDThh:mm:ss.sss", help="only letters archived at this time or later (UTC)")
    add("--until", metavar="YYYY-MM-DDThh:mm:ss.sss", help="only letters archived before this time (UTC)")
    verb.set_defaults(redriven=False, not_redriven=False)


def _add_redriven(verb: ArgumentParser) -> None:
    done = verb.add_mutually_exclusive_group()
    done.add_argument("--redriven", action="store_true", help="only letters that were redriven")
    done.add_argument("--not-redriven", action="store_true", help="only letters that were not redriven")


def _add_execute(verb: ArgumentParser) -> None:
    verb.add_argument("--all", action="store_true", help="all letters; only without a filter")
    changes = verb.add_mutually_exclusive_group()
    changes.add_argument("--dry-run", action="store_true", help="show what would be done, change nothing (the default)")
    changes.add_argument("--execute", action="store_true", help="do it")


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
