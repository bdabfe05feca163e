"""Corrected dead letters: look at the errors, correct the records with SQL, send them again.

python examples/corrected_dead_letters.py
"""

from __future__ import annotations

import tempfile

from pyspark.sql import SparkSession

from share_spark import Ack, DeadLetters, EmbeddedTopicLog, Message, Record, ShareGroup, TableTopics, build_session


def add(record: Record) -> tuple[Ack, dict[str, object]]:
    """Take an amount. What is not a number raises an error, which the dead letter will have."""
    return Ack.ACCEPT, {"amount": int(record.value or b"")}


def main(spark: SparkSession, lake: str) -> None:
    """Take six amounts, of which two were written with a comma."""
    topics = EmbeddedTopicLog(spark, f"{lake}/topics")
    topics.create_topic("amounts", partitions=1)
    topics.append("amounts", [Message(text) for text in (b"10", b"1,000", b"30", b"40", b"5,000", b"60")])
    group = (
        ShareGroup("sums", spark=spark, state=f"{lake}/queues")
        .table(f"{lake}/topics")
        .subscribe("amounts")
        .process(add, output="amount bigint")
        .to_delta(f"{lake}/amounts")
        .dead_letter(f"{lake}/letters")
        .option("share.auto.offset.reset", "earliest")
        .trigger(availableNow=True)
    )
    group.start().awaitTermination()

    letters = DeadLetters(f"{lake}/letters", spark)
    for found in letters.by_error():
        print(found.count, "letters:", found.error)
    without_comma = "CAST(replace(CAST(value AS STRING), ',', '') AS BINARY)"
    spark.sql(f"UPDATE delta.`{lake}/letters` SET corrected_value = {without_comma}")
    print(letters.redrive(TableTopics(f"{lake}/topics", spark)))

    group.start().awaitTermination()
    amounts = spark.read.format("delta").load(f"{lake}/amounts")
    print("sum:", amounts.agg({"amount": "sum"}).collect()[0][0])


if __name__ == "__main__":
    main(build_session("corrected dead letters"), tempfile.mkdtemp(prefix="share-spark-"))
