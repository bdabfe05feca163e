"""An in-memory twin of the clients outside of Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from share_spark.coordinator.group import GroupRequests
from share_spark.engine.client_asks import ClientAnswer, ClientAsk, GroupAnswer, GroupAsk
from share_spark.model.config import GroupConfig
from share_spark.model.errors import ShareError
from share_spark.model.ids import SharePartitionKey
from share_spark.model.requests import PartitionResponse
from share_spark.partition.kafka_modes import KafkaRequest


@dataclass(slots=True)
class InMemoryClients:
    """A ``Clients`` port. ``asked``: what the next micro-batch takes. ``answers`` by number; ``changed``: what each
    call of ``answer`` has named. ``forgotten``: what was read of these, once for each truncation. ``refused``: why,
    once for each engine that has ended. ``group_ask``: what members ask with the next micro-batch; ``group_answers`` by
    number. ``config``: the settings that count."""

    asked: list[ClientAsk] = field(default_factory=list)
    answers: dict[int, Mapping[SharePartitionKey, Sequence[PartitionResponse]]] = field(default_factory=dict)
    changed: list[set[SharePartitionKey]] = field(default_factory=list)
    forgotten: list[SharePartitionKey] = field(default_factory=list)
    refused: list[ShareError | None] = field(default_factory=list)
    group_ask: GroupAsk | None = None
    group_answers: dict[int, GroupAnswer] = field(default_factory=dict)
    config: GroupConfig | None = None
    _numbers: int = 0

    def ask(self, requests: Mapping[SharePartitionKey, Sequence[KafkaRequest]]) -> int:
        """Ask with the next micro-batch. Return the number of the ask."""
        self._numbers += 1
        self.asked.append(ClientAsk(self._numbers, requests))
        return self._numbers

    def ask_group(self, requests: GroupRequests) -> int:
        """Ask as members with the next micro-batch, in place of what was asked and not taken. Return the number."""
        self._numbers += 1
        self.group_ask = GroupAsk(self._numbers, requests)
        return self._numbers

    def take_group(self) -> GroupAsk | None:
        taken, self.group_ask = self.group_ask, None
        return taken

    def answer_group(self, answer: GroupAnswer) -> None:
        assert answer.number not in self.group_answers, "an ask is answered once"
        self.group_answers[answer.number] = answer

    def take(self) -> Sequence[ClientAsk]:
        taken, self.asked = self.asked, []
        return taken

    def configure(self, config: GroupConfig) -> None:
        self.config = config

    def forget_reads(self, keys: Collection[SharePartitionKey]) -> None:
        self.forgotten += keys

    def answer(self, answers: Sequence[ClientAnswer], changed: Collection[SharePartitionKey]) -> None:
        self.changed.append(set(changed))
        for number, responses in answers:
            assert number not in self.answers, "an ask is answered once"
            self.answers[number] = responses

    def refuse(self, fault: ShareError | None) -> None:
        self.refused.append(fault)

    def wait(self, seconds: float) -> None:
        """Do nothing: no time passes here."""

    def stop_waiting(self) -> None:
        """Do nothing: nobody waits."""
