"""Plain Structured Streaming: ``foreachBatch`` with idempotent writes into Delta, and retries by hand.

Delta's docs advise ``txnAppId`` and ``txnVersion`` for foreachBatch. A batch that is repeated after a crash is handled
again, and its rows are skipped if they are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
from pyspark.sql import DataFrame

from share_spark import build_session
from tests.scoreboard.programs.surroundings import TOPIC, call, place, source
from tests.scoreboard.records import AT_A_TIME, LIMIT, OK

CORES = 2


def is_done(number: int) -> bool:
    """Ask the service until it is done, or up to the limit."""
    return any(call(number, count) == OK for count in range(1, LIMIT + 1))


def handle(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Return the numbers, and whether they are done."""
    with ThreadPoolExecutor(AT_A_TIME // CORES) as threads:
        for batch in batches:
            numbers = batch["number"].tolist()
            yield pd.DataFrame({"number": numbers, "done": list(threads.map(is_done, numbers))}).astype({"done": bool})


def write(batch: DataFrame, batch_id: int) -> None:
    """Handle a batch, and write its rows and letters."""
    handled = batch.mapInPandas(handle, "number bigint, done boolean").persist()
    try:
        for table, rows in (("rows", handled.where("done")), ("letters", handled.where("not done"))):
            writer = rows.select("number").write.format("delta").mode("append")
            writer.option("txnAppId", f"scored {table}").option("txnVersion", batch_id).save(place(table))
    finally:
        handled.unpersist()


def main() -> None:
    """Run until killed."""
    spark = build_session("scoreboard", f"local[{CORES}]")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", source())
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(cast(value as string) as bigint) as number")
    )
    query = records.writeStream.foreachBatch(write).option("checkpointLocation", place("checkpoint")).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
