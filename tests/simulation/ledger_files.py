"""The ledgers of members, as files that outlive their engines unless their machine is lost; and what the next engine
reads in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from share_spark.engine.attempts import AnsweredAttempt, ErrorRun, FinishedCalls, MemberTrace
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.ports import Claim
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, Loss, RetryDelay, TracedRange
from tests.simulation.facts import ACCEPT, DIED_AMONG_OTHERS, DONE, THROTTLED, At, Said

if TYPE_CHECKING:
    from tests.simulation.engine import SimulatedEngine


class Entry(NamedTuple):
    """A line of a ledger: with which count a handler was entered, how it was left, "" if it was not, and the answer.
    ``waits``: the call has not ended, and its code does not run."""

    count: int
    left: str = ""
    said: Said | None = None
    waits: bool = False


Blocks = dict[int, dict[At, Entry]]
"""By number of the hand-over; of a delivery at once there is one, 0."""

Files = dict[str, Blocks]
"""By member."""


def last_entries(blocks: Blocks) -> dict[At, Entry]:
    """Of each record the entry of the last attempt: the one with the highest count, of these the one written last."""
    last: dict[At, Entry] = {}
    for number in sorted(blocks):
        for one, entry in blocks[number].items():
            if one not in last or entry.count >= last[one].count:
                last[one] = entry
    return last


@dataclass(slots=True)
class SimulatedLedgers:
    """The part of a delivery that is about ledgers."""

    of: SimulatedEngine

    @property
    def _files(self) -> Files:
        return self.of.world.files

    def start(self, claim: Claim) -> None:
        self.of.point("start of delivery", OSError)
        self.of.others = set(self._files)
        self._files[claim.member_id] = {}
        self.of.point("after start of delivery", OSError)

    def finished_calls(self) -> Iterator[FinishedCalls]:
        self.of.point("read finished calls", OSError)
        own, has_sink = self.of.store.member_id, self.of.world.scenario.has_sink
        self.of.world.ledger.read |= self._files.keys() - {own}
        for member in reversed([member for member in self._files if member != own]):
            entries = {
                one: (entry.count, entry.said)
                for one, entry in sorted(last_entries(self._files[member]).items())
                if entry.said is not None
            }
            rows = {one: said for one, said in entries.items() if has_sink and said[1].kind == ACCEPT}
            if entries:
                self.of.takes_over(member, {one: said for one, said in entries.items() if one not in rows}, rows)
                yield _finished(member, entries, rows.keys())

    def hold_rows(self, accepted: Iterable[AcknowledgedSpan]) -> bool:
        return self.of.holds_rows(
            {(one.partition, offset) for one in accepted for run in one.ranges for offset in range(run[0], run[1] + 1)}
        )

    def traces(self) -> Sequence[MemberTrace]:
        self.of.point("read traces", OSError)
        self.of.learns()
        own = self.of.store.member_id
        others = {member: last_entries(blocks) for member, blocks in self._files.items() if member != own}
        return [MemberTrace(member, _traced(entries)) for member, entries in others.items()]

    def forget_traces(self) -> None:
        self.of.point("forget traces", OSError)
        for member in sorted(self.of.others & self._files.keys()):
            self.of.note("forgets the traces of", member)
            del self._files[member]

    def stop_waiting(self) -> None:
        """Nobody ever waits."""

    def close(self) -> None:
        """Nothing is kept."""


def _finished(member: str, entries: Mapping[At, tuple[int, Said]], with_rows: Collection[At]) -> FinishedCalls:
    """What the ledgers of a member say of calls that have ended, as the port promises it."""
    answered: dict[TopicPartition, list[AnsweredAttempt]] = {}
    put_out: dict[TopicPartition, list[AnsweredAttempt]] = {}
    errors: dict[TopicPartition, list[ErrorRun]] = {}
    delays: dict[TopicPartition, list[RetryDelay]] = {}
    for (at, offset), (count, said) in entries.items():
        found = put_out if (at, offset) in with_rows else answered
        answer = Loss.THROTTLED if said.kind == Loss.THROTTLED else AcknowledgeType(said.kind)
        found.setdefault(at, []).append(AnsweredAttempt(offset, offset, count, answer))
        if said.error is not None:
            errors.setdefault(at, []).append(ErrorRun(offset, offset, said.error))
        if said.delay_ms is not None:
            delays.setdefault(at, []).append(RetryDelay(offset, offset, said.delay_ms))
    both = ({at: tuple(some) for at, some in found.items()} for found in (answered, put_out))
    return FinishedCalls(member, next(both), next(both), errors, delays)


def _traced(entries: Mapping[At, Entry]) -> dict[TopicPartition, tuple[TracedRange, ...]]:
    """What the ledgers of a member say, as the port promises it."""
    in_handler = sum(not entry.left and not entry.waits for entry in entries.values())
    is_told = in_handler or any(entry.left == DIED_AMONG_OTHERS for entry in entries.values())
    losses = {
        DONE: Loss.FINISHED if is_told else Loss.AFTER_HANDLER,
        DIED_AMONG_OTHERS: Loss.AMONG_OTHERS,
        THROTTLED: Loss.THROTTLED,
        "": Loss.IN_HANDLER if in_handler == 1 else Loss.AMONG_OTHERS,
    }
    rows: dict[TopicPartition, list[TracedRange]] = {}
    for (at, offset), entry in sorted(entries.items()):
        loss = Loss.FINISHED if entry.waits else losses[entry.left]
        rows.setdefault(at, []).append(TracedRange(offset, offset, entry.count, loss))
    return {at: tuple(found) for at, found in rows.items()}
