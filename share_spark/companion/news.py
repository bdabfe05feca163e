"""The news of companion processes, collected until the engine asks for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from share_spark.companion.answers import entered_in, rows_of, spans_of
from share_spark.companion.hand_overs import HandOvers
from share_spark.companion.lost_calls import LostCalls
from share_spark.companion.messages import Answered, Limits, RecordAnswer
from share_spark.engine.delivery_port import Delivered
from share_spark.model.errors import ShareError, TopicUnreachableError


@dataclass(slots=True)
class News:
    """The news since the last ``deliver`` or ``drain``. ``throttled``: calls by the round in which they began.
    ``dead``: the first ledgers of processes that have died."""

    answers: list[RecordAnswer] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)
    fault: ShareError | None = None
    busy_s: float = 0.0
    cost: float = 0.0
    throttled: Counter[int] = field(default_factory=Counter)
    dead: list[Path] = field(default_factory=list)

    def note_answered(self, message: Answered, hand_overs: HandOvers) -> list[RecordAnswer]:
        """Note a message of a process with these hand-overs. Return its answers that are of interest."""
        found = hand_overs.note(message.answers)
        self.answers += found
        self.busy_s += message.busy_s
        self.cost += message.cost
        self.throttled.update(message.throttled)
        self.rows += rows_of(message, found)
        return found

    def note_lost(self, calls: LostCalls, hand_overs: HandOvers, lost_error: str) -> None:
        """Note the answers for what a dead process has not answered. ``lost_error``: as in ``LostCalls.answers``."""
        answers = list(calls.answers(hand_overs.unanswered(), lost_error))
        self.rows += calls.rows_of(answers)
        self.answers += hand_overs.note(answers)

    def note_fault(self, fault: ShareError) -> None:
        """Note a fault; one that ends the query is kept before an outage."""
        if self.fault is None or isinstance(self.fault, TopicUnreachableError):
            self.fault = fault

    def delivered(self, limits: Limits, in_flight: int) -> Delivered:
        """Return the news as the engine takes them. As many calls as run at a time share the time that they took."""
        return Delivered(
            spans_of(self.answers),
            self.fault,
            entered_in(self.answers),
            self.busy_s / limits.most_calls,
            is_explained=bool(self.dead),
            in_flight=in_flight,
            throttled=self.throttled[limits.round_number],
            cost=self.cost,
        )
