"""The purpose and the format of our tables: properties by which a reader knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NAME, _VERSION = "share_spark.table", "share_spark.format.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """A kind of table. ``name``: in the property; ``text``: in messages. ``version``: of the format, the newest that is
    known."""

    name: str
    text: str
    version: int

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {_NAME: self.name, _VERSION: str(self.version)}

    def fault(self, place: str, properties: Mapping[str, str]) -> str | None:
        """Return why a table with these properties cannot be read, None if it can."""
        if properties.get(_NAME) != self.name:
            return f"{place} is not a {self.text} of share_spark"
        version = properties.get(_VERSION, "0")
        if int(version) > self.version:
            return f"{place} was written by a newer share_spark (format {version}, this one reads up to {self.version})"
        return None
