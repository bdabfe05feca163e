"""The metrics that `share-spark exporter` serves for all groups of a location, as one table: names, labels, meaning.

Other names than those of an engine (``definitions``): who scrapes both would count each record twice.
"""

from __future__ import annotations

from share_spark.metrics.definitions import Metric, MetricKind

_GAUGE = MetricKind.GAUGE

LAG = Metric("share_spark_group_lag_records", _GAUGE, ("topic", "partition"), "Records that are not finished")
OLDEST = Metric(
    "share_spark_group_oldest_unfinished_seconds", _GAUGE, ("topic",), "Age of the oldest record that is not finished"
)
IN_FLIGHT = Metric("share_spark_group_in_flight_records", _GAUGE, ("topic", "state"), "Records of the windows by state")
DELAYED = Metric("share_spark_group_delayed_records", _GAUGE, ("topic",), "Released records that wait for their time")
PAUSED = Metric(
    "share_spark_group_paused_partitions", _GAUGE, ("topic",), "Share-partitions that operators have paused"
)
LETTERS = Metric("share_spark_group_unredriven_letters", _GAUGE, (), "Dead letters that were not sent again")
BREAKER_OPEN = Metric("share_spark_group_breaker_open", _GAUGE, (), "1 while the circuit breaker is open")
RUNNING = Metric("share_spark_group_engine_running", _GAUGE, (), "1 while an engine runs the group")
ENDED_AT = Metric(
    "share_spark_group_engine_end_timestamp_seconds", _GAUGE, ("end",), "When the last engine ended, and how"
)
COMMIT_AT = Metric(
    "share_spark_group_last_commit_timestamp_seconds", _GAUGE, (), "When the last micro-batch that wrote was decided"
)
READ_FAILED = Metric("share_spark_group_read_failed", _GAUGE, ("part",), "1 if a part of the group could not be read")

GROUP_METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""The metrics of a group: each has the label ``group``, and then its own."""

EXPORTER_READ_AT = Metric(
    "share_spark_exporter_last_read_timestamp_seconds", _GAUGE, (), "When the location was read last"
)
EXPORTER_READ_S = Metric("share_spark_exporter_read_seconds", _GAUGE, (), "How long that took")
EXPORTER_READ_FAILED = Metric(
    "share_spark_exporter_read_failed", _GAUGE, (), "1 if the location could not be read; then no group has metrics"
)

EXPORTER_METRICS = (EXPORTER_READ_AT, EXPORTER_READ_S, EXPORTER_READ_FAILED)
"""The metrics of the exporter itself, without the label ``group``."""
