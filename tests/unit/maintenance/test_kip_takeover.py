"""Writes in the KIP's form, which has one count, to a state that has two."""

from __future__ import annotations

from dataclasses import replace

from share_spark.maintenance.kip_takeover import after_write, durable_state
from share_spark.model.records import DeliveryState, InFlightBatch, StateBatch
from share_spark.partition import SharePartition
from tests.support.share_partition import KEY


def test_a_write_leaves_what_is_excused_where_it_changes_nothing() -> None:
    """What it changes is counted by what it says."""
    runs = (InFlightBatch(first, first + 4, DeliveryState.AVAILABLE, 3, excused=2) for first in (0, 6, 12))
    live = SharePartition(key=KEY, start_offset=0, in_flight=tuple(runs))
    known = durable_state(live)
    written = [batch for batch in known.state_batches if batch.first_offset == 0]
    written += [StateBatch(6, 10, int(DeliveryState.AVAILABLE), 4), StateBatch(12, 16, int(DeliveryState.AVAILABLE), 3)]
    after = after_write(live, replace(known, state_batches=tuple(written)))
    assert [(run.first_offset, run.delivery_count, run.excused) for run in after.in_flight] == [
        (0, 3, 2),
        (6, 4, 0),
        (12, 3, 2),
    ]
