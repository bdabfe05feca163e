# Databricks notebook source
# MAGIC %md
# MAGIC # A share group, from the first record to the last dead letter
# MAGIC
# MAGIC Kafka's share groups deliver *records*, not partitions: each is acquired, then accepted, released or rejected, with an
# MAGIC exact delivery count. Here they run on Spark, with their state in Delta tables. This tour needs no broker: the topic is a
# MAGIC Delta table, too. It runs from top to bottom in about a minute, and removes its files at the end.
# MAGIC
# MAGIC On Databricks, install the wheel of share_spark on the cluster first. Elsewhere it is a Python program like any other:
# MAGIC `python notebooks/tour.py`.

# COMMAND ----------

import json
import shutil
import tempfile

from share_spark import (
    Ack,
    DeadLetters,
    EmbeddedTopicLog,
    Message,
    ShareGroup,
    ShareGroupAdmin,
    TableTopics,
    build_session,
    record_history,
)

spark = build_session("share_spark tour")
PLACE = tempfile.mkdtemp(prefix="share-spark-tour-")  # on Databricks: a directory in a volume that you may write to
TOPICS, STATE, BILLS, LETTERS = (f"{PLACE}/{name}" for name in ("topics", "state", "bills", "letters"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A topic
# MAGIC
# MAGIC Three partitions, 300 orders. The price of one of them is not a number.

# COMMAND ----------

topics = EmbeddedTopicLog(spark, TOPICS)
topics.create_topic("orders", 3)


def order(number: int) -> Message:
    price = "N/A" if number == 137 else str(number % 50 + 0.99)
    return Message(json.dumps({"id": number, "price": price}).encode(), key=b"customer %d" % (number % 7))


topics.append("orders", [order(number) for number in range(300)])

# COMMAND ----------

# MAGIC %md
# MAGIC ## A handler, and a group that runs it
# MAGIC
# MAGIC The handler gets one record, and returns its acknowledgement and rows for a table. An exception releases the record: it is
# MAGIC delivered again, up to the limit, and then kept as a dead letter. The rows of accepted records are in the table exactly once.

# COMMAND ----------


def bill(record):
    found = json.loads(record.value)
    return Ack.ACCEPT, {"id": found["id"], "price": float(found["price"])}


billing = (
    ShareGroup("billing", spark=spark, state=STATE)
    .table(TOPICS)
    .subscribe("orders")
    .process(bill, output="id bigint, price double")
    .to_delta(BILLS)
    .dead_letter(LETTERS)
    .option("share.auto.offset.reset", "earliest")
    .option("history.retention", "7d")
)
query = billing.trigger(availableNow=True).start()
query.awaitTermination()
query

# COMMAND ----------

# MAGIC %md
# MAGIC ## The progress of the group
# MAGIC
# MAGIC `ShareGroupAdmin` reads the files of the tables, without a Spark job; `share-spark groups --describe` prints the same, and
# MAGIC `share-spark ui` shows it as a page.

# COMMAND ----------

admin = ShareGroupAdmin(STATE, topic_table=TOPICS)
admin

# COMMAND ----------

# MAGIC %md
# MAGIC 299 of 300 orders are billed. The state is a table as well, for any SQL:

# COMMAND ----------

billed = spark.read.format("delta").load(BILLS)
print(billed.count(), "bills")
spark.sql(
    f"SELECT partition, start_offset, end_offset, available, acquired FROM delta.`{STATE}/share_partition_state` ORDER BY 1"
).show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The failed record, and its error

# COMMAND ----------

letters = DeadLetters(LETTERS, spark)
for group in letters.by_error():
    print(group)

# COMMAND ----------

(poison,) = letters.letters()
print(poison.value, "delivered", poison.delivery_count, "times:", poison.error)

# COMMAND ----------

# MAGIC %md
# MAGIC Its history, attempt by attempt:

# COMMAND ----------

place = {"topic": poison.topic, "partition": poison.partition, "offset": poison.offset}
record_history(spark, STATE, group_id="billing", **place).select("event", "delivery_count", "written_at").show(
    truncate=False
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Correct it, and send it again
# MAGIC
# MAGIC The correction is an `UPDATE`; the original value stays beside it. A redrive sends the record as a new one of its topic, with
# MAGIC headers that name its origin. The group then handles it like any other.

# COMMAND ----------

corrected = json.dumps({"id": 137, "price": "7.50"})
spark.sql(f"UPDATE delta.`{LETTERS}` SET corrected_value = CAST('{corrected}' AS BINARY) WHERE offset = {poison.offset}")
print(letters.redrive(TableTopics(TOPICS, spark)))

# COMMAND ----------

billing.trigger(availableNow=True).start().awaitTermination()
assert spark.read.format("delta").load(BILLS).count() == 300
assert sum(row.lag for row in admin.describe_offsets("billing")) == 0
admin

# COMMAND ----------

# MAGIC %md
# MAGIC ## An earlier state
# MAGIC
# MAGIC The status table is rewritten at the end of each run, and Delta keeps its older versions.

# COMMAND ----------

history = spark.sql(f"DESCRIBE HISTORY delta.`{STATE}/share_partition_state`").select("version", "timestamp", "operation")
history.orderBy("version").show(truncate=False)
before = history.where("operation = 'WRITE'").agg({"version": "min"}).first()[0]
spark.sql(
    f"SELECT partition, start_offset, end_offset FROM delta.`{STATE}/share_partition_state` VERSION AS OF {before} ORDER BY 1"
).show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Clean up

# COMMAND ----------

admin.delete_group("billing")
assert admin.list_groups() == []
shutil.rmtree(PLACE)
