"""What a table of ours is for, and in which format: properties by which a reader knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NAME, _VERSION = "share_spark.table", "share_spark.format.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """``name``: as the property says it; ``text``: as messages do. ``version``: of the format, the newest that is
    known."""

    name: str
    text: str
    version: int

    @property
    def properties(self) -> dict[str, str]:
        """Of a new table."""
        return {_NAME: self.name, _VERSION: str(self.version)}

    def fault(self, place: str, properties: Mapping[str, str]) -> str | None:
        """Why a table with these properties is none that can be read, None if it is one."""
        if properties.get(_NAME) != self.name:
            return f"{place} is not a {self.text} of share_spark"
        version = properties.get(_VERSION, "0")
        if int(version) > self.version:
            return f"{place} was written by a newer share_spark (format {version}, this one reads up to {self.version})"
        return None
