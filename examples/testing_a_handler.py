"""Tests of a handler, for pytest. No Spark, no JVM and no broker: a test takes some tenths of a second.

pytest examples/testing_a_handler.py
"""

from __future__ import annotations

from datetime import timedelta

from share_spark import Ack, Record
from share_spark.testing import run_handler


def bill(record: Record) -> object:
    """Bill one order; wait for a customer who is not known yet."""
    customer, price = (record.value or b"").decode().split(",")
    if customer == "new" and record.delivery_count == 1:
        return Ack.release("no such customer yet", delay="10m")
    return Ack.ACCEPT, {"order": record.offset, "price": float(price)}


BILLS = "order bigint, price double"


def test_an_order_is_billed() -> None:
    """The rows that the handler returns are values here."""
    assert run_handler(bill, [b"ann,9.50"], output=BILLS).rows == [{"order": 0, "price": 9.5}]


def test_an_order_without_a_price_is_a_dead_letter() -> None:
    """It is tried five times, and the other one is billed."""
    done = run_handler(bill, [b"ann,N/A", b"bob,1"], output=BILLS)
    (letter,) = done.letters
    assert letter.offset == 0
    assert letter.error == "ValueError: could not convert string to float: 'N/A'"
    assert done.counts == {0: 5, 1: 1}


def test_a_new_customer_is_tried_again_after_ten_minutes() -> None:
    """These pass at once."""
    done = run_handler(bill, [b"new,7"], output=BILLS)
    assert done.accepted == [0]
    assert done.waited == timedelta(minutes=10)


def test_a_worker_that_dies_bills_nothing_twice() -> None:
    """The second call is its last."""
    done = run_handler(bill, [b"ann,1", b"bob,2", b"eve,3"], output=BILLS, crash_at=2)
    assert sorted(row["order"] for row in done.rows) == [0, 1, 2]
    assert done.counts[1] == 2
