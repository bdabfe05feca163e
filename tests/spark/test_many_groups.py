"""Fifty groups in one state log, all at once: each finds what it committed, nothing of another group."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from share_spark.delta.location import Location
from share_spark.engine.step import PartitionInput, PartitionSummary
from share_spark.model.errors import FencedError
from share_spark.model.ids import NO_STAMP, BatchStamp, SharePartitionKey
from share_spark.model.requests import AcknowledgeType, AnsweredRange
from share_spark.partition import PartitionLimits
from share_spark.state.group_log import GroupLog
from share_spark.state.state_store import DeltaShareStateStore
from share_spark.state.state_view import read_state
from share_spark.state.tables import ensure_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS, MICRO_BATCHES, PARTITIONS = 50, 2, 2
TAKEN_OVER = range(0, GROUPS, 10)
"""Groups of which a second engine claims while the first one writes."""

TOPIC, TOPIC_ID = "orders", "AAAAAAAAAAAAAAAAAAAAAQ"


@dataclass(slots=True)
class Run:
    """One engine of a group: as many micro-batches as it gets through. ``summaries``: as its last commit left them."""

    store: DeltaShareStateStore
    summaries: dict[SharePartitionKey, PartitionSummary] = field(default_factory=dict)
    last: BatchStamp = NO_STAMP
    fenced: bool = False

    def work(self) -> None:
        try:
            self.store.claim()
            self.summaries, self.last = dict(self.store.load()), self.store.last_counted
            for batch_id in range(MICRO_BATCHES):
                self._micro_batch(batch_id)
        except FencedError:
            self.fenced = True

    def _micro_batch(self, batch_id: int) -> None:
        """Acquire ten records more of each share-partition than there were, and accept what was acquired before."""
        outcomes = self.store.advance(
            self._controls(batch_id), limits=PartitionLimits(), batch_id=batch_id, now_ms=1_000 + batch_id
        )
        self.store.commit()
        self.summaries |= {outcome.key: outcome.summary for outcome in outcomes}
        self.last = BatchStamp(self.store.log.writer_epoch, batch_id)

    def _controls(self, batch_id: int) -> Mapping[SharePartitionKey, PartitionInput]:
        partition_inputs = {}
        for partition in range(PARTITIONS):
            key = SharePartitionKey(self.store.log.group_id, TOPIC_ID, partition)
            end = self.summaries[key].end_offset if key in self.summaries else 0
            accepted = (AnsweredRange(end - 10, end - 1, AcknowledgeType.ACCEPT),)
            partition_inputs[key] = PartitionInput(
                topic=TOPIC,
                log_start_offset=0,
                end_offset=end + 10,
                initial_offset=0,
                acknowledged=accepted if batch_id else (),
                max_records=10,
            )
        return partition_inputs


def run_of(spark: SparkSession, location: Location, group: int, name: str) -> Run:
    log = GroupLog(spark=spark, location=location, group_id=f"group-{group:02}", run_id=f"{name}-{group:02}")
    store = DeltaShareStateStore(
        log=log,
        updates_per_snapshot=2,
    )
    return Run(store)


@pytest.mark.long
def test_fifty_groups_commit_to_one_log_at_once(spark: SparkSession, tmp_path: Path) -> None:
    location = Location.parse(str(tmp_path / "state"))
    ensure_tables(spark, location)
    firsts = [run_of(spark, location, group, "first") for group in range(GROUPS)]
    seconds = {group: run_of(spark, location, group, "second") for group in TAKEN_OVER}
    with ThreadPoolExecutor(GROUPS + len(seconds)) as engines:
        for done in [engines.submit(run.work) for run in (*firsts, *seconds.values())]:
            done.result()
    winners = [winner_of(first, seconds.get(group)) for group, first in enumerate(firsts)]
    for group, winner in list(enumerate(winners))[:: GROUPS // 10]:
        fresh = run_of(spark, location, group, "fresh").store
        assert fresh.claim().writer_epoch == winner.store.log.writer_epoch + 1
        # Locks of its own are no deadlines to an engine.
        assert windows(fresh.load()) == windows(winner.summaries)
        assert len(winner.summaries) == PARTITIONS
        assert (fresh.last_counted, fresh.last_time_ms) == (winner.last, 1_000 + MICRO_BATCHES - 1)
    # The rest in one read, since each claim and load of its own takes a second or two.
    expected = {key: summary[1:3] for winner in winners for key, summary in winner.summaries.items()}
    rows = read_state(spark, location).collect()
    found_rows = {SharePartitionKey(row.group_id, row.topic_id, row.partition): row for row in rows}
    assert {key: (row.start_offset, row.end_offset) for key, row in found_rows.items()} == expected
    alone = [row.acquired for row in rows if int(row.group_id[-2:]) not in TAKEN_OVER]
    assert alone == [10] * PARTITIONS * (GROUPS - len(TAKEN_OVER))


def windows(summaries: Mapping[SharePartitionKey, PartitionSummary]) -> dict[SharePartitionKey, tuple[object, ...]]:
    return {key: (*found[:3], found.by_state) for key, found in summaries.items()}


def winner_of(first: Run, second: Run | None) -> Run:
    """Of one group. Alone, it is never fenced; of two the higher epoch has got through all of its micro-batches."""
    assert second is not None or not first.fenced
    runs = [run for run in (first, second) if run is not None and not run.fenced]
    winner = max(runs, key=lambda run: run.store.log.writer_epoch)
    assert winner.last == (winner.store.log.writer_epoch, MICRO_BATCHES - 1)
    return winner
