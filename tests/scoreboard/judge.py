"""The judge: what became of the records, from what the service has seen and what is in the tables.

It knows nothing of the system that it judges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.scoreboard.records import FAILED, LIMIT, OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that has reached the service. ``told``: the delivery count that its caller gave. ``status``: the answer,
    None if the caller was dead when it was due."""

    number: int
    told: int
    status: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What went wrong, of ``records``.

    ``lost``: records that have neither a row nor a letter. ``doubled``: rows and letters beyond the first one of a
    record. ``called_again``: calls for a record that the service had done before. ``wrong_counts``: calls whose
    delivery count was not the number of calls for this record. ``innocent_letters``: dead letters of records that had
    failed fewer times than the limit. ``cut``: calls that a kill ended, which no system can avoid.
    """

    records: int
    calls: int
    cut: int
    lost: int
    doubled: int
    called_again: int
    wrong_counts: int
    innocent_letters: int

    FAULTS = ("lost", "doubled", "called_again", "wrong_counts", "innocent_letters")


def judge(records: int, calls: Sequence[Call], rows: Iterable[int], letters: Iterable[int]) -> Score:
    """Compare. ``calls``: in the order of their arrival. ``rows``, ``letters``: the numbers of the records in the
    tables, each as often as it is there. The records are numbered from 0."""
    letters = list(letters)
    outcomes = Counter(rows)
    outcomes.update(letters)
    failures = Counter(call.number for call in calls if call.status == FAILED)
    return Score(
        records=records,
        calls=len(calls),
        cut=sum(call.status is None for call in calls),
        lost=sum(number not in outcomes for number in range(records)),
        doubled=sum(count - 1 for count in outcomes.values()),
        called_again=_called_again(calls),
        wrong_counts=_wrong_counts(calls),
        innocent_letters=sum(failures[number] < LIMIT for number in letters),
    )


def _called_again(calls: Iterable[Call]) -> int:
    done: set[int] = set()
    again = 0
    for call in calls:
        again += call.number in done
        if call.status == OK:
            done.add(call.number)
    return again


def _wrong_counts(calls: Iterable[Call]) -> int:
    seen: defaultdict[int, int] = defaultdict(int)
    wrong = 0
    for call in calls:
        seen[call.number] += 1
        wrong += call.told != seen[call.number]
    return wrong
