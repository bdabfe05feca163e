"""The result of a scrape, from the totals of an engine and a look at it. Pure but for the clock, which is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from share_spark.engine.progress import ARCHIVED as ARCHIVE_COUNTS
from share_spark.engine.progress import EngineLook
from share_spark.metrics import definitions as all_metrics
from share_spark.metrics.definitions import Metric, MetricKind
from share_spark.metrics.oldest import Front, LogEndMarks
from share_spark.metrics.totals import BOUNDS_S, GroupTotals, SecondsHistogram
from share_spark.model.ids import LogEnds, SharePartitionKey
from share_spark.model.records import DeliveryState

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

Values = Iterable[tuple[Sequence[str], float]]
"""Pairs of label values and value."""

_SHARE = "share"
"""The label ``protocol``."""

_PHASES = ("Empty", "Stable", "Dead")


def families_of(group_id: str, totals: GroupTotals, began_ms: int, now_ms: int) -> Iterator[Family]:
    """Return the metrics of the micro-batches since ``began_ms``."""
    for metric, values in _counted(totals):
        yield _family(metric, group_id, values)
    idle = max(0.0, 1 - totals.busy_s / max((now_ms - began_ms) / 1_000, 1e-3))
    commits = totals.commits
    for metric, value in (
        (all_metrics.IDLE_RATIO_AVG, idle),
        (all_metrics.IDLE_RATIO_MIN, idle),
        (all_metrics.WRITE_LATENCY_AVG, 1_000 * commits.sum_s / max(1, commits.count)),
        (all_metrics.WRITE_LATENCY_MAX, 1_000 * commits.max_s),
    ):
        yield _family(metric, group_id, [((), value)])
    yield _histogram(all_metrics.STEP_SECONDS, group_id, [((step,), one) for step, one in totals.steps.items()])
    yield _histogram(all_metrics.COMMIT_SECONDS, group_id, [((), commits)])


def _counted(totals: GroupTotals) -> Iterator[tuple[Metric, Values]]:
    topics = totals.topics.items()
    yield all_metrics.REBALANCES, [((_SHARE,), totals.assignments)]
    yield all_metrics.ACKNOWLEDGEMENTS, [((), totals.acknowledgements)]
    yield all_metrics.WRITES, [((), totals.commits.count)]
    yield (
        all_metrics.RECORD_ACKNOWLEDGEMENTS,
        [((topic, kind), records) for topic, counts in topics for kind, records in counts.acknowledged.items()],
    )
    yield all_metrics.ACQUIRED, [((topic,), counts.acquired) for topic, counts in topics]
    yield all_metrics.REDELIVERED, [((topic,), counts.redelivered) for topic, counts in topics]
    yield all_metrics.NOT_ENTERED, [((topic,), counts.not_entered) for topic, counts in topics]
    yield all_metrics.THROTTLED, [((topic,), counts.throttled) for topic, counts in topics]
    yield (
        all_metrics.ARCHIVED,
        [
            ((topic, why.value), getattr(counts, name))
            for topic, counts in topics
            for why, name in ARCHIVE_COUNTS.items()
        ],
    )


def families_of_look(group_id: str, look: EngineLook, marks: LogEndMarks, now_ms: int) -> Iterator[Family]:
    """Return the metrics of a look at the engine: how far it is. ``marks``: those of this look."""
    phase = "Stable" if look.writer_epoch else "Empty"
    load_ms = look.load_s * 1_000
    for metric in (
        *(all_metrics.LOAD_TIME_AVG, all_metrics.LOAD_TIME_MAX),
        *(all_metrics.STATE_LOAD_TIME_AVG, all_metrics.STATE_LOAD_TIME_MAX),
    ):
        yield _family(metric, group_id, [((), load_ms)])
    for metric, values in (
        (all_metrics.GROUP_COUNT, [((_SHARE, name), float(name == phase)) for name in _PHASES]),
        (all_metrics.NUM_PARTITIONS, [((_SHARE,), len(look.ends))]),
        (all_metrics.LAG, _lags(look)),
        (all_metrics.OLDEST, _oldest(look, marks, now_ms)),
        (all_metrics.IN_FLIGHT, _in_flight(look)),
        (all_metrics.WRITER_EPOCH, [((), look.writer_epoch)]),
        (all_metrics.MICRO_BATCH_AT, [((), look.read_at_ms / 1_000)]),
        (all_metrics.UNREACHABLE, [((), look.outage.lasts_ms(now_ms) / 1_000 if look.outage else 0)]),
    ):
        yield _family(metric, group_id, values)
    for metric, values in _calls(look):
        yield _family(metric, group_id, values)


def _calls(look: EngineLook) -> Iterator[tuple[Metric, Values]]:
    """Yield the metrics of calls that outlast micro-batches: without values where none does."""
    metrics = (
        all_metrics.CALLS_RUNNING,
        all_metrics.CALLS_WAITING,
        all_metrics.CALLS_LIMIT,
        all_metrics.CALLS_THROTTLED,
        all_metrics.CALLS_OLDEST,
    )
    if look.calls is None:
        yield from ((metric, ()) for metric in metrics)
        return
    running, waiting, limit, oldest, throttled = look.calls
    age_s = 0.0 if oldest is None else oldest.age_s
    for metric, value in zip(metrics, (running, waiting, limit, throttled, age_s), strict=True):
        yield metric, [((), value)]


def _lags(look: EngineLook) -> Values:
    for key, ends in look.ends.items():
        summary = look.summaries.get(key)
        if summary is not None:
            yield (summary.topic, str(key.partition)), summary.lag(ends)


def _oldest(look: EngineLook, marks: LogEndMarks, now_ms: int) -> Values:
    ages = {summary.topic: 0 for summary in look.summaries.values()}
    for key in marks.marks:
        topic = look.summaries[key].topic
        ages[topic] = max(ages[topic], marks.age_ms(key, now_ms))
    return [((topic,), age / 1_000) for topic, age in ages.items()]


def _in_flight(look: EngineLook) -> Values:
    found: dict[str, list[int]] = {}
    for summary in look.summaries.values():
        total = found.setdefault(summary.topic, [0] * len(DeliveryState))
        for at, offsets in enumerate(summary.by_state):
            total[at] += offsets
    return [
        ((topic, state.name.capitalize()), offsets)
        for topic, total in found.items()
        for state, offsets in zip(DeliveryState, total, strict=True)
    ]


def fronts_of(look: EngineLook) -> Iterator[tuple[SharePartitionKey, Front]]:
    """Return the fronts of the share-partitions that have begun."""
    for key, ends in look.ends.items():
        summary = look.summaries.get(key)
        if summary is not None and summary.start_offset >= 0:
            yield key, _front(summary.start_offset, ends)


def _front(start_offset: int, ends: LogEnds) -> Front:
    return Front(max(start_offset, ends.log_start_offset), ends.end_offset)


def _family(metric: Metric, group_id: str, values: Values) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.text, labels=("group", *metric.labels))
    for labels, value in values:
        family.add_metric((group_id, *labels), value)
    return family


def _histogram(
    metric: Metric, group_id: str, values: Iterable[tuple[Sequence[str], SecondsHistogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.text, labels=("group", *metric.labels))
    for labels, one in values:
        bounds = (*map(str, BOUNDS_S), "+Inf")
        buckets = list(zip(bounds, accumulate(one.counts), strict=True))
        family.add_metric((group_id, *labels), buckets, sum_value=one.sum_s)
    return family
