"""Topics to redrive to, in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from share_spark.admin.redrive import Sent
from share_spark.admin.redriven_record import REDRIVE_ID, RedrivenRecord
from share_spark.model.errors import TopicError


@dataclass(slots=True)
class MemoryTopics:
    """A RedriveTarget. ``refused``: values that it does not take; ``meanwhile``: called before each piece."""

    topics: Mapping[str, Collection[int]] = field(default_factory=lambda: {"orders": {0, 1}})
    refused: Collection[bytes] = ()
    meanwhile: Any = lambda: None
    records: list[RedrivenRecord] = field(default_factory=list)

    def partitions(self, topic: str) -> Collection[int]:
        if topic not in self.topics:
            raise TopicError(f"topic {topic!r} does not exist")
        return self.topics[topic]

    def send(self, records: Sequence[RedrivenRecord]) -> Sent:
        self.meanwhile()
        taken = [at for at, record in enumerate(records) if record.value not in self.refused]
        self.records += [records[at] for at in taken]
        return Sent(taken, None if len(taken) == len(records) else "the broker said no")

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    @property
    def ids(self) -> list[bytes | None]:
        return [dict(record.headers)[REDRIVE_ID] for record in self.records]
