"""Log rows for ``verify``: those that can be read as a record, and the reasons why others cannot.

``record_rows.records_in`` is for readers that trust the log; this module checks whether it can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, ShareRecord
from share_spark.state.record_rows import SNAPSHOT, records_in

_NEEDED = ("topic_id", "partition", "batch_id", "snapshot_epoch", "leader_epoch", "start_offset")
_WRITTEN_STATES = (DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


class LogEntry(NamedTuple):
    """A log row. ``record`` is None if it cannot be read; ``unreadable`` is then the reason."""

    key: SharePartitionKey
    topic: str
    batch_id: int
    record: ShareRecord | None
    unreadable: str | None


def entries_by_key(rows: pa.Table, group_id: str) -> dict[SharePartitionKey, list[LogEntry]]:
    """Return the entries of each share-partition, in row order. ``rows``: snapshots and updates of one group."""
    found: dict[SharePartitionKey, list[LogEntry]] = {}
    for entry in _entries(rows, group_id):
        found.setdefault(entry.key, []).append(entry)
    return found


def _entries(rows: pa.Table, group_id: str) -> Iterator[LogEntry]:
    faults = dict(_unreadable(rows))
    readable = pa.array([row not in faults for row in range(rows.num_rows)], pa.bool_())
    records = records_in(rows.filter(readable), group_id)
    columns = [rows.column(name).to_pylist() for name in ("topic", "topic_id", "partition", "batch_id")]
    for row, (topic, topic_id, partition, batch_id) in enumerate(zip(*columns, strict=True)):
        _, record = (None, None) if row in faults else next(records)
        yield LogEntry(SharePartitionKey(group_id, topic_id, partition), topic, batch_id, record, faults.get(row))


def _unreadable(rows: pa.Table) -> Iterator[tuple[int, str]]:
    """Yield (row, reason): a field is missing, or there is a state that is never written (R8)."""
    for name in _NEEDED:
        yield from ((row, f"{name} is missing") for row in _nulls(rows, name))
    kinds: list[Any] = rows.column("kind").to_pylist()
    yield from ((row, "state_epoch is missing") for row in _nulls(rows, "state_epoch") if kinds[row] == SNAPSHOT)
    batches = rows.column("state_batches").combine_chunks()
    states: list[Any] = pc.struct_field(pc.list_flatten(batches), "delivery_state").to_pylist()
    owners: list[Any] = pc.list_parent_indices(batches).to_pylist()
    for row, state in zip(owners, states, strict=True):
        if state not in _WRITTEN_STATES:
            yield row, f"unknown delivery state {state}"


def _nulls(rows: pa.Table, name: str) -> list[int]:
    found: Any = pc.indices_nonzero(pc.is_null(rows.column(name)))
    return [int(row) for row in found.to_pylist()]
