"""From foreachBatch: a stream that you have puts its rows into a topic, and each row is then handled by itself.

    python examples/from_foreach_batch.py

In ``foreachBatch`` one bad row fails its micro-batch again and again. Here the stream only appends its rows to a topic
in a Delta table, and a share group does the work that can fail: retries, a limit, dead letters.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from share_spark import Ack, EmbeddedTopicLog, Record, ShareGroup, build_session


def check(record: Record) -> tuple[Ack, dict[str, object]] | Ack:
    """Accept a reading, or reject it: what can never succeed need not be tried again."""
    sensor, _, degrees = (record.value or b"").decode().partition(",")
    if not degrees:
        return Ack.reject("no degrees")
    return Ack.ACCEPT, {"sensor": sensor, "degrees": float(degrees)}


def main(spark: SparkSession, lake: str) -> None:
    """Read text files as a stream, and handle each of their lines."""
    inbox = Path(lake, "inbox")
    inbox.mkdir(parents=True)
    (inbox / "monday.csv").write_text("roof,20.5\ncellar\n")
    (inbox / "tuesday.csv").write_text("roof,21.0\nattic,hot\n")

    topics = EmbeddedTopicLog(spark, f"{lake}/topics")
    topics.create_topic("readings", partitions=2)

    def append(lines: DataFrame, _batch_id: int) -> None:
        topics.append("readings", lines.selectExpr("CAST(value AS BINARY) AS value"))

    stream = spark.readStream.text(str(inbox)).writeStream.foreachBatch(append)
    stream.trigger(availableNow=True).option("checkpointLocation", f"{lake}/checkpoint").start().awaitTermination()

    query = (
        ShareGroup("checks", spark=spark, state=f"{lake}/queues")
        .table(f"{lake}/topics")
        .subscribe("readings")
        .process(check, output="sensor string, degrees double")
        .to_delta(f"{lake}/readings")
        .dead_letter(f"{lake}/letters")
        .option("share.auto.offset.reset", "earliest")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    print(spark.read.format("delta").load(f"{lake}/readings").count(), "readings are right")
    letters = spark.read.format("delta").load(f"{lake}/letters")
    letters.selectExpr("CAST(value AS STRING)", "delivery_count", "error").show(truncate=False)


if __name__ == "__main__":
    main(build_session("from foreachBatch"), tempfile.mkdtemp(prefix="share-spark-"))
