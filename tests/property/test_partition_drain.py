"""Whatever state a leader takes over, a group that accepts all it gets works through the log to its end.

Nothing is lost, and nothing is given twice, also where the durable form has holes (R22): by handlers, by clients of
Kafka in every acquire mode, and by both in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from share_spark.model.errors import ErrorCode
from share_spark.model.records import StateBatch
from share_spark.partition import PartitionLimits, from_kip
from share_spark.partition.kafka_modes import AcquireMode, KafkaLimits, LogBatch, load_from_kip
from tests.support.examples import examples
from tests.support.kafka_partition import ClientPartition
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


Held = tuple[int, list[StateBatch]]


@settings(max_examples=examples(150), deadline=None)
@given(taken_over=durable(), most=st.integers(1, 12), locks=st.integers(5, 60))
def test_handlers_reach_the_end_of_the_log(taken_over: Held, most: int, locks: int) -> None:
    start, batches = taken_over
    partition = Partition(limits=PartitionLimits(max_record_locks=locks))
    partition.state = from_kip(key=KEY, state_epoch=0, leader_epoch=0, start_offset=start, batches=batches)
    drain(partition, taken_over, lambda: partition.fetch("a", (partition.next_fetch_offset, LOG_END), most=most))


@settings(max_examples=examples(300), deadline=None)
@example(
    taken_over=(0, [StateBatch(1, 5, 2, 1)]),
    log=[LogBatch(0, 40)],
    modes=[AcquireMode.BATCH_OPTIMIZED, None],
    most=1,
    locks=5,
    as_kafka=True,
)
@given(
    taken_over=durable(),
    log=whole_log(),
    modes=st.lists(st.sampled_from([None, *AcquireMode]), min_size=1, max_size=4),
    most=st.integers(1, 12),
    locks=st.integers(5, 60),
    as_kafka=st.booleans(),
)
def test_clients_reach_the_end_of_the_log(
    taken_over: Held,
    log: list[LogBatch],
    modes: list[AcquireMode | None],
    most: int,
    locks: int,
    as_kafka: bool,
) -> None:
    """``modes``, one after the other; None: a handler. The state is loaded as Kafka does, or is the core's."""
    start, batches = taken_over
    partition = ClientPartition(limits=KafkaLimits(max_record_locks=locks))
    terms = {"key": KEY, "state_epoch": 0, "leader_epoch": 0, "start_offset": start, "batches": batches}
    if as_kafka:
        partition.remembered = load_from_kip(**terms)
    else:
        partition.state = from_kip(**terms)
    following = cycle(modes)

    def fetch() -> list[tuple[int, int, int]]:
        at = partition.next_fetch_offset
        read = [batch[:2] for batch in log if batch.last_offset >= at]
        mode = next(following)
        if mode is None:
            read = [(at, LOG_END)]
        return partition.fetch("a", *read, most=most, mode=mode)

    drain(partition, taken_over, fetch)


def drain(partition: Partition, taken_over: Held, fetch: Callable[[], list[tuple[int, int, int]]]) -> None:
    """Fetch at the next fetch offset and accept all, to the end of the log."""
    start, batches = taken_over
    given_out: list[int] = []
    for _ in range(LOG_END * 2):
        got = fetch()
        for first, last, _ in got:
            assert partition.ack("a", (first, last, ACCEPT)) is ErrorCode.NONE
        given_out += [offset for first, last, _ in got for offset in range(first, last + 1)]
        if not got and partition.next_fetch_offset == partition.state.end_offset:
            break
    final = {o for b in batches if b[2] != 0 for o in range(b[0], b[1] + 1)}
    assert sorted(given_out) == [o for o in range(start, LOG_END + 1) if o not in final]
    assert partition.window == f"{LOG_END + 1}-{LOG_END + 1}"
