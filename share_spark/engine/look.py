"""An engine as of one moment, for those who watch it: metrics, and the progress of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from share_spark.engine.outage import Outage
from share_spark.engine.pauses import Pauses
from share_spark.engine.step import PartitionSummary
from share_spark.model.ids import LogEnds, SharePartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLook:
    """``writer_epoch``: 0 before the claim. ``load_s``: seconds that the state took to load. ``read_at_ms``: when the
    clock was read last, at the start and by each micro-batch, idle ones too; 0 before that. ``pauses``: what is paused.
    ``breaker``: why the circuit breaker is open; empty while it is closed. ``outage``: that is ridden out."""

    writer_epoch: int
    load_s: float
    read_at_ms: int
    summaries: Mapping[SharePartitionKey, PartitionSummary]
    ends: Mapping[SharePartitionKey, LogEnds]
    pauses: Pauses
    breaker: str
    outage: Outage | None = None
