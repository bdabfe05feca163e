"""The ages of the oldest unfinished records of share-partitions, for repeated looks: few records are requested each
time, and none twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from share_spark.admin.group_details import PartitionOffsets
from share_spark.admin.share_group_admin import GroupsLook

MOST_ASKED = 50
"""The most records of a group that one look requests, as a broker may send up to 1 MB for each. The greatest lags come
first; a partition that stands still is known then, and makes room for others."""


@dataclass(slots=True)
class RecordAges:
    """The ages of one group. Kept is when the record at a start offset was written, while the offset stays."""

    _written_ms: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def ages_ms(self, look: GroupsLook, rows: Sequence[PartitionOffsets], now_ms: int) -> dict[tuple[str, int], int]:
        """Return the known ages, by topic and partition, of those with a lag. Raises TopicError."""
        behind = {(row.topic, row.partition): row for row in rows if row.lag}
        self._written_ms = {
            place: known
            for place, known in self._written_ms.items()
            if place in behind and behind[place].start_offset == known[0]
        }
        new = sorted(
            (row for place, row in behind.items() if place not in self._written_ms), key=lambda row: -(row.lag or 0)
        )
        for place, age_ms in look.lag_ms(new[:MOST_ASKED]).items():
            self._written_ms[place] = behind[place].start_offset, now_ms - age_ms
        return {place: max(0, now_ms - written_ms) for place, (_, written_ms) in self._written_ms.items()}
