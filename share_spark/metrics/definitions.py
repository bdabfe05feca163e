"""The metrics that are exported, as one table: names, labels, meaning.

``kafka_server_*`` are the broker's, in the spelling of Kafka's JMX exporters: a meter's ``-count`` is a counter here,
its ``-rate`` is left to ``rate()``. ``share_spark_*`` are ours. Sources: "Observability" of KIP-932 and of KIP-1103.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class MetricKind(StrEnum):
    """The kinds of metrics, as Prometheus names them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A metric. ``name`` of a counter: without ``_total``. Every metric has the label ``group``, and then
    ``labels``."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    text: str

    @property
    def exported_as(self) -> str:
        """The name in queries; of a histogram, what ``_bucket``, ``_sum`` and ``_count`` are added to."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind
_COORDINATOR = "kafka_server_group_coordinator_metrics_"
_SHARE_GROUP = "kafka_server_share_group_metrics_"
_STATE = "kafka_server_share_coordinator_metrics_"

GROUP_COUNT = Metric(
    f"{_COORDINATOR}group_count", _GAUGE, ("protocol", "state"), "1 for the state that the share group is in"
)
REBALANCES = Metric(
    f"{_COORDINATOR}rebalance", _COUNTER, ("protocol",), "Assignments: at the start, and when partitions were added"
)
NUM_PARTITIONS = Metric(f"{_COORDINATOR}num_partitions", _GAUGE, ("protocol",), "Share-partitions")
ACKNOWLEDGEMENTS = Metric(
    f"{_SHARE_GROUP}share_acknowledgement", _COUNTER, (), "Acknowledgement requests: micro-batches that took some in"
)
RECORD_ACKNOWLEDGEMENTS = Metric(
    f"{_SHARE_GROUP}record_acknowledgement", _COUNTER, ("topic", "ack_type"), "Records acknowledged, without gaps"
)
LOAD_TIME_AVG = Metric(f"{_SHARE_GROUP}partition_load_time_avg", _GAUGE, (), "Milliseconds to load the state")
LOAD_TIME_MAX = Metric(f"{_SHARE_GROUP}partition_load_time_max", _GAUGE, (), "Milliseconds to load the state")
STATE_LOAD_TIME_AVG = Metric(f"{_STATE}partition_load_time_avg", _GAUGE, (), "Milliseconds to load the state")
STATE_LOAD_TIME_MAX = Metric(f"{_STATE}partition_load_time_max", _GAUGE, (), "Milliseconds to load the state")
IDLE_RATIO_AVG = Metric(f"{_STATE}thread_idle_ratio_avg", _GAUGE, (), "Part of the time without a micro-batch")
IDLE_RATIO_MIN = Metric(f"{_STATE}thread_idle_ratio_min", _GAUGE, (), "The same: an engine has one thread")
WRITES = Metric(f"{_STATE}write", _COUNTER, (), "Commits to the state log")
WRITE_LATENCY_AVG = Metric(f"{_STATE}write_latency_avg", _GAUGE, (), "Milliseconds of a commit, since the start")
WRITE_LATENCY_MAX = Metric(f"{_STATE}write_latency_max", _GAUGE, (), "Milliseconds of the slowest commit")

LAG = Metric("share_spark_lag_records", _GAUGE, ("topic", "partition"), "Records that are not finished")
OLDEST = Metric(
    "share_spark_oldest_unfinished_seconds", _GAUGE, ("topic",), "For how long the oldest such record is known to wait"
)
IN_FLIGHT = Metric("share_spark_in_flight_records", _GAUGE, ("topic", "state"), "Records of the windows by state")
ACQUIRED = Metric("share_spark_acquired_records", _COUNTER, ("topic",), "Records acquired")
REDELIVERED = Metric("share_spark_redelivered_records", _COUNTER, ("topic",), "Records acquired not for the first time")
NOT_ENTERED = Metric(
    "share_spark_not_entered_records", _COUNTER, ("topic",), "Records given back before the handler had them"
)
THROTTLED = Metric(
    "share_spark_throttled_records", _COUNTER, ("topic",), "Records given back since a service asked to wait"
)
ARCHIVED = Metric("share_spark_archived_records", _COUNTER, ("topic", "reason"), "Records archived")
STEP_SECONDS = Metric("share_spark_micro_batch_seconds", _HISTOGRAM, ("step",), "Time of each step of a micro-batch")
COMMIT_SECONDS = Metric("share_spark_commit_seconds", _HISTOGRAM, (), "Time of a commit to the state log")
WRITER_EPOCH = Metric("share_spark_writer_epoch", _GAUGE, (), "Of the engine's claim")
MICRO_BATCH_AT = Metric(
    "share_spark_last_micro_batch_timestamp_seconds", _GAUGE, (), "When the last micro-batch began, idle ones too"
)
UNREACHABLE = Metric(
    "share_spark_unreachable_seconds", _GAUGE, (), "For how long brokers have not answered; 0 while they do"
)
CALLS_RUNNING = Metric("share_spark_calls_running", _GAUGE, (), "Calls of an async handler that run")
CALLS_WAITING = Metric("share_spark_calls_waiting", _GAUGE, (), "Records in its process that wait for their call")
CALLS_LIMIT = Metric("share_spark_calls_limit", _GAUGE, (), "Calls that may run now: fewer after throttles")
CALLS_THROTTLED = Metric("share_spark_calls_throttled", _GAUGE, (), "Records that a service has told to wait")
CALLS_OLDEST = Metric("share_spark_calls_oldest_seconds", _GAUGE, (), "For how long the oldest of these calls runs")

METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""All metrics of an engine."""
