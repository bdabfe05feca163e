"""What a hundred thousand delayed records cost: each step of a share-partition whose released records wait, beside the
same without a delay. In one process without Spark.

    release        one record in twenty is released, so that each is a range of its own
    other records  a micro-batch acquires new records past those that wait
    acquire        those that have waited are acquired again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from share_spark.engine.step import PartitionInput, StepResult, front_of, step
from share_spark.model.config import BackoffPolicy
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import AcknowledgeType, AnsweredRange
from share_spark.partition import PartitionLimits, SharePartition
from share_spark.partition.backoff import NO_BACKOFF, Backoff
from share_spark.state.record_rows import record_array
from tests.bench.harness import Measure, report
from tests.support.answers import answered

Value = TypeVar("Value")

DELAYED = 100_000
STRIDE = 20
ROUNDS = 5
KEY = SharePartitionKey("group", "topic-id", 0)
BACKOFF = Backoff(policy=BackoffPolicy.EXPONENTIAL, jitter=0.5)
MOST_RATIO = 2.0


def run(_spark: object, _bootstrap: str) -> bool:
    """Seconds of processor time, the least of some rounds."""
    ours, peer = (_least(backoff) for backoff in (BACKOFF, NO_BACKOFF))
    measures = [
        Measure(
            measure=f"{DELAYED:,} delayed records: {name}, ms",
            ours=round(ours[name] * 1e3, 3),
            peer=round(peer[name] * 1e3, 3),
            ratio=round(ours[name] / peer[name], 2),
            goal=f"<= {MOST_RATIO:g} x" if name == "release" else None,
            met=ours[name] <= MOST_RATIO * peer[name] if name == "release" else None,
        )
        for name in ours
    ]
    return report("backoff", "What delayed records cost (peer: the same without a delay)", measures)


def _least(backoff: Backoff) -> dict[str, float]:
    rounds = [dict(_steps(backoff)) for _ in range(ROUNDS)]
    return {name: min(found[name] for found in rounds) for name in rounds[0]}


def _steps(backoff: Backoff) -> Iterator[tuple[str, float]]:
    """(name, seconds) of each step of one round."""
    records = DELAYED * STRIDE
    limits = PartitionLimits(max_record_locks=2**40, backoff=backoff)

    def stepped(
        state: SharePartition | None, now_ms: int, end: int, most: int, answers: Sequence[AnsweredRange]
    ) -> StepResult:
        wanted = PartitionInput("topic", 0, end, 0, acknowledged=answers, max_records=most)
        return step(KEY, state, wanted, limits=limits, member_id="member", now_ms=now_ms)

    held = stepped(None, 0, records, records, ()).state
    seconds, released = _timed(lambda: stepped(held, 1, records, 0, _answers()))
    yield "release", seconds
    yield "summary", _timed(lambda: front_of("topic", released.state))[0]
    yield "log rows", _timed(lambda: record_array([("topic", released.record)]))[0]
    most = 1_000 if backoff else DELAYED + 1_000  # without a delay the released ones come first
    yield "other records", _timed(lambda: stepped(released.state, 2, records + 1_000, most, ()))[0]
    yield "acquire", _timed(lambda: stepped(released.state, 10**9, records, records, ()))[0]


def _answers() -> Sequence[AnsweredRange]:
    first = np.arange(DELAYED) * STRIDE
    released = np.column_stack([first, first, np.full(DELAYED, AcknowledgeType.RELEASE)])
    accepted = np.column_stack([first + 1, first + STRIDE - 1, np.full(DELAYED, AcknowledgeType.ACCEPT)])
    return answered(np.stack([released, accepted], axis=1).reshape(-1, 3))


def _timed(once: Callable[[], Value]) -> tuple[float, Value]:
    began = time.process_time()
    value = once()
    return time.process_time() - began, value
