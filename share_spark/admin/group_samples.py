"""The metrics of a group, from its details. Pure.

A value that is not known has no sample, so no alert of another meaning fires, and ``READ_FAILED`` has the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from share_spark.admin.group_details import GroupDetails, PartitionOffsets
from share_spark.admin.state_reader import Engine
from share_spark.metrics import location_definitions as all_metrics
from share_spark.metrics.definitions import Metric
from share_spark.model.records import DeliveryState
from share_spark.partition.runs import offsets_by_kind


class Sample(NamedTuple):
    """A metric's value. ``labels``: the values of ``group``, if the metric has it, and of its own labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def samples_of(details: GroupDetails, now_ms: int) -> Iterator[Sample]:
    """Yield the samples of the state, the log ends and the operators' settings of a group."""
    group_id = details.state.group_id
    if details.state.at_ms:
        yield Sample(all_metrics.COMMIT_AT, (group_id,), details.state.at_ms / 1_000)
    delayed = _delayed(details, now_ms)
    for topic, rows in by_topic(details.offsets).items():
        yield Sample(all_metrics.DELAYED, (group_id, topic), delayed.get(topic, 0))
        yield from _of_topic(group_id, topic, rows)
        paused = sum(details.operator_settings.pauses.holds(topic, row.partition, now_ms) for row in rows)
        yield Sample(all_metrics.PAUSED, (group_id, topic), paused)


def engine_samples(group_id: str, engine: Engine | None) -> Iterator[Sample]:
    """Yield the samples of the last engine's heartbeat."""
    end = engine.end if engine is not None else None
    is_running = engine is not None and end is None
    yield Sample(all_metrics.RUNNING, (group_id,), float(is_running))
    is_open = engine is not None and is_running and engine.beat.breaker_open_ms > 0
    yield Sample(all_metrics.BREAKER_OPEN, (group_id,), float(is_open))
    if end is not None:
        yield Sample(all_metrics.ENDED_AT, (group_id, end.kind.value), end.at_ms / 1_000)


def _of_topic(group_id: str, topic: str, rows: Sequence[PartitionOffsets]) -> Iterator[Sample]:
    for row in rows:
        if row.lag is not None:
            yield Sample(all_metrics.LAG, (group_id, topic, str(row.partition)), row.lag)
    for state in DeliveryState:
        offsets = sum(getattr(row, state.name.lower()) for row in rows)
        yield Sample(all_metrics.IN_FLIGHT, (group_id, topic, state.name.capitalize()), offsets)


def _delayed(details: GroupDetails, now_ms: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic, state in details.state.partitions.values():
        for run, offsets in offsets_by_kind(state.in_flight):
            if run.delivery_state is DeliveryState.AVAILABLE and (run.lock_deadline_ms or 0) > now_ms:
                found[topic] = found.get(topic, 0) + offsets
    return found


def oldest_samples(
    group_id: str, rows: Sequence[PartitionOffsets], ages_ms: Mapping[tuple[str, int], int]
) -> Iterator[Sample]:
    """Yield the greatest of ``ages_ms`` (by topic and partition) per topic; 0 where nothing is behind.
    A topic that has a lag and no known age has no sample."""
    for topic, some in by_topic(rows).items():
        known = [age for row in some if (age := ages_ms.get((topic, row.partition))) is not None]
        if known or all(row.lag == 0 for row in some):
            yield Sample(all_metrics.OLDEST, (group_id, topic), max(known, default=0) / 1_000)


def fault_samples(group_id: str, faults: Mapping[str, bool]) -> Iterator[Sample]:
    """Return for each part whether it could not be read."""
    return (Sample(all_metrics.READ_FAILED, (group_id, part), float(is_one)) for part, is_one in faults.items())


def by_topic(rows: Iterable[PartitionOffsets]) -> dict[str, list[PartitionOffsets]]:
    """Return ``rows``, which are sorted by topic, as a list for each."""
    return {topic: list(some) for topic, some in groupby(rows, lambda row: row.topic)}
