"""Ledgers with several attempts at one record."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from share_spark.delivery.ledger import CallStatus, LedgerEntries
from share_spark.delivery.traces import last_attempts

Row = tuple[str, int, int, int]
"""(topic, partition, offset, delivery count)."""

ROWS = st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 3), st.integers(1, 3))


def ledger(rows: list[Row]) -> LedgerEntries:
    topics = sorted({topic for topic, *_ in rows}, reverse=True)
    columns = [np.array([row[at] for row in rows], np.int64) for at in (1, 2, 3)]
    return LedgerEntries(
        topics=topics,
        topic=np.array([topics.index(topic) for topic, *_ in rows], np.int32),
        partition=columns[0],
        offset=columns[1],
        count=columns[2],
        number=np.zeros(len(rows), np.int64),
        status=np.full(len(rows), CallStatus.ACCEPTED, np.uint8),
    )


@given(st.dictionaries(ROWS, st.integers(0, 3)))
def test_only_the_last_attempt_at_a_record_counts(attempts: dict[Row, int]) -> None:
    """``attempts``: each in one of four ledgers."""
    parts = [[row for row, at in attempts.items() if at == number] for number in range(4)]
    found = last_attempts([ledger(rows) for rows in parts])
    left = [
        row
        for rows, task in zip(parts, found, strict=True)
        for row, status in zip(rows, task.status.tolist(), strict=True)
        if status == CallStatus.ACCEPTED
    ]
    highest: dict[tuple[str, int, int], int] = {}
    for *place, count in attempts:
        key: tuple[str, int, int] = tuple(place)  # type: ignore[assignment]
        highest[key] = max(count, highest.get(key, 0))
    assert sorted(left) == sorted((*key, count) for key, count in highest.items())
