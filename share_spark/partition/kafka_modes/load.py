"""A share-partition as a leader of Kafka loads it from the share coordinator (R29)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from share_spark.model.ids import OffsetRange, SharePartitionKey
from share_spark.model.records import StateBatch
from share_spark.partition.columns import in_best_form
from share_spark.partition.evolve import evolve
from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.state import FetchedBatch, KafkaPartition
from share_spark.partition.kip import durable_runs
from share_spark.partition.runs import holes, join
from share_spark.partition.state import SharePartition


def load_from_kip(
    *, key: SharePartitionKey, state_epoch: int, leader_epoch: int, start_offset: int, batches: Iterable[StateBatch]
) -> KafkaPartition:
    """Return what a leader of Kafka makes of the KIP's durable form, past final batches at the front (R15).

    Unlike ``from_kip`` of the core it remembers each batch as one that was fetched, and states no holes: from the first
    one on the window is a read gap. Raises StateError as ``from_kip`` does.
    """
    runs = durable_runs(key, start_offset, batches)
    hole = next(holes(runs, start_offset, runs[-1].last_offset), None) if runs else None
    loaded = KafkaPartition(
        state=SharePartition(
            key=key,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            snapshot_epoch=0,
            start_offset=start_offset,
            in_flight=in_best_form(join(runs)),
        ),
        fetched=tuple(FetchedBatch(run.first_offset, run.last_offset) for run in runs),
        read_gap=OffsetRange(hole[0], runs[-1].last_offset) if hole is not None else None,
    )
    draft = KafkaDraft(loaded)
    draft.advance_start()
    record = draft.record()
    state = loaded.state if record is None else evolve(loaded.state, record)
    return replace(loaded, state=state, fetched=tuple(draft.fetched))
