"""The base of deliveries in the process of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from share_spark.delivery.acquired_records import with_earlier
from share_spark.delivery.member_ledgers import LedgerDelivery
from share_spark.delivery.reader_input import in_equal_parts
from share_spark.engine.delivery_port import AcknowledgedSpan, AcquiredSpan, DeliveryAtOnce
from share_spark.engine.ports import TopicLog
from share_spark.engine.record_reader import RecordPart
from share_spark.handlers.handler import Handler
from share_spark.model.ids import TopicPartition
from share_spark.testing.called_handler import CallLog

if TYPE_CHECKING:
    from share_spark.delivery.kept_input import Wanted

BATCH_ROWS = 10_000


@dataclass(slots=True, kw_only=True)
class DeliveryHere(DeliveryAtOnce, LedgerDelivery):
    """The part of a Delivery that is the same for all handlers. ``rows``: the output rows of the last delivery."""

    log: TopicLog
    handler: Handler
    ordered: bool
    calls_log: CallLog
    rows: Sequence[pa.Table] = ()

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:  # noqa: ARG002
        """Return False: no engine was there before."""
        return False

    def kept_records(self, wanted: Wanted) -> pa.Table | None:  # noqa: ARG002
        """Return None: the log has them."""
        return None

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        """Do nothing: the log is not truncated."""

    def stop_waiting(self) -> None:
        """Do nothing: no record is waited for."""

    def _part(self, acquired: Sequence[AcquiredSpan]) -> RecordPart:
        """Return what reads the acquired records and, in order of keys, marks of those that hold back their keys."""
        (wanted,) = in_equal_parts(with_earlier(acquired) if self.ordered else acquired, 1)
        reader = self.log.for_workers(None, wanted, ordered=self.ordered)
        assert reader is not None, "the log is a table on this machine"
        return reader.part(wanted)
