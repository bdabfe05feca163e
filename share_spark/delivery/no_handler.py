"""The delivery of a group that has no handler of its own: all of its records are for clients outside of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from share_spark.delivery.member_ledgers import LedgerDelivery
from share_spark.engine.delivery_port import (
    AcknowledgedSpan,
    AcquiredSpan,
    Delivered,
    DeliveryAtOnce,
    DeliveryLimits,
)
from share_spark.engine.ports import Claim
from share_spark.model.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from share_spark.delivery.kept_input import Wanted


@dataclass(slots=True, kw_only=True)
class NoHandler(LedgerDelivery, DeliveryAtOnce):
    """Delivery port that takes no records. An engine before may have had a handler: what that has left in ledgers is
    found. ``spark``: None where there is no session."""

    spark: SparkSession | None

    def start(self, claim: Claim) -> None:
        """See ``Delivery``."""
        self._ledgers.start(self.spark, claim)

    def room(self, limits: DeliveryLimits) -> int:  # noqa: ARG002
        """Return 0: nothing is acquired."""
        return 0

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:  # noqa: ARG002
        """Return False: there is no output."""
        self._ledgers.drop_rows()
        return False

    def deliver(self, acquired: Sequence[AcquiredSpan], *, limits: DeliveryLimits, in_turn: bool = False) -> Delivered:  # noqa: ARG002
        """Return nothing. No record comes here, as there is no room for one."""
        assert not acquired, acquired
        return Delivered(())

    def kept_records(self, wanted: Wanted) -> pa.Table | None:  # noqa: ARG002
        """Return None: no records are kept for dead letters."""
        return None

    def forget_last(self, ends: Mapping[TopicPartition, int]) -> None:
        """Do nothing: there was no delivery."""

    def stop_waiting(self) -> None:
        """Do nothing: no records are waited for."""

    def close(self) -> None:
        """Do nothing: nothing is kept."""
