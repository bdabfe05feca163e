"""Acquire from reads of the log that were made ahead: which of them are at the next fetch offset is known only here.

read ahead          [100-109][110-119][120-129]            [500-549][550-599]
next fetch offset             ^ 110
acquired from                [110-119][120-129]            as far as max_bytes go
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

from share_spark.model.requests import PartitionResponse
from share_spark.partition.kafka_modes.acquire_batches import acquire_batches
from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.requests import AcquireBatches, AcquireReadAhead, LogBatch
from share_spark.partition.kafka_modes.state import KafkaLimits

_last_offset = attrgetter("last_offset")


def acquire_read_ahead(
    draft: KafkaDraft, request: AcquireReadAhead, limits: KafkaLimits, now_ms: int
) -> PartitionResponse:
    """Give the client what was read at the next fetch offset, and say where to read for the next request."""
    fetch_offset = draft.next_fetch_offset()
    batches = tuple(_batches_at(fetch_offset, draft.start, request))
    if not batches:
        return PartitionResponse(next_fetch_offset=fetch_offset)
    asked = AcquireBatches(
        member_id=request.member_id,
        max_records=request.max_records,
        mode=request.mode,
        log_batches=batches,
        fetch_offset=fetch_offset,
        batch_size=request.batch_size,
    )
    response = acquire_batches(draft, asked, limits, now_ms)
    # What was archived now, as it holds no record, is acknowledged by nobody: a window of aborted transactions would
    # stay full for ever.
    draft.advance_start()
    return replace(response, next_fetch_offset=draft.next_fetch_offset())


def _batches_at(fetch_offset: int, start: int, request: AcquireReadAhead) -> Iterator[LogBatch]:
    """Yield the batches that the client may get, without what is below the SPSO: the log may start inside of one."""
    read = next((one for one in request.reads if one.holds(fetch_offset)), None)
    if read is None:
        return
    left, begin = request.max_bytes, bisect_left(read.batches, fetch_offset, key=_last_offset)
    for number in range(begin, len(read.batches)):
        left -= read.batches[number].size_bytes
        if number > begin and left < 0:
            return
        batch = read.batches[number]
        yield batch if batch.base_offset >= start else batch._replace(base_offset=start)
