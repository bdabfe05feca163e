"""Order by key, as far as a share-partition knows of it: it knows offsets and no keys.

A record holds back its successors of the same key until it is finished. Which records have the same key is seen where
they are read, so a delivery in order of keys is told of all that is not finished before the records that it has:

    window      SPSO [V1, delayed][Q1 acquired now][Q1 of another][D1][Q1 acquired now]|SPEO
    earlier          [-----------]                 [-------------]

It reads these as well, does not deliver them, and gives back unentered what comes after them and has their key.
"""

from __future__ import annotations

from collections.abc import Sequence

from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import AcquiredRange
from share_spark.partition.runs import Runs, below_offset, chosen, from_offset
from share_spark.partition.state import SharePartition


def unfinished_before(state: SharePartition, acquired: Sequence[AcquiredRange], member_id: str) -> Runs:
    """Return what of the window is not finished, lies below the last of ``acquired``, and is not held by the member.

    It is delayed, locked by another member, or left out of a search. What the member holds it has, in order.
    ``acquired``: by the member, ascending, at least one; ``state`` is the one after it.
    """

    def is_open(run: InFlightBatch) -> bool:
        is_held = run.delivery_state is DeliveryState.ACQUIRED and run.member_id == member_id
        return not run.delivery_state.is_final and not is_held

    open_runs = chosen(state.in_flight, is_open)
    # Below the SPSO there may be locks of others, but no records in the log.
    return from_offset(below_offset(open_runs, acquired[-1].last_offset + 1), state.start_offset)
