"""What may be said to `share-spark dead-letters`. Starts nothing."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from share_spark.cli.written_values import not_negative

_FILTERS = ("group", "topic", "offsets", "reason", "error", "header", "since", "until", "redriven", "not_redriven")


def add_dead_letters(command: ArgumentParser) -> None:
    """Its verbs."""
    verbs = command.add_subparsers(dest="verb", required=True, metavar="list, show, redrive or purge")
    for name, help_text, add_options in (
        ("list", "letters by their error (numbers and ids in it count as #), or one by one; no JVM", _add_list),
        ("show", "all that there is of one letter; no JVM", _add_show),
        ("redrive", "send letters again, as new records", _add_redrive),
        ("purge", "delete letters", _add_purge),
    ):
        verb = verbs.add_parser(name, help=help_text, allow_abbrev=False)
        add_options(verb)
        verb.add_argument("--debug", "-v", action="store_true", help="tracebacks and more log lines")


def has_filter(given: Namespace) -> bool:
    """Was anything said of which letters are meant?"""
    return any(getattr(given, name) for name in _FILTERS)


def _add_list(verb: ArgumentParser) -> None:
    _add_table(verb, required=True)
    _add_filters(verb)
    _add_redriven(verb)
    verb.add_argument("--letters", action="store_true", help="one by one, the newest first")
    verb.add_argument("--limit", type=_above_zero, metavar="NUMBER", help="so many lines at most")
    verb.add_argument("--json", action="store_true", help="for programs: one JSON document")


def _add_show(verb: ArgumentParser) -> None:
    add = verb.add_argument
    _add_table(verb, required=True)
    add("--group", help="of this group only; default: of each group that has one")
    add_record(verb)
    location_help = "of the state tables: each delivery, too, as far as history.retention keeps it"
    add("--location", metavar="PATH_OR_SCHEMA", help=location_help)
    add("--most", type=_above_zero, default=4_000, metavar="CHARACTERS", help="of a key or value (4000)")
    add("--json", action="store_true", help="for programs: one JSON document")


def add_record(verb: ArgumentParser) -> None:
    """Which record."""
    add = verb.add_argument
    add("--topic", required=True, help="topic of the record")
    add("--partition", required=True, type=not_negative, metavar="NUMBER", help="its partition")
    add("--offset", required=True, type=not_negative, metavar="NUMBER", help="its offset")


def _add_redrive(verb: ArgumentParser) -> None:
    add = verb.add_argument
    _add_table(verb, required=False)
    _add_filters(verb)
    _add_execute(verb)
    add("--limit", type=_above_zero, metavar="NUMBER", help="so many letters at most")
    add("--again", action="store_true", help="also those that were sent again already")
    add("--rate", type=_rate, metavar="NUMBER", help="at most so many letters a second")
    add("--to-topic", metavar="TOPIC", help="to this topic; default: to the letter's own topic and partition")
    add("--bootstrap-server", metavar="HOST:PORT", help="the Kafka cluster of the topics ...")
    add("--topic-table", metavar="PATH_OR_NAME", help="... or the Delta table of the topics")
    add("--kafka-option", action="append", default=[], metavar="KEY=VALUE", help="a Kafka client setting; repeatable")
    add("--config", metavar="FILE", help="the TOML file of the run: its topics, Kafka settings and dead-letter table")
    add("--timeout", type=_above_zero, default=30_000, metavar="MS", help="how long the cluster may take (30000)")


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
        help="of these topics, or partitions; repeatable",
    )
    add("--offsets", metavar="FIRST[-LAST]", help="from these offsets")
    add("--reason", metavar="TEXT", help="with this in the reason")
    add("--error", metavar="TEXT", help="with this in the error")
    add("--header", metavar="NAME[=VALUE]", help="with such a header")
    add("--since", metavar="YYYY-MM-DDThh:mm:ss.sss", help="archived then or later (UTC)")
    add("--until", metavar="YYYY-MM-DDThh:mm:ss.sss", help="archived before (UTC)")
    verb.set_defaults(redriven=False, not_redriven=False)


def _add_redriven(verb: ArgumentParser) -> None:
    done = verb.add_mutually_exclusive_group()
    done.add_argument("--redriven", action="store_true", help="that were sent again")
    done.add_argument("--not-redriven", action="store_true", help="that were not")


def _add_execute(verb: ArgumentParser) -> None:
    verb.add_argument("--all", action="store_true", help="all letters, where nothing else is said")
    changes = verb.add_mutually_exclusive_group()
    changes.add_argument("--dry-run", action="store_true", help="only say what would be done (the default)")
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
