"""The remaining records of a task that runs again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.ledger import LedgerEntries
from share_spark.delivery.marked_rows import marked


def unknown_records(
    batches: Iterable[pa.RecordBatch],
    entries: LedgerEntries,
    known: npt.NDArray[np.bool_],
    finished: npt.NDArray[np.bool_],
) -> Iterator[pa.RecordBatch]:
    """Yield the records that no earlier run has entered, in batches that are not empty. Records that were entered and
    are not ``finished`` are there as well, with a mark (``marked_rows``)."""
    if not known.any():
        yield from (batch for batch in batches if batch.num_rows)
        return
    seen = {place: not is_finished for place, is_finished in zip(_places(entries, known), finished[known], strict=True)}
    only = entries.topics[0] if len(entries.topics) == 1 else None
    for batch in batches:
        names = batch.column("topic").to_pylist() if "topic" in batch.schema.names else [only] * batch.num_rows
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset"))
        marks = [seen.get(place) for place in zip(names, *columns, strict=True)]
        wanted = pa.array([mark is not False for mark in marks], pa.bool_())
        rest = marked(batch, [mark is True for mark in marks]).filter(wanted)
        if rest.num_rows:
            yield rest


def _places(entries: LedgerEntries, rows: npt.NDArray[np.bool_]) -> Iterator[tuple[str, int, int]]:
    """Return (topic, partition, offset) of these rows."""
    topics = (entries.topics[at] for at in entries.topic[rows].tolist())
    return zip(topics, entries.partition[rows].tolist(), entries.offset[rows].tolist(), strict=True)
