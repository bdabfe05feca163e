"""What the ledger, the time limit and the budget cost a handler that does nothing, in one process without Spark."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from share_spark.delivery.calling import call_handler, watched_code
from share_spark.delivery.calls import Calls
from share_spark.delivery.ledger import CallLedger
from share_spark.handlers.handler import arrow_handler, as_handler
from share_spark.handlers.records import records_of
from share_spark.handlers.time_limit import TimeLimit
from tests.bench.harness import Measure, report

RECORDS, ROUNDS = 10_000, 30


def run(_spark: object, _bootstrap: str) -> bool:
    """Seconds of processor time, the least of many rounds: nothing here waits."""
    batch = _batch()
    bare = _least(lambda: _bare(batch))
    noted = _least(_calls(as_handler(_nothing), batch, noted=True))
    whole = _least(_calls(_arrow(), batch, noted=False))
    whole_noted = _least(_calls(_arrow(), batch, noted=True))
    per_record_us = (noted - bare) / RECORDS * 1e6
    per_batch_us = (whole_noted - whole) * 1e6
    measures = [
        Measure(
            measure="record handler: microseconds a record more than a bare loop",
            ours=round(per_record_us, 3),
            peer=None,
            ratio=round(per_record_us, 3),
            goal="<= 0.2",
            met=per_record_us <= 0.2,
        ),
        Measure(
            measure=f"arrow handler: microseconds a batch of {RECORDS:,} more",
            ours=round(per_batch_us, 1),
            peer=round(whole * 1e6, 1),
            ratio=None,
            goal=None,
            met=None,
        ),
    ]
    return report("ledger", "What the ledger of calls costs", measures)


def _nothing(_: object) -> None:
    return None


def _arrow() -> Any:
    return as_handler(arrow_handler(lambda batch: [1] * batch.num_rows), columns=["value"])


def _bare(batch: pa.RecordBatch) -> None:
    for record in records_of(batch):
        try:
            _nothing(record)
        except Exception:  # noqa: BLE001 - what any delivery has
            continue


def _calls(handler: Any, batch: pa.RecordBatch, *, noted: bool) -> Callable[[], None]:
    def once() -> None:
        with tempfile.TemporaryDirectory() as directory, TimeLimit(300, outside=watched_code()) as limit:
            ledger = CallLedger(Path(directory) / "0", "orders") if noted else None
            until = time.monotonic() + 100
            call_handler(handler, batch, Calls(limit=limit, ledger=ledger, until=until, seconds_per_record=1e-7))

    return once


def _least(once: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        once()
        times.append(time.process_time() - began)
    return min(times)


def _batch() -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "topic": pa.array(["orders"] * RECORDS),
        "partition": pa.array([0] * RECORDS, pa.int32()),
        "offset": pa.array(range(RECORDS), pa.int64()),
        "timestamp": pa.nulls(RECORDS, pa.timestamp("us", "UTC")),
        "key": pa.nulls(RECORDS, pa.binary()),
        "value": pa.array([b"x" * 100] * RECORDS, pa.binary()),
        "headers": pa.array([[]] * RECORDS, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        "delivery_count": pa.array([1] * RECORDS, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)
