"""Output rows to a Kafka topic: at least once, in messages that name their record and its delivery.

    rows of accepted records  ->  messages, flushed: the broker has all of them  ->  the acknowledgements are committed

What a process that dies in between has sent is sent again by the next one, which takes the rows from the ledgers, or
after another delivery. Headers say which are the same: ``share_spark.group``, ``.topic``, ``.partition``, ``.offset``
and ``.row``, the number of the message among those of its record; ``share_spark.delivery.count`` says of which delivery
it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from share_spark.engine.delivery_port import AcknowledgedSpans
from share_spark.engine.ports import Claim, CommittedOutput
from share_spark.kafka.message_sender import KafkaMessage, MessageSender
from share_spark.model.errors import OutputRefusedError, SinkError
from share_spark.model.ids import BatchStamp
from share_spark.output.sink import FormerSinks

PREFIX = "share_spark."


class MessageSource(Protocol):
    """A delivery whose handler has messages (``handlers.message_rows``)."""

    def outputs_here(self) -> pa.Table | None:
        """Return the rows of the answers that it returned last, on the driver. Raises SinkError, OutputLostError."""
        ...

    def free_outputs(self) -> None:
        """Free these rows."""
        ...


@dataclass(slots=True, kw_only=True)
class KafkaOutput:
    """An OutputSink for messages of ``delivery``. ``former``: the sinks of earlier engines."""

    topic: str
    sender: MessageSender
    delivery: MessageSource
    former: FormerSinks
    _group_id: str = field(default="", init=False)

    @property
    def has_output(self) -> bool:
        """Whether there is output: always."""
        return True

    def claim(self, claim: Claim, last_counted: BatchStamp) -> CommittedOutput | None:
        """Claim the tables that earlier engines had as sinks. Raises FencedError, SinkError, StateError."""
        self._group_id = claim.group_id
        return self.former.claim(claim, last_counted)

    def commit(self, stamp: BatchStamp, answers: AcknowledgedSpans, member_id: str | None = None) -> None:  # noqa: ARG002
        """Send the messages. Raises OutputRefusedError (some are refused, all others were sent), OutputLostError,
        SinkError."""
        rows = self.delivery.outputs_here()
        if rows is not None and rows.num_rows:
            self._send(rows.to_pylist())
        self.delivery.free_outputs()

    def forget(self) -> None:
        """Remove the absorbed entry of a former sink. Raises StateError."""
        self.former.forget()

    def _send(self, rows: list[dict[str, Any]]) -> None:
        sent = self.sender.send([self._message(row) for row in rows])
        if sent.fault is not None:
            raise SinkError(f"topic {self.topic} did not take the messages: {sent.fault}")
        if sent.refused:
            raise OutputRefusedError({_place(rows[at]): error for at, error in sent.refused.items()})

    def _message(self, row: Mapping[str, Any]) -> KafkaMessage:
        own = [(header["key"], header["value"]) for header in row["headers"] or ()]
        names = {
            "group": self._group_id,
            "topic": row["record_topic"],
            "partition": row["record_partition"],
            "offset": row["record_offset"],
            "row": row["number"],
            "delivery.count": row["delivery_count"],
        }
        told = [(f"{PREFIX}{name}", str(value).encode()) for name, value in names.items()]
        return KafkaMessage(self.topic, row["partition"], row["key"], row["value"], [*own, *told])


def _place(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["record_topic"], row["record_partition"], row["record_offset"]
