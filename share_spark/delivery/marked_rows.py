"""Rows that come to a worker and must not be delivered: those with a delivery count below 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def marked(batch: pa.RecordBatch, rows: Sequence[bool]) -> pa.RecordBatch:
    """Mark these rows: -1."""
    if not any(rows):
        return batch
    at = batch.schema.get_field_index("delivery_count")
    counts = np.where(rows, -1, batch.column(at).to_numpy()).astype(np.int32)
    return batch.set_column(at, batch.schema.field(at), pa.array(counts))


def parted(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return (rows to deliver, rows with a mark)."""
    is_marked = batch.column("delivery_count").to_numpy(zero_copy_only=False) < 0
    if not is_marked.any():
        return batch, batch.slice(0, 0)
    return batch.filter(pa.array(~is_marked)), batch.filter(pa.array(is_marked))


def unmarked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows to deliver."""
    return parted(batch)[0]
