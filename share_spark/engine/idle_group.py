"""Taking over a group that no engine runs, without delivering anything, and a fresh snapshot of its state.

An engine that seems to be dead may be frozen, and wake up. Its appends to the state log do not count after the claim of
the group, but its output would: it looks for claims only after appends to the state log. So the claimer of a group
claims its sinks as well, in an engine's order: the group, then the sinks, and the journals are read last. What was not
committed by now never will be; what was has its entry in a journal, and is for the next engine, which judges it by the
last micro-batch that counts. So nothing is committed then.
"""

from __future__ import annotations

from typing import Protocol

from share_spark.engine.ports import ShareStateStore
from share_spark.partition import PartitionLimits


class LeftBehind(Protocol):
    """What engines of the group have left outside of the state log."""

    def claim_sinks(self, writer_epoch: int) -> None:
        """From now on older engines cannot write to any sink that one of them has claimed. Raises FencedError,
        SinkError, StateError."""
        ...

    def is_unfinished(self) -> bool:
        """Is there anything in a journal for the next engine to judge? Raises StateError."""
        ...


def claim_idle_sinks(left: LeftBehind, writer_epoch: int) -> bool:
    """After the claim of the group: claim its sinks as well. False: the next engine has work to finish first, and
    nothing may be committed.

    Raises FencedError, SinkError, StateError.
    """
    left.claim_sinks(writer_epoch)
    return not left.is_unfinished()


def snapshot_idle(store: ShareStateStore, left: LeftBehind, batch_id: int) -> int | None:
    """Claim the group and write a snapshot of each of its share-partitions: their number, None if work is left.

    Raises FencedError, SinkError, StateError.
    """
    if not claim_idle_sinks(left, store.claim().writer_epoch):
        return None
    summaries = store.load()
    # Nothing is decided, by whatever limits, and no time passes.
    store.advance({}, limits=PartitionLimits(), batch_id=batch_id, now_ms=store.last_time_ms)
    store.commit()
    return len(summaries)
