"""The sink of a test: a list of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from share_spark.engine.delivery_port import AcknowledgedSpans
from share_spark.engine.ports import Claim, CommittedOutput
from share_spark.model.ids import BatchStamp


@dataclass(slots=True, kw_only=True)
class CollectedOutput:
    """An OutputSink. ``rows_of_delivery``: returns those of the last delivery. ``rows``: what was committed."""

    has_output: bool
    rows_of_delivery: Callable[[], Sequence[pa.Table]]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:  # noqa: ARG002
        """Return None: nothing was committed before."""
        return None

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None = None) -> None:  # noqa: ARG002
        """Keep the rows of the last delivery."""
        self.rows += [row for table in self.rows_of_delivery() for row in table.to_pylist()]

    def forget(self) -> None:
        """Do nothing: no other engine comes."""
