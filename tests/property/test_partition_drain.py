"""Whatever state a leader takes over, a group that accepts all it gets works through the log to its end.

Nothing is lost, and nothing is given twice, also where the durable form has holes (R22), in every acquire mode.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_spark.model.errors import ErrorCode
from share_spark.model.records import StateBatch
from share_spark.model.requests import AcquireMode, LogBatch
from share_spark.partition import PartitionLimits, from_kip, has_available
from tests.support.share_partition import ACCEPT, KEY, Partition

pytestmark = pytest.mark.usefixtures("window_form")

LOG_END = 40


@st.composite
def durable(draw: st.DrawFn) -> tuple[int, list[StateBatch]]:
    """A start offset, and disjoint batches with holes between them."""
    start = at = draw(st.integers(0, 5))
    batches = []
    for hole, size, state in draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from([0, 2, 4])), max_size=4)
    ):
        at += hole
        batches.append(StateBatch(at, at + size - 1, state, 1))
        at += size
    return start, batches


@st.composite
def whole_log(draw: st.DrawFn) -> list[LogBatch]:
    """Log batches from 0 to the end, without natural gaps."""
    cuts = draw(st.sets(st.integers(1, LOG_END), max_size=12))
    edges = [0, *sorted(cuts), LOG_END + 1]
    return [LogBatch(first, end - 1) for first, end in pairwise(edges) if first < end]


@settings(max_examples=300, deadline=None)
@given(
    taken_over=durable(),
    log=whole_log(),
    mode=st.sampled_from(AcquireMode),
    most=st.integers(1, 12),
    locks=st.integers(5, 60),
)
def test_a_taken_over_group_reaches_the_end_of_the_log(
    taken_over: tuple[int, list[StateBatch]],
    log: list[LogBatch],
    mode: AcquireMode,
    most: int,
    locks: int,
) -> None:
    start, batches = taken_over
    partition = Partition(limits=PartitionLimits(max_record_locks=locks))
    partition.state = from_kip(key=KEY, state_epoch=0, leader_epoch=0, start_offset=start, batches=batches)
    given_out: list[int] = []
    for _ in range(LOG_END * 2):
        got = read_and_accept(partition, log, mode, most)
        if not got and not has_available(partition.state):
            break
        given_out += got
    final = {o for b in batches if b[2] != 0 for o in range(b[0], b[1] + 1)}
    assert sorted(given_out) == [o for o in range(start, LOG_END + 1) if o not in final]
    assert partition.window == f"{LOG_END + 1}-{LOG_END + 1}"


def read_and_accept(partition: Partition, log: list[LogBatch], mode: AcquireMode, most: int) -> list[int]:
    """One fetch at the next fetch offset, all accepted. Offsets acquired."""
    at = partition.next_fetch_offset
    read = [tuple(batch[:2]) for batch in log if batch.last_offset >= at]
    if mode is AcquireMode.EXACT:
        read = [(at, LOG_END)] if at <= LOG_END else []
    got = partition.fetch("a", *read, most=most, mode=mode)
    for first, last, _ in got:
        assert partition.ack("a", (first, last, ACCEPT)) is ErrorCode.NONE
    return [offset for first, last, _ in got for offset in range(first, last + 1)]
