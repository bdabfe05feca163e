"""Dead letters: 2.5 % of the records are rejected and written to a Delta table, against the same run without any."""

from __future__ import annotations

import os
import uuid
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from share_spark import arrow_handler
from share_spark.delta.location import Location
from tests.bench.harness import compare, report, say, seconds_in_turn
from tests.bench.workloads import Scratch, accept, create_topic, fill, share_group

RECORDS = int(os.environ.get("BENCH_RECORDS", "500000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
PARTITIONS, PER_TRIGGER, WARM_UPS = 4, 50_000, 2


@arrow_handler
def reject_none(batch: pa.RecordBatch) -> Any:
    """Looks at each value."""
    return accept(batch)


@arrow_handler
def reject_some(batch: pa.RecordBatch) -> Any:
    """2.5 % of the records, scattered."""
    codes = accept(batch)
    codes[(batch.column("offset").to_numpy() * 2_654_435_761) % 1_000 < 25] = 3
    return codes


def run(spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met?"""
    scratch, topic = Scratch(), f"letters-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS, RECORDS, 100)
    tables: list[str] = []

    def worked_off(handler: Any) -> None:
        tables.append(scratch.fresh("letters"))
        group = share_group(spark, bootstrap, topic, scratch.fresh("state"), handler, records_per_trigger=PER_TRIGGER)
        group.dead_letter(tables[-1]).start().awaitTermination()

    say(f"dead letters: {RECORDS:,} records, {PER_TRIGGER:,} a micro-batch, {ROUNDS} rounds in turn")
    runs = {"none rejected": lambda: worked_off(reject_none), "2.5 % rejected": lambda: worked_off(reject_some)}
    for warm_up in [*runs.values()] * WARM_UPS:
        warm_up()
    seconds = seconds_in_turn(runs, ROUNDS)
    share = Location.parse(tables[-1]).load(spark).count() / RECORDS
    scratch.close()
    rates = {name: RECORDS / spent for name, spent in seconds.items()}
    measure = compare("records/s, 2.5 % rejected / none", rates["2.5 % rejected"], rates["none rejected"], ">= 0.85")
    return report("dead_letters", "Dead letters, records/s", [measure], [f"{share:.2%} of the records were letters"])
