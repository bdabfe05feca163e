"""Order by key: the records of an account are handled one after another, those of different accounts at the same time.

    python examples/order_by_key.py

One withdrawal fails at first. The later records of its account wait for it, and only those.
"""

from __future__ import annotations

import tempfile
import time

from pyspark.sql import SparkSession

from share_spark import Ack, EmbeddedTopicLog, Message, Record, ShareGroup, build_session


def book(record: Record) -> tuple[Ack, dict[str, object]] | Ack:
    """Book a change of an account; the third one of ann fails once."""
    account, number = (record.key or b"").decode(), int(record.value or b"")
    if (account, number, record.delivery_count) == ("ann", 3, 1):
        return Ack.release("the bank is closed")
    return Ack.ACCEPT, {"account": account, "number": number, "booked_at_ns": time.time_ns()}


def main(spark: SparkSession, lake: str) -> None:
    """Book five changes of each of three accounts."""
    topics = EmbeddedTopicLog(spark, f"{lake}/topics")
    topics.create_topic("changes", partitions=2)
    changes = [(account, number) for number in range(1, 6) for account in ("ann", "bob", "eve")]
    topics.append("changes", [Message(b"%d" % number, key=account.encode()) for account, number in changes])

    query = (
        ShareGroup("bank", spark=spark, state=f"{lake}/queues")
        .table(f"{lake}/topics")
        .subscribe("changes")
        .process(book, output="account string, number int, booked_at_ns bigint")
        .ordered_by_key()
        .to_delta(f"{lake}/bookings")
        .option("share.auto.offset.reset", "earliest")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    bookings = spark.read.format("delta").load(f"{lake}/bookings").orderBy("booked_at_ns").collect()
    for account in ("ann", "bob", "eve"):
        print(account, *(row.number for row in bookings if row.account == account))


if __name__ == "__main__":
    main(build_session("order by key"), tempfile.mkdtemp(prefix="share-spark-"))
