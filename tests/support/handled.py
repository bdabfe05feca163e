"""One delivery without an engine."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from share_spark.delivery import deliver
from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delivery.result import DeliveryResult
from share_spark.delivery.worker import HandlerTask
from share_spark.handlers.handler import Handler
from share_spark.handlers.kinds import HandlerKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def new_place(*, one_machine: bool = True) -> LedgerPlace:
    """A place for the ledgers of a member that has begun its run."""
    place = LedgerPlace(group="test", member_id=uuid.uuid4().hex, one_machine=one_machine)
    place.start()
    return place


def handled(records: DataFrame, handler: Handler, *, place: LedgerPlace | None = None, **more: Any) -> DeliveryResult:
    """What the handler says of ``records``. Without a ``place`` the ledgers are forgotten afterwards."""
    if handler.kind is HandlerKind.FRAME:
        return deliver.handled_as_frame(records, handler)
    own = new_place() if place is None else place
    result = deliver.handled(records, HandlerTask.of(handler, own, **more))
    if place is None:
        own.forget([own.member_id])
    return result
