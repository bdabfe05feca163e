"""Groups over time, read again and again: what their logs say, and the lag as it was seen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from share_spark.admin.group_series import GroupSeries
from share_spark.admin.share_group_admin import GroupsLook
from share_spark.web.pictures import READ_FAULTS, GroupPicture, LagAt, Picture, SeriesPicture, fault_line, total_lag

_MOST_LAGS = 5_000
"""The number of looks whose lags are kept: some hours of an open page."""


@dataclass(slots=True)
class GroupTimes:
    """The groups of one state log over time."""

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
