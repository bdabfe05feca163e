"""Reads and their pieces: spans of offsets turned into options of Spark's Kafka source.

Spark's Kafka source takes one range per partition and read, and cuts a read into about ``minPartitions`` pieces, or one
per topic-partition if that is more. So several spans of one partition need several reads: the first spans of all
partitions are the first read, their second spans the second, and so on.

    orders-0   [10..19]   [40..49]   [90..99]
    orders-1   [ 5..99]
    orders-2   [ 0.. 3]   [ 7.. 9]
                  |          |          |
                read 1     read 2     read 3

One after the other (a union) they hold each partition's offsets in ascending order. Pure arithmetic; no Spark here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from share_spark.engine.ports import OffsetSpan
from share_spark.engine.spans import merged, records_in
from share_spark.model.ids import TopicPartition

_FINE = 4
"""Pieces per task if ``coalesce`` packs pieces into tasks by their number: more pieces make even loads."""

_WORTH_CUTTING = 10_000
"""The records per task below which a finer cut costs more (a seek, a fetch) than uneven loads do."""

_UNEVEN = 2
"""A span this many times larger than the average makes packing by number uneven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRead:
    """One read: at most one span per topic-partition, in about ``pieces`` pieces."""

    spans: tuple[OffsetSpan, ...]
    pieces: int

    def offsets_json(self) -> tuple[str, str]:
        """Return ``startingOffsets`` and ``endingOffsets`` (exclusive) for Spark's Kafka source."""
        starting: dict[str, dict[str, int]] = defaultdict(dict)
        ending: dict[str, dict[str, int]] = defaultdict(dict)
        for topic, partition, first, last in self.spans:
            starting[topic][str(partition)] = first
            ending[topic][str(partition)] = last + 1
        return json.dumps(starting), json.dumps(ending)

    def assign_json(self) -> str:
        """Return ``assign`` for Spark's Kafka source; a subscription would have to cover whole topics."""
        assigned: dict[str, list[int]] = defaultdict(list)
        for topic, partition, _, _ in self.spans:
            assigned[topic].append(partition)
        return json.dumps(assigned)


def plan_reads(spans: Iterable[OffsetSpan], tasks: int) -> list[SpanRead]:
    """Return reads that cover exactly ``spans``, the first spans of all partitions in the first read.

    One after another, the reads hold each partition's offsets in ascending order.
    """
    # The n-th layer has the n-th span of each partition that has as many.
    by_partition: dict[TopicPartition, list[OffsetSpan]] = defaultdict(list)
    for span in merged(spans):
        by_partition[TopicPartition(span.topic, span.partition)].append(span)
    layers = [tuple(span for span in layer if span is not None) for layer in zip_longest(*by_partition.values())]
    return [SpanRead(spans=layer, pieces=_pieces(layer, layers, tasks)) for layer in layers]


def _pieces(layer: Sequence[OffsetSpan], layers: Sequence[Sequence[OffsetSpan]], tasks: int) -> int:
    """Return the number of pieces of one read. It is cut only where needed: each piece costs a look-up and a seek."""
    # A single read: if there are fewer spans than tasks, Spark cuts the larger ones itself.
    if len(layers) == 1 and (len(layer) <= tasks or not _is_uneven(layer)):
        return max(tasks, len(layer))
    total = sum(records_in(spans) for spans in layers)
    fine = tasks * (_FINE if total >= tasks * _WORTH_CUTTING else 1)
    # Each of several reads gets its part of the pieces, by its part of the records.
    uncut = len(layer) if len(layers) == 1 else 0
    return max(len(layer), uncut + round(fine * records_in(layer) / total))


def _is_uneven(layer: Sequence[OffsetSpan]) -> bool:
    largest = max(span.last_offset - span.first_offset + 1 for span in layer)
    return largest > _UNEVEN * records_in(layer) / len(layer)
