"""Records as rows of JSON, for the notes of commits: the columns of ``record_rows`` as values. Pure.

For few ranges: a row is made in microseconds, where its Arrow columns take most of a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from share_spark.engine.attempts import EndedAttempt
from share_spark.model.records import ShareRecord, ShareSnapshot
from share_spark.state.record_rows import MARK_COLUMNS, RANGE_COLUMNS, RECORD_TYPE, SNAPSHOT, UPDATE, split_ranges

_FIELDS: Mapping[str, Sequence[str]] = {
    name: [field.name for field in RECORD_TYPE.field(name).type.value_type]
    for name in (*RANGE_COLUMNS, *MARK_COLUMNS, "ended", "errors")
}


def share_values(topic: str, record: ShareRecord, ended: Sequence[EndedAttempt] = ()) -> dict[str, Any]:
    """Return the row of a record, without columns that are null; see ``record_array``."""
    state = {"state_epoch": record.state_epoch} if isinstance(record, ShareSnapshot) else {}
    row = {
        "kind": SNAPSHOT if isinstance(record, ShareSnapshot) else UPDATE,
        "topic": topic,
        "topic_id": record.key.topic_id,
        "partition": record.key.partition,
        "snapshot_epoch": record.snapshot_epoch,
        **state,
        "leader_epoch": record.leader_epoch,
        "start_offset": record.start_offset,
    }
    lists = (*split_ranges(record.batches), ended, [one for one in ended if one.error is not None])
    return row | {
        column: [{name: getattr(item, name) for name in names} for item in some]
        for (column, names), some in zip(_FIELDS.items(), lists, strict=True)
    }
