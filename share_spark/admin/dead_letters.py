"""``DeadLetters``: list the letters of a dead-letter table, delete them, and send them again. Reading needs no Spark
and no JVM, and works beside engines that write to the table; so do changes, on a local disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import nlargest
from typing import TYPE_CHECKING

from share_spark.admin.letters import Letter, LetterFilter
from share_spark.admin.letters_by_error import LettersByError, by_error
from share_spark.admin.redrive import (
    Redrive,
    RedrivePlan,
    RedriveProgress,
    RedriveReport,
    RedriveTarget,
    SendRate,
    check_rate,
    plan_redrive,
)
from share_spark.admin.stored_letters import StoredLetters
from share_spark.delta.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = LetterFilter()
"""A filter for every letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterCount:
    """The number of chosen letters, ``redriven`` of them, and the number per topic."""

    letters: int
    redriven: int
    by_topic: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The letters in ``table`` (a path; with ``spark`` also a name of the catalog, and any storage that Spark reaches).
    Each call reads the table anew.

    Raises ConfigError (a group, topic or partition that has no letter), DeadLetterError (no such table, one of another
    kind, or one that cannot be read or changed).
    """

    table: str
    spark: SparkSession | None = None

    def by_error(self, where: LetterFilter = ALL) -> list[LettersByError]:
        """Return the letters by error; errors that differ only in numbers and ids are one (``error_pattern``)."""
        return by_error(found.rows for found in self._checked(where).scan(where))

    def letters(self, where: LetterFilter = ALL, limit: int | None = None) -> list[Letter]:
        """Return the letters with all their columns, the newest first."""
        found = (one.letter for one in self._checked(where).letters(where))
        return sorted(found, key=_age, reverse=True) if limit is None else nlargest(limit, found, key=_age)

    def count(self, where: LetterFilter = ALL) -> LetterCount:
        """Return the number of letters that ``purge`` would delete."""
        by_topic: dict[str, int] = {}
        redriven = 0
        for _, rows in self._checked(where).scan(where):
            redriven += rows.num_rows - rows.column("redriven_at").null_count
            for pair in rows.group_by("topic").aggregate([([], "count_all")]).to_pylist():
                by_topic[pair["topic"]] = by_topic.get(pair["topic"], 0) + pair["count_all"]
        return LetterCount(letters=sum(by_topic.values()), redriven=redriven, by_topic=by_topic)

    def purge(self, where: LetterFilter) -> int:
        """Delete the letters, in one commit. Returns their number."""
        return self._checked(where).delete(where)

    def plan_redrive(
        self,
        where: LetterFilter = ALL,
        *,
        again: bool = False,
        to_topic: str | None = None,
        limit: int | None = None,
    ) -> RedrivePlan:
        """Return what ``redrive`` would send; send nothing. Redriven letters are left out unless ``again``."""
        stored = self._checked(where)
        return plan_redrive(stored, _to_be_sent(where, again=again), to_topic=to_topic, limit=limit)

    def redrive(
        self,
        target: RedriveTarget,
        where: LetterFilter = ALL,
        *,
        again: bool = False,
        to_topic: str | None = None,
        limit: int | None = None,
        rate_per_s: float | None = None,
        progress: Callable[[RedriveProgress], None] = lambda _: None,
    ) -> RedriveReport:
        """Send letters again, as new records of their own topics and partitions (or of ``to_topic``), and mark them as
        redriven. At least once, each with an id that stays the same (``redriven_record``). ``limit``: the most letters,
        ``rate_per_s``: the most letters a second, ``progress``: called about once a second.

        Raises ConfigError, DeadLetterError, TopicError; what was sent by then is marked if that is possible.
        """
        check_rate(rate_per_s)
        stored = self._checked(where)
        plan = plan_redrive(stored, _to_be_sent(where, again=again), to_topic=to_topic, limit=limit)
        marks = StoredLetters.open(Location.parse(self.table), self.spark)
        rate = SendRate(rate_per_s)
        return Redrive(plan=plan, stored=stored, marks=marks, target=target, rate=rate, progress=progress).run()

    def _checked(self, where: LetterFilter) -> StoredLetters:
        stored = StoredLetters.open(Location.parse(self.table), self.spark)
        stored.check_known(where)
        return stored


def _age(letter: Letter) -> tuple[datetime, str, int, int]:
    return letter.archived_at, letter.topic, letter.partition, letter.offset


def _to_be_sent(where: LetterFilter, *, again: bool) -> LetterFilter:
    return where if again or where.redriven is not None else replace(where, redriven=False)
