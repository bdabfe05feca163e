"""`share-spark dead-letters`: list, show, redrive, purge. A change is shown first, and made with `--execute` only.
Reading starts no JVM, except for a table that is a name of the catalog."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from share_spark.cli.arguments import CHOOSE_ONE, parsed, topic_place
from share_spark.cli.command import NOT_DONE, command_session
from share_spark.cli.config_files import ConfigFile, read_config
from share_spark.cli.dead_letter_arguments import has_filter
from share_spark.cli.letter_views import grouped_view, letter_json, letter_view, letters_view
from share_spark.cli.written_values import offset_range, past_moment, topics_named
from share_spark.delta.location import Location
from share_spark.model.errors import ConfigError, DeadLetterError
from share_spark.spark.public_files import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_spark.admin.letters import Letter, LetterFilter
    from share_spark.admin.redrive import RedriveProgress, RedriveTarget
    from share_spark.kafka.options import KafkaOptions

_PROGRESS_S = 1.0


def run_dead_letters(arguments: Sequence[str]) -> int:
    """Run `share-spark dead-letters`. Raises ConfigError, DeadLetterError, TopicError."""
    given = parsed(arguments)
    verbs = {"list": _listed, "show": _shown, "redrive": _redriven, "purge": _purged}
    print(verbs[given.verb](given), flush=True)
    return 0


def letter_filter(given: Namespace) -> LetterFilter:
    """Return the filter of the options. Raises ConfigError."""
    from share_spark.admin.letters import LetterFilter

    since, until = (None if text is None else past_moment(text) for text in (given.since, given.until))
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"--since {given.since} is not before --until {given.until}")
    return LetterFilter(
        group=given.group,
        topics=topics_named(given.topic),
        offsets=None if given.offsets is None else offset_range(given.offsets),
        reason=given.reason,
        error=given.error,
        header=None if given.header is None else _header(given.header),
        since=since,
        until=until,
        redriven=True if given.redriven else False if given.not_redriven else None,
    )


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise ConfigError(f"--header {text!r} has no name")
    return name, value.encode() if equals else None


def _listed(given: Namespace) -> str:
    from share_spark.admin.dead_letters import DeadLetters

    where = letter_filter(given)
    with _session(is_needed=_is_name(given.table)) as spark:
        letters = DeadLetters(given.table, spark)
        if given.letters:
            return letters_view(letters.letters(where, given.limit), as_json=given.json)
        return grouped_view(letters.by_error(where)[: given.limit], as_json=given.json)


def _shown(given: Namespace) -> str:
    from share_spark.admin.dead_letters import DeadLetters
    from share_spark.admin.letters import LetterFilter

    where = LetterFilter(
        group=given.group, topics={given.topic: [given.partition]}, offsets=(given.offset, given.offset)
    )
    with _session(is_needed=_is_name(given.table)) as spark:
        found = DeadLetters(given.table, spark).letters(where)
    if not found:
        raise DeadLetterError(f"{given.table} has no letter of {given.topic}:{given.partition}:{given.offset}")
    histories = _histories(given.location, found) if given.location is not None else {}
    if given.json:
        return letter_json(found, histories)
    return "\n\n".join(
        "\n".join([letter_view(letter, given.most), *_indented(histories.get(letter.group_id, ()))]) for letter in found
    )


def _histories(location: str, letters: Sequence[Letter]) -> Mapping[str, Sequence[str]]:
    """Return, by group, each delivery as lines of text."""
    from share_spark.audit.record_events import history_lines
    from share_spark.cli.histories import RecordOfGroup, histories_of

    records = [RecordOfGroup(one.group_id, one.topic, one.partition, one.offset) for one in letters]
    return {found.group_id: history_lines(found) for found in histories_of(location, records)}


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in lines)


def _purged(given: Namespace) -> str:
    from share_spark.admin.dead_letters import DeadLetters

    _require_filter(given)
    where = letter_filter(given)
    if not given.execute:
        with _session(is_needed=_is_name(given.table)) as spark:
            found = DeadLetters(given.table, spark).count(where)
        note = f" ({_topic_counts(found.by_topic)}; redriven: {found.redriven:,})" if found.letters else ""
        return f"{_letters(found.letters)} would be deleted{note}.{NOT_DONE}"
    with _session(is_needed=not _is_local(given.table)) as spark:
        return f"{_letters(DeadLetters(given.table, spark).purge(where))} deleted."


def _redriven(given: Namespace) -> str:
    from share_spark.admin.dead_letters import DeadLetters

    _require_filter(given)
    where, order = letter_filter(given), RedriveOrder.of(given)
    chosen = {"again": given.again, "to_topic": given.to_topic, "limit": given.limit}
    if not given.execute:
        with _session(is_needed=_is_name(order.table)) as spark:
            return _redrive_plan(order, where, chosen, spark)
    places = filter(None, (order.table, order.topic_table))
    with _session(is_needed=not all(map(_is_local, places))) as spark:
        report = DeadLetters(order.table, spark).redrive(
            order.target(spark), where, **chosen, rate_per_s=given.rate, progress=Progress()
        )
    left = report.sent - report.marked
    note = f"; {_letters(left)} changed, deleted or marked by others meanwhile" if left else ""
    return f"{_letters(report.sent)} sent again, {report.marked:,} marked as redriven{note}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveOrder:
    """The table of a redrive, and the place of its topics: one of ``kafka`` and ``topic_table``."""

    table: str
    kafka: KafkaOptions | None
    topic_table: str | None
    timeout_ms: int

    @classmethod
    def of(cls, given: Namespace) -> RedriveOrder:
        """Return the order: command line over configuration file. Raises ConfigError."""
        from share_spark.admin.redrive import check_rate

        check_rate(given.rate)
        file = read_config(given.config) if given.config else ConfigFile()
        table = given.table or file.job.get("dead_letter")
        if table is None or (given.table is None and "bootstrap_server" in file.job and "/" not in table):
            raise ConfigError("--table is missing" + ("" if table is None else f": {table!r} is a topic"))
        place = topic_place(given)
        if place == (None, None):
            raise ConfigError(CHOOSE_ONE)
        return cls(table=table, kafka=place.kafka, topic_table=place.topic_table, timeout_ms=given.timeout)

    def target(self, spark: SparkSession | None = None) -> RedriveTarget:
        """Return the target. ``spark``: for sending to a topic table."""
        from share_spark.admin.redrive_targets import KafkaTopics, TableTopics

        if self.kafka is not None:
            return KafkaTopics(self.kafka, self.timeout_ms)
        assert self.topic_table is not None, "one of them is there"
        return TableTopics(self.topic_table, spark)


def _redrive_plan(
    order: RedriveOrder, where: LetterFilter, chosen: Mapping[str, Any], spark: SparkSession | None
) -> str:
    from share_spark.admin.dead_letters import DeadLetters

    letters = DeadLetters(order.table, spark)
    plan = letters.plan_redrive(where, **chosen)
    if plan.total and (spark is not None or order.topic_table is None or _is_local(order.topic_table)):
        plan.check_target(order.target(spark))
    already = 0 if chosen["again"] else letters.count(where).redriven
    skipped = f" {_letters(already)} redriven already, --again sends them, too." if already else ""
    to = f" to {', '.join(sorted(plan.topics))}" if plan.total else ""
    return f"{_letters(plan.total)} would be sent again{to}.{skipped}{NOT_DONE}"


def _require_filter(given: Namespace) -> None:
    if has_filter(given) == given.all:
        raise ConfigError(f"Option [{given.verb}] takes options that say which letters, or [all]")


@contextmanager
def _session(*, is_needed: bool) -> Iterator[SparkSession | None]:
    """Yield a session where Python alone cannot do it: look up a name of the catalog, write to a storage that is not
    local."""
    if not is_needed:
        yield None
    else:
        with command_session("share-spark dead-letters") as spark:
            yield spark


def _is_name(place: str) -> bool:
    return Location.parse(place).path is None


def _is_local(place: str) -> bool:
    path = Location.parse(place).path
    return path is not None and local_path(path) is not None


class Progress:
    """A line on stderr, at most once a second, and at the end."""

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def __call__(self, progress: RedriveProgress) -> None:
        """Print the progress; see ``DeadLetters.redrive``."""
        now_s = time.monotonic()
        if now_s - self._last_s >= _PROGRESS_S or progress.sent == progress.total:
            self._last_s = now_s
            print(f"share-spark: {progress.sent:,} of {progress.total:,} letters sent", file=sys.stderr, flush=True)


def _letters(number: int) -> str:
    return f"{number:,} letter{'' if number == 1 else 's'}"


def _topic_counts(by_topic: Mapping[str, int]) -> str:
    return ", ".join(f"{topic}: {number:,}" for topic, number in sorted(by_topic.items()))
