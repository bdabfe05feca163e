"""Rows that come to a worker and must not be delivered.

They have a mark in the place of their delivery count, so that no record needs another column for it: a number below 0,
which also says for how long the record holds back its key.

    delivery_count   1    3    -1                 -5001
                     delivered not delivered      not delivered, nor its key for 5,000 ms at least

Only this module knows these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MARK = -1
"""The mark of a row that holds back nothing, or not for a known time."""

_MOST_WAIT_MS = 2**31 - 2
"""The longest wait that an int column can hold. A record that waits longer is held back again after these 24 days."""


def marks_of(waits_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the marks of records that hold back their keys for so long; 0 if that is not known."""
    return MARK - np.minimum(waits_ms, _MOST_WAIT_MS)


def waits_ms_of(counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Undo ``marks_of``: below 0 for rows without a mark."""
    return MARK - counts


def marked(batch: pa.RecordBatch, rows: Sequence[bool]) -> pa.RecordBatch:
    """Mark these rows."""
    if not any(rows):
        return batch
    at = batch.schema.get_field_index("delivery_count")
    counts = np.where(rows, MARK, batch.column(at).to_numpy()).astype(np.int32)
    return batch.set_column(at, batch.schema.field(at), pa.array(counts))


def parted(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return (rows to deliver, rows with a mark)."""
    is_marked = waits_ms_of(batch.column("delivery_count").to_numpy(zero_copy_only=False)) >= 0
    if not is_marked.any():
        return batch, batch.slice(0, 0)
    return batch.filter(pa.array(~is_marked)), batch.filter(pa.array(is_marked))


def unmarked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows to deliver."""
    return parted(batch)[0]
