# Databricks notebook source
# MAGIC %md
# MAGIC # From `foreachBatch` with hand-made retries to a share group
# MAGIC
# MAGIC A stream calls a service for each record, and the service fails now and then. The first half of this notebook is the
# MAGIC usual solution; the second half is the same job as a share group. Both read the same topic, a Delta table.
# MAGIC
# MAGIC On Databricks, install the wheel of share_spark on the cluster first. Elsewhere: `python notebooks/from_foreach_batch.py`.

# COMMAND ----------

import shutil
import tempfile
import zlib

from pyspark.sql import functions as F

from share_spark import Ack, EmbeddedTopicLog, Message, ShareGroup, build_session

spark = build_session("share_spark migration")
PLACE = tempfile.mkdtemp(prefix="share-spark-migration-")  # on Databricks: a directory in a volume
TOPICS = f"{PLACE}/topics"

topics = EmbeddedTopicLog(spark, TOPICS)
topics.create_topic("calls", 2)
topics.append("calls", [Message(str(number).encode()) for number in range(200)])


def call_service(number: int, attempt: int) -> str:
    """Fail in one of ten attempts, and always for 42."""
    if number == 42:
        raise ValueError("the service does not know 42")
    if zlib.crc32(f"{number}/{attempt}".encode()) % 10 == 0:
        raise TimeoutError("the service is busy")
    return f"done {number}"


# COMMAND ----------

# MAGIC %md
# MAGIC ## By hand
# MAGIC
# MAGIC The unit is the micro-batch: one failed record would fail all of it. So failures are caught, counted in a table of our own,
# MAGIC and read again with the next micro-batch. This simple form has three faults that are easy to miss:
# MAGIC
# MAGIC - a crash between its two writes loses retries, or writes rows twice;
# MAGIC - the count is that of the attempts of a *micro-batch*;
# MAGIC - retries only run when new records arrive.

# COMMAND ----------

RETRIES, RESULTS = f"{PLACE}/retries", f"{PLACE}/results_by_hand"
LIMIT = 5


def attempt_all(frame, batch_id):
    waiting = spark.read.format("delta").load(RETRIES) if batch_id else spark.createDataFrame([], "n int, attempt int")
    todo = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n", "1 AS attempt").unionByName(waiting).collect()
    results, again = [], []
    for row in todo:
        try:
            results.append((row.n, call_service(row.n, row.attempt)))
        except Exception:
            if row.attempt < LIMIT:
                again.append((row.n, row.attempt + 1))  # beyond the limit: lost, unless you build that, too
    spark.createDataFrame(results, "n int, result string").write.format("delta").mode("append").save(RESULTS)
    spark.createDataFrame(again, "n int, attempt int").write.format("delta").mode("overwrite").save(RETRIES)


stream = spark.readStream.format("delta").load(TOPICS).where("topic = 'calls'")
by_hand = stream.writeStream.foreachBatch(attempt_all).option("checkpointLocation", f"{PLACE}/checkpoint")
by_hand.trigger(availableNow=True).start().awaitTermination()
print(spark.read.format("delta").load(RESULTS).count(), "of 200; the others wait for the next records")

# COMMAND ----------

# MAGIC %md
# MAGIC ## As a share group
# MAGIC
# MAGIC The handler gets one record. An exception releases it, and it is delivered again with the next count, whether or not new
# MAGIC records arrive; after five deliveries it is a dead letter with its last error. Rows and acknowledgements are one commit.

# COMMAND ----------


def handle(record):
    number = int(record.value)
    return Ack.ACCEPT, {"n": number, "result": call_service(number, record.delivery_count)}


query = (
    ShareGroup("calls", spark=spark, state=f"{PLACE}/state")
    .table(TOPICS)
    .subscribe("calls")
    .process(handle, output="n int, result string")
    .to_delta(f"{PLACE}/results")
    .dead_letter(f"{PLACE}/letters")
    .options(**{"share.auto.offset.reset": "earliest", "share.delivery.count.limit": LIMIT})
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
query

# COMMAND ----------

results = spark.read.format("delta").load(f"{PLACE}/results")
letters = spark.read.format("delta").load(f"{PLACE}/letters").withColumn("value", F.col("value").cast("string"))
letters.select("value", "delivery_count", "reason", "error").show(truncate=False)
assert results.select("n").distinct().count() == results.count() == 199
assert [row.value for row in letters.collect()] == ["42"]

# COMMAND ----------

shutil.rmtree(PLACE)
