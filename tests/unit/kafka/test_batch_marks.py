"""Which record batches no client gets: control batches, and those of aborted transactions."""

from __future__ import annotations

from share_spark.kafka.batch_reader import record_batches
from share_spark.kafka.fetch import AbortedTransaction
from tests.unit.kafka.test_record_batches import batch

PLAIN, TRANSACTIONAL, CONTROL = 0, 0x10, 0x30


def marked(content: bytes, *aborted: tuple[int, int]) -> list[tuple[int, int]]:
    """The offsets of batches that are marked. ``aborted``: (first offset, producer)."""
    found = list(record_batches(content, [AbortedTransaction(*one) for one in aborted]))
    assert b"".join(one.content for one in found) == content
    return [(one.base_offset, one.last_offset) for one in found if one.is_aborted]


def test_control_batches_are_marked_whatever_the_isolation_level() -> None:
    assert marked(batch(0, 9) + batch(10, 19, b"", TRANSACTIONAL, 7) + batch(20, 20, b"", CONTROL, 7)) == [(20, 20)]


def test_a_transaction_is_marked_from_its_first_offset_to_its_control_batch() -> None:
    content = b"".join(
        (
            batch(0, 9, b"", TRANSACTIONAL, 7),  # of an earlier transaction, which was committed
            batch(10, 10, b"", CONTROL, 7),
            batch(11, 19, b"", TRANSACTIONAL, 7),
            batch(20, 29, b"", TRANSACTIONAL, 8),
            batch(30, 39, b"", PLAIN, 7),
            batch(40, 49, b"", TRANSACTIONAL, 7),
            batch(50, 50, b"", CONTROL, 8),
            batch(51, 51, b"", CONTROL, 7),
            batch(52, 59, b"", TRANSACTIONAL, 7),
        )
    )
    assert marked(content, (11, 7)) == [(10, 10), (11, 19), (40, 49), (50, 50), (51, 51)]


def test_two_aborted_transactions_of_a_producer_have_a_committed_one_between_them() -> None:
    content = b"".join(
        (
            batch(0, 4, b"", TRANSACTIONAL, 7),
            batch(5, 5, b"", CONTROL, 7),
            batch(6, 9, b"", TRANSACTIONAL, 7),
            batch(10, 10, b"", CONTROL, 7),
            batch(11, 14, b"", TRANSACTIONAL, 7),
            batch(15, 15, b"", CONTROL, 7),
        )
    )
    assert marked(content, (11, 7), (0, 7)) == [(0, 4), (5, 5), (10, 10), (11, 14), (15, 15)]


def test_a_transaction_that_began_before_the_read_is_marked_too() -> None:
    content = batch(100, 109, b"", TRANSACTIONAL, 7) + batch(110, 110, b"", CONTROL, 7)
    assert marked(content, (3, 7)) == [(100, 109), (110, 110)]


def test_a_batch_that_is_cut_is_left_out() -> None:
    content = batch(0, 9) + batch(10, 19)
    assert [one.base_offset for one in record_batches(content[:-1], [])] == [0]
