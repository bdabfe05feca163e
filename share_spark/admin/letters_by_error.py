"""Dead letters by their error: the number, the first and last time, and an example of each.

Errors that differ only in numbers or ids are one (``model.texts``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from share_spark.model.texts import error_pattern

_FIRST, _LAST, _COUNT, _REDRIVEN = "archived_at_min", "archived_at_max", "archived_at_count", "redriven_at_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersByError:
    """The letters of a group that have the same reason and, except for numbers and ids, the same ``error`` (None:
    without one). ``redriven``: how many of ``count``. ``first_seen``, ``last_seen``: when they were archived.
    ``topic``, ``partition``, ``offset``: those of the last one."""

    group_id: str
    reason: str
    error: str | None
    count: int
    redriven: int
    first_seen: datetime
    last_seen: datetime
    topic: str
    partition: int
    offset: int

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The values that its letters have in common."""
        return self.group_id, self.reason, self.error


def by_error(parts: Iterable[pa.Table]) -> list[LettersByError]:
    """Group all ``parts`` (``LetterFilter.columns``) together; the most frequent error comes first."""
    return together(one for part in parts for one in _of_part(part))


def together(counted: Iterable[LettersByError]) -> list[LettersByError]:
    """Join the groups of several parts, each error once; in the order of ``by_error``."""
    found: dict[tuple[str, str, str | None], LettersByError] = {}
    for one in counted:
        found[one.key] = _both(found[one.key], one) if one.key in found else one
    return sorted(found.values(), key=lambda one: (-one.count, one.group_id, one.reason, one.error or ""))


def _of_part(rows: pa.Table) -> Sequence[LettersByError]:
    latest_first = with_patterns(rows).sort_by([("archived_at", "descending"), ("offset", "descending")])
    measures: list[Any] = [("archived_at", how) for how in ("min", "max", "count")]
    example: list[Any] = [(name, "first") for name in ("topic", "partition", "offset")]
    grouped = latest_first.group_by(["group_id", "reason", "error"], use_threads=False)
    return [_summary(row) for row in grouped.aggregate([*measures, ("redriven_at", "count"), *example]).to_pylist()]


def with_patterns(rows: pa.Table) -> pa.Table:
    """Return the rows with ``error`` as its pattern, so that each error is one group, however many numbers it has."""
    errors = rows.column("error").to_pylist()
    patterns = pa.array([None if error is None else error_pattern(error) for error in errors], pa.string())
    return rows.set_column(rows.schema.get_field_index("error"), "error", patterns)


def _summary(row: dict[str, Any]) -> LettersByError:
    return LettersByError(
        group_id=row["group_id"],
        reason=row["reason"],
        error=row["error"],
        count=row[_COUNT],
        redriven=row[_REDRIVEN],
        first_seen=row[_FIRST],
        last_seen=row[_LAST],
        **{name: row[f"{name}_first"] for name in ("topic", "partition", "offset")},
    )


def _both(one: LettersByError, other: LettersByError) -> LettersByError:
    latest = max(one, other, key=lambda part: part.last_seen)
    return replace(
        latest,
        count=one.count + other.count,
        redriven=one.redriven + other.redriven,
        first_seen=min(one.first_seen, other.first_seen),
    )
