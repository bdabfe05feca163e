"""A first queue: a topic in a Delta table, a handler, one record that can never succeed. No broker.

python examples/first_queue.py
"""

from __future__ import annotations

import json
import tempfile

from pyspark.sql import SparkSession

from share_spark import Ack, DeadLetters, EmbeddedTopicLog, Message, Record, ShareGroup, build_session


def bill(record: Record) -> tuple[Ack, dict[str, object]]:
    """Bill one order. An exception releases the record: it is delivered again, up to the limit."""
    order = json.loads(record.value or b"")
    return Ack.ACCEPT, {"id": order["id"], "price": float(order["price"])}


def main(spark: SparkSession, lake: str) -> None:
    """Bill ten orders, of which one has no price."""
    topics = EmbeddedTopicLog(spark, f"{lake}/topics")
    topics.create_topic("orders", partitions=2)
    prices = ["N/A" if number == 7 else "9.50" for number in range(10)]
    orders = [json.dumps({"id": number, "price": price}) for number, price in enumerate(prices)]
    topics.append("orders", [Message(order.encode()) for order in orders])

    query = (
        ShareGroup("billing", spark=spark, state=f"{lake}/queues")
        .table(f"{lake}/topics")
        .subscribe("orders")
        .process(bill, output="id bigint, price double")
        .to_delta(f"{lake}/bills")
        .dead_letter(f"{lake}/letters")
        .option("share.auto.offset.reset", "earliest")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    print(spark.read.format("delta").load(f"{lake}/bills").count(), "orders are billed")
    for letter in DeadLetters(f"{lake}/letters").letters():
        print(f"given up after {letter.delivery_count} deliveries: {letter.error}")


if __name__ == "__main__":
    main(build_session("first queue"), tempfile.mkdtemp(prefix="share-spark-"))
