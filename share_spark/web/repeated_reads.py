"""Reads that pages repeat, and what is kept between them: a look at all groups, groups over time, dead letters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from share_spark.admin.group_series import GroupSeries
from share_spark.admin.letters_by_error import LettersByError
from share_spark.admin.recent_letters import RecentLetters
from share_spark.admin.share_group_admin import GroupsLook
from share_spark.web.pictures import (
    READ_FAULTS,
    ErrorPicture,
    GroupPicture,
    LagAt,
    LettersPicture,
    Picture,
    SeriesPicture,
    fault_line,
    total_lag,
)

Found = TypeVar("Found")

_SERVES_MS = 1_000
"""The time for which a look is shared."""

_MOST_LAGS = 5_000
"""The number of looks whose lags are kept: some hours of an open page."""

MOST_ERRORS = 100
"""The number of errors of a group that are shown: those with most letters."""

MOST_LETTERS, IN_REPORT = 50, 3
"""The number of newest letters of an error that are shown; and the number in a report, which has many errors."""

_WITH_LETTERS = 20
"""The number of errors of a group that are shown with letters in a report."""


@dataclass(slots=True)
class SharedLook(Generic[Found]):
    """A look that takes long, shared by all who ask within a second. Raises what ``look`` raises; then nothing is kept.
    ``clock``: milliseconds since the epoch. Not for several threads at a time."""

    look: Callable[[], Found]
    clock: Callable[[], int]
    _last: Found | None = None
    _looked_at_ms: int = 0

    def __call__(self) -> Found:
        """Return a result that is a second old at most."""
        now_ms = self.clock()
        if self._last is None or now_ms - self._looked_at_ms >= _SERVES_MS:
            self._last, self._looked_at_ms = self.look(), now_ms
        return self._last


@dataclass(slots=True)
class GroupTimes:
    """The groups of one state log over time: what their logs say, and the lag as it was seen."""

    _series: dict[str, GroupSeries] = field(default_factory=dict)
    _lags: dict[str, deque[LagAt]] = field(default_factory=dict)

    def picture(self, look: GroupsLook, group_id: str) -> SeriesPicture:
        """Return a group over time, as of ``look``."""
        lags = tuple(self._lags.get(group_id, ()))
        try:
            series = self._series.setdefault(group_id, GroupSeries(group_id))
            return SeriesPicture(micro_batches=series.read(look.reader), lags=lags)
        except READ_FAULTS as fault:
            del self._series[group_id]
            return SeriesPicture(lags=lags, fault=fault_line(fault))

    def note_lags(self, picture: Picture) -> None:
        """Keep the lags of a look for later pictures."""
        for group in picture.groups:
            if isinstance(group, GroupPicture):
                lags = self._lags.setdefault(group.group_id, deque(maxlen=_MOST_LAGS))
                lags.append(LagAt(picture.at_ms, total_lag(group.offsets)))


@dataclass(slots=True)
class LetterTables:
    """The tables of dead letters. ``table``: that of all groups; None: the one that the group's engine names."""

    table: str | None = None
    _recent: dict[str, RecentLetters] = field(default_factory=dict)

    def check(self) -> None:
        """Check that ``table`` can be read, if there is one. Raises as ``RecentLetters``."""
        if self.table is not None:
            self._letters_in(self.table).check()

    def errors(self, look: GroupsLook, group_id: str) -> LettersPicture | None:
        """Return the errors of a group without letters; None if no table is known."""
        table = self.table or look.reader.letter_table(group_id)
        if table is None:
            return None
        try:
            found = self._letters_in(table).by_error(group_id)
        except READ_FAULTS as fault:
            return LettersPicture(table=table, fault=fault_line(fault))
        shown = [ErrorPicture(error=error) for error in found.errors[:MOST_ERRORS]]
        return LettersPicture(table=table, errors=shown, more=len(found.errors) - len(shown), is_cut=found.is_cut)

    def in_report(self, look: GroupsLook, group_id: str) -> LettersPicture | None:
        """Return the errors of a group; the most frequent ones have some letters each."""
        found = self.errors(look, group_id)
        if found is None:
            return None
        with_letters = [self.of_error(found.table, one.error, IN_REPORT) for one in found.errors[:_WITH_LETTERS]]
        return replace(found, errors=[*with_letters, *found.errors[_WITH_LETTERS:]])

    def of_error(self, table: str, error: LettersByError, most: int = MOST_LETTERS) -> ErrorPicture:
        """Return one error of a group with its newest letters. Raises as ``RecentLetters``."""
        return ErrorPicture(error=error, letters=self._letters_in(table).letters(error, most))

    def _letters_in(self, table: str) -> RecentLetters:
        return self._recent.setdefault(table, RecentLetters(table))


def chosen(errors: Sequence[ErrorPicture], error_id: str) -> LettersByError | None:
    """Return the error of this id, None if it is gone."""
    return next((one.error for one in errors if one.error_id == error_id), None)
