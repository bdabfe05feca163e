"""The persister of the replay: what a share coordinator holds after the writes a Kafka leader would have sent.

A write carries the SPSO from before the change and only what this one request changed, Acquired never (surprises 3 and
4). Acquisitions and moves of the log start write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from share_spark.coordinator import combine_batches
from share_spark.model.records import DeliveryState, InFlightBatch, StateBatch

ERROR_OF_FAILED_WRITE = {
    "NOT_COORDINATOR": "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_NOT_AVAILABLE": "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS": "COORDINATOR_NOT_AVAILABLE",
    "GROUP_ID_NOT_FOUND": "GROUP_ID_NOT_FOUND",
    "UNKNOWN_TOPIC_OR_PARTITION": "UNKNOWN_TOPIC_OR_PARTITION",
    "FENCED_LEADER_EPOCH": "NOT_LEADER_OR_FOLLOWER",
    "FENCED_STATE_EPOCH": "NOT_LEADER_OR_FOLLOWER",
}
"""How a leader answers a client whose write failed so (surprise 20); all else: UNKNOWN_SERVER_ERROR."""


class Coordinator:
    """Start offset and state batches of one share-partition."""

    def __init__(self, start_offset: int, batches: Iterable[Sequence[int]] = ()) -> None:
        self.mode = "ok"
        self.writes: list[list[object]] = []
        self.initialize(start_offset)
        self.batches: tuple[StateBatch, ...] = combine_batches((), [StateBatch(*batch) for batch in batches], -1)

    def initialize(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.batches = ()

    def write(self, start_offset: int, batches: Sequence[StateBatch]) -> str | None:
        """Take a write; the error for the client if the persister is to fail."""
        if not batches:
            return None
        self.writes.append([start_offset, [list(batch) for batch in batches]])
        if self.mode != "ok":
            return ERROR_OF_FAILED_WRITE.get(self.mode, "UNKNOWN_SERVER_ERROR")
        self.start_offset = start_offset
        self.batches = combine_batches(self.batches, batches, start_offset)
        return None


def changed_batches(before: Sequence[InFlightBatch], batches: Sequence[InFlightBatch]) -> list[StateBatch]:
    """What of a record's runs differs from the state before, Acquired left out: the content of Kafka's write."""
    durable = [run for run in batches if run.delivery_state is not DeliveryState.ACQUIRED]
    out: list[StateBatch] = []
    for run in durable:
        at = run.first_offset
        for old in before:
            if old.last_offset < at or old.first_offset > run.last_offset or old[2:4] != run[2:4]:
                continue
            if at < old.first_offset:
                out.append(StateBatch(at, old.first_offset - 1, int(run[2]), run[3]))
            at = old.last_offset + 1
        if at <= run.last_offset:
            out.append(StateBatch(at, run.last_offset, int(run[2]), run[3]))
    return out
