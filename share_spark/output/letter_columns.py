"""The table of dead letters: its columns, and how it is recognized. No Spark."""

from __future__ import annotations

from collections.abc import Mapping

from share_spark.delta.table_kind import TableKind
from share_spark.engine.ports import RECORD_COLUMNS
from share_spark.model.errors import DeadLetterError

KIND = TableKind(name="dead_letters", text="dead-letter table", version=1)

WRITTEN_COLUMNS = (
    f"group_id string, {RECORD_COLUMNS}, delivery_count int, reason string, error string, archived_at timestamp"
)
"""The columns that engines write: the record as it was, and why it is here. ``error``: null for a plain reject."""

COLUMNS = f"{WRITTEN_COLUMNS}, corrected_value binary, redriven_at timestamp, redrive_id string"
"""All columns. Users set ``corrected_value`` in SQL; it is sent instead of ``value``, which stays as it was.
``redriven_at`` and ``redrive_id`` record that the letter was sent, and under which id."""


def _names(columns: str) -> list[str]:
    return [column.split(" ")[0] for column in columns.split(", ")]


WRITTEN_NAMES, COLUMN_NAMES = _names(WRITTEN_COLUMNS), _names(COLUMNS)

PROPERTIES = KIND.properties


def check_properties(place: str, properties: Mapping[str, str]) -> None:
    """Check that a table with these properties is one of dead letters that we can read. Raises DeadLetterError."""
    if (fault := KIND.fault(place, properties)) is not None:
        raise DeadLetterError(fault)
