"""Dead letters to a Kafka topic, with the headers of KIP-1191 and of Spring (``letter_headers``).

The record's key, value and own headers stay as they are; its origin and the reason are in headers added behind them.
The topic must exist: its settings (partitions, retention) are a decision of the cluster's administrator. At least once:
if an engine ends after writing and before noting so, its letters are written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.kafka import letter_headers as names
from share_spark.kafka.broker_admin import BrokerAdmin
from share_spark.model.errors import DeadLetterError, TopicError, TopicUnreachableError
from share_spark.spark import functions as F
from share_spark.spark.errors import JVM_ERRORS, first_line
from share_spark.spark.on_demand import session_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from share_spark.engine.ports import Claim
    from share_spark.kafka.options import KafkaOptions
    from share_spark.model.ids import BatchStamp


class KafkaDeadLetters:
    """DeadLetterTarget on a Kafka topic, through Spark's Kafka sink."""

    def __init__(self, topic: str, options: KafkaOptions, *, request_timeout_ms: int = 10_000) -> None:
        self._topic = topic
        self._options = options
        self._request_timeout_ms = request_timeout_ms
        self._checked = False

    def __repr__(self) -> str:
        return f"KafkaDeadLetters({self._topic}, {self._options.bootstrap_servers})"

    def check(self, spark: SparkSession | None) -> None:  # noqa: ARG002 - the Delta target needs it
        """Check that the topic exists, at start, so that the first dead letter does not fail for that reason.

        Raises DeadLetterError, TopicUnreachableError.
        """
        try:
            BrokerAdmin(self._options, self._request_timeout_ms).describe(self._topic)
        except TopicUnreachableError as error:
            raise TopicUnreachableError(f"dead letters: {error}") from None
        except TopicError as error:
            raise DeadLetterError(f"dead-letter {error}") from None
        self._checked = True

    def write(
        self,
        spark: SparkSession | None,
        claim: Claim,
        stamp: BatchStamp,  # noqa: ARG002 - a topic takes no number
        letters: DataFrame | pa.Table,
    ) -> None:
        """Write one record per row of ``letters``; see DeadLetterTarget. Raises DeadLetterError."""
        if not self._checked:
            self.check(spark)
        session = session_of(spark, f"{self} is written to")
        frame = session.createDataFrame(letters) if isinstance(letters, pa.Table) else letters
        records = frame.select("key", "value", _headers(claim.group_id).alias("headers"))
        writer = records.write.format("kafka").mode("append").options(**self._options.spark_sink())
        try:
            writer.option("topic", self._topic).save()
        except JVM_ERRORS as error:
            reason = self._options.without_secrets(first_line(error))
            raise DeadLetterError(f"dead-letter topic {self._topic!r}: {reason}") from error


def _headers(group_id: str) -> Column:
    """Return the record's own headers, then those of ``origin_headers``, computed by Spark."""
    message = F.coalesce("error", "reason")
    kip = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "group": F.lit(group_id),
        "delivery.count": F.col("delivery_count"),
        "message": message,
    }
    added = {
        **{f"{names.HEADER_PREFIX}{name}": _text(value) for name, value in kip.items()},
        names.SPRING_TOPIC: _text(F.col("topic")),
        names.SPRING_PARTITION: _number(F.col("partition"), names.INT_BYTES),
        names.SPRING_OFFSET: _number(F.col("offset"), names.LONG_BYTES),
        names.SPRING_TIMESTAMP: _number(F.unix_millis("timestamp"), names.LONG_BYTES),
        names.SPRING_MESSAGE: _text(message),
        names.ORIGINAL_TOPIC: _text(F.col("topic")),
    }
    headers = [F.struct(F.lit(name).alias("key"), value.alias("value")) for name, value in added.items()]
    none = F.array().cast("array<struct<key:string,value:binary>>")
    return F.concat(F.coalesce("headers", none), F.array(*headers))


def _text(value: Column) -> Column:
    return value.cast("string").cast("binary")


def _number(value: Column, length: int) -> Column:
    """Return a number as big-endian bytes. ANSI mode has no cast of a number to binary."""
    return F.unhex(F.lpad(F.hex(value), 2 * length, "0"))
