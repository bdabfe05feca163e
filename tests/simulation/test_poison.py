"""What crashes cost, in groups of up to two million records: those that no record has caused, and those that one record
causes each time that it is handled."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from tests.simulation.ranges import Blow, GroupRanges, Holding, Strike

SHAPES = [(50, 20), (200, 10), (1_000, 2), (100, 2_000), pytest.param(1_000, 2_000, marks=pytest.mark.long)]
"""(share-partitions, records of each)."""

BLOWS: dict[str, Callable[[int], Blow]] = {
    "before the handler": lambda _: Blow(),
    "in a record": lambda records: Blow(after=records // 3, inside=True),
    "in four records": lambda records: Blow(after=records // 13, inside=True, tasks=4),
    "after the handler": lambda records: Blow(after=records),
}


def once(blow: Callable[[int], Blow]) -> Strike:
    """The first delivery."""
    left = [1]

    def strike(holding: Holding) -> Blow | None:
        left[0] -= 1
        return blow(holding.records) if left[0] == 0 else None

    return strike


@pytest.mark.parametrize("leaves_traces", [True, False])
@pytest.mark.parametrize("blow", BLOWS)
@pytest.mark.parametrize(("partitions", "records"), SHAPES)
def test_a_crash_that_no_record_has_caused_costs_three_micro_batches(
    partitions: int, records: int, blow: str, leaves_traces: bool
) -> None:
    """However many share-partitions there are, and whether or not it is known what has run."""
    calm = GroupRanges(partitions=partitions, records=records)
    calm.work_off()
    struck = GroupRanges(partitions=partitions, records=records, strike=once(BLOWS[blow]), leaves_traces=leaves_traces)
    struck.work_off()
    assert struck.deaths == 1
    assert len(struck.searches) <= len(calm.searches) + 3
    assert struck.dead == []
    assert (struck.accepted == 1).all()
    assert struck.highest_count == (1 if leaves_traces and blow == "before the handler" else 2)


def poison(partition: int, offset: int, tasks: int = 1) -> Strike:
    """Kills the engine that handles it, each time, while other tasks are in other records."""

    def strike(holding: Holding) -> Blow | None:
        position = holding.position(partition, offset)
        if position is None:
            return None
        running = 1 if holding.in_turn else tasks
        return Blow(after=position % -(-holding.records // running), inside=True, tasks=running)

    return strike


def dies_alone(group: GroupRanges, partition: int, offset: int) -> None:
    """It is the only dead letter, and all others were accepted, once."""
    group.work_off()
    assert [letter[:3] for letter in group.dead] == [(partition, offset, offset)]
    wanted = np.ones_like(group.accepted)
    wanted[partition, offset] = 0
    assert (group.accepted == wanted).all()


def most_searches(records: int, limit: int) -> float:
    return 3 * math.cbrt(records) + 5 + limit


POISONED = [(1, 1_000), (20, 50), (1, 100_000), (50, 2_000)]


@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize("place", [0.0, 0.618, 1.0])
@pytest.mark.parametrize(("partitions", "records"), POISONED)
@pytest.mark.parametrize("limit", [2, 3, 5, 10, 25])
def test_a_record_that_kills_engines_which_leave_traces_is_archived_by_the_death_after_as_many_as_the_limit(
    limit: int, partitions: int, records: int, place: float, tasks: int
) -> None:
    at, offset = round(place * (partitions - 1)), round(place * (records - 1))
    group = GroupRanges(partitions=partitions, records=records, limit=limit, strike=poison(at, offset, tasks))
    dies_alone(group, at, offset)
    assert group.deaths == 1 + limit, "the first one only accuses it"
    assert sum(group.searches) <= 4 + limit


@pytest.mark.parametrize("place", [0.0, 0.618, 1.0])
@pytest.mark.parametrize(("partitions", "records"), POISONED)
@pytest.mark.parametrize("limit", [2, 3, 5, 10, 25])
def test_a_record_that_kills_engines_which_leave_no_traces_is_found(
    limit: int, partitions: int, records: int, place: float
) -> None:
    at, offset = round(place * (partitions - 1)), round(place * (records - 1))
    group = GroupRanges(
        partitions=partitions, records=records, limit=limit, strike=poison(at, offset), leaves_traces=False
    )
    dies_alone(group, at, offset)
    assert group.deaths == 4 + limit, "four find it"
    assert sum(group.searches) <= most_searches(partitions * records, limit)


@pytest.mark.parametrize("leaves_traces", [True, False])
def test_other_records_go_on_while_one_is_searched(leaves_traces: bool) -> None:
    """Producers write all the time: every second micro-batch is theirs."""

    busy = [0]

    def produce(group: GroupRanges) -> None:
        if not group.dead:
            group.produce(1)
            busy[0] = len(group.searches)

    group = GroupRanges(
        partitions=5,
        records=2_000,
        limit=3,
        strike=poison(3, 1_234),
        leaves_traces=leaves_traces,
        before_micro_batch=produce,
    )
    dies_alone(group, 3, 1_234)
    assert group.deaths == (4 if leaves_traces else 7)
    assert not any(one and other for one, other in pairwise(group.searches[: busy[0]]))
    assert sum(group.searches) <= most_searches(group.accepted.size, 3)


def at_random(rng: Random, crashes: int, span: int) -> Strike:
    """Engines die at moments that have nothing to do with records: after up to ``span`` handled ones, wherever that
    is; in a record or between two. Not in one that runs by itself since an engine has died in it: that has a chance of
    one in thousands, and would be held against it."""
    left = [crashes, rng.randrange(span)]

    def strike(holding: Holding) -> Blow | None:
        if left[0] == 0 or left[1] >= holding.records or holding.in_turn:
            left[1] -= holding.records
            return None
        blow = Blow(after=left[1], inside=rng.random() < 0.8)
        left[:] = left[0] - 1, rng.randrange(span)
        return blow

    return strike


@pytest.mark.parametrize("leaves_traces", [True, False])
@pytest.mark.parametrize("limit", [2, 5])
@pytest.mark.parametrize("seed", range(10))
def test_ten_crashes_at_random_moments_archive_nothing(seed: int, limit: int, leaves_traces: bool) -> None:
    group = GroupRanges(
        partitions=3,
        records=1_000,
        limit=limit,
        strike=at_random(Random(seed), 10, span=3_000),
        leaves_traces=leaves_traces,
        before_micro_batch=lambda group: group.produce(50 * (group.deaths < 10)),
    )
    while group.deaths < 10:
        group.work_off()
    group.work_off()
    assert group.dead == []
    assert (group.accepted == 1).all()


def test_a_supervisor_that_starts_a_broken_query_again_and_again_uses_nothing_up() -> None:
    """Twenty starts, at the smallest limit; each delivery fails before any handler."""
    left = [20]

    def strike(_holding: Holding) -> Blow | None:
        left[0] -= 1
        return Blow(fault=True) if left[0] >= 0 else None

    group = GroupRanges(partitions=10, records=1_000, limit=2, strike=strike)
    group.work_off()
    assert group.faults == 20
    assert group.highest_count == 1
    assert group.dead == []
    assert (group.accepted == 1).all()
