"""The state log as older releases made it and wrote to it: without columns that came later."""

from __future__ import annotations

import pytest

from share_spark.state import log_rows, state_store, tables

LATER_COLUMNS = ("errors", "excused", "group_records")


def older_release(patch: pytest.MonkeyPatch) -> None:
    """Make and write the log without LATER_COLUMNS."""
    columns = [column for column in tables.LOG_COLUMNS.split(", ") if not column.startswith(LATER_COLUMNS)]
    patch.setattr(tables, "LOG_COLUMNS", ", ".join(columns))
    table = log_rows.record_table
    patch.setattr(state_store, "record_table", lambda *of: table(*of).select(log_rows.USUAL_SCHEMA.names))
