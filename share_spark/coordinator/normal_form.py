"""When two durable states mean the same (R66)."""

from __future__ import annotations

from collections.abc import Iterable

from share_spark.coordinator.combine import combine_batches
from share_spark.model.records import DeliveryState, StateBatch


def normal_form(start_offset: int, batches: Iterable[StateBatch]) -> tuple[int, tuple[StateBatch, ...]]:
    """The SPSO and the batches from there on, in the one form of all equivalent ones (R66).

    Nothing below the SPSO, the SPSO past final batches at the front, and no batch that states no more than a hole does
    (Available, count 0, R22).
    """
    settled = settled_start(start_offset, kept := combine_batches((), batches, start_offset))
    stated = (batch for batch in kept if batch.delivery_state != DeliveryState.AVAILABLE or batch.delivery_count > 0)
    return settled, tuple(batch for batch in stated if batch.first_offset >= settled)


def settled_start(start_offset: int, batches: Iterable[StateBatch]) -> int:
    """The SPSO past the final batches at the front, which a leader skips on loading (R15). ``batches``: ascending."""
    for first, last, delivery_state, _ in batches:
        if first != start_offset or not DeliveryState(delivery_state).is_final:
            break
        start_offset = last + 1
    return start_offset
