"""A test kit for handlers: they are called as in production, without Spark, a JVM or a broker.

    from share_spark.testing import run_handler

    run = run_handler(bill, [b"9.50", b"oops"], output="order bigint, price double")
    assert run.rows == [{"order": 0, "price": 9.5}]
    assert [letter.reason for letter in run.letters] == ["delivery limit reached"]
    assert run.counts == {0: 1, 1: 5}

What is real: the code that calls handlers and judges their answers, its ledgers, the engine with its decisions, the
state log and the dead-letter table (Delta tables in a temporary directory). What is not: time, which passes at once
where records wait, and processes: a handler is called in the process of the test, so that it may be debugged and may
note what it has done.
"""

from __future__ import annotations

from share_spark.testing.called_handler import HandlerCall
from share_spark.testing.handler_run import HandlerRun, run_handler

__all__ = ["HandlerCall", "HandlerRun", "run_handler"]
