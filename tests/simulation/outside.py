"""What outside members ask in one commit, judged record by record: the rules of share groups, written again.

An engine decides many requests in one commit, one after the other, and says how each has ended. Here every answer has
to be one that the records allow at that moment, and what it says must be what happens to them. Which records a fetch
gets is the engine's to choose: they must be free, and their counts the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from share_spark.model.errors import ErrorCode
from share_spark.model.ids import TopicPartition
from share_spark.model.records import Doubt
from share_spark.model.requests import ArchiveReason, PartitionResponse, ReleaseMember
from share_spark.partition.kafka_modes import AcknowledgeOrRenew, AcquireMode, AcquireReadAhead, TypedBatch
from share_spark.partition.kafka_modes.requests import RENEW
from tests.simulation.facts import ACQUIRED, AVAILABLE, Acquisition, At, Books, Cell, Decided, Fate, demand
from tests.simulation.settled import Settled


def is_free(settled: Cell | Fate | None, now_ms: int) -> bool:
    """May it be acquired?"""
    if not isinstance(settled, Cell):
        return settled is None
    return settled.state is AVAILABLE and (settled.deadline_ms is None or settled.deadline_ms <= now_ms)


@dataclass(slots=True, kw_only=True)
class Outside:
    """One share-partition while a commit is judged. ``cells``: its records as they are after all that comes before the
    requests of clients, and then after each of these. ``until_ms``: how long they wait, by the commit. ``start``: the
    SPSO before. ``in_doubt``: a request that renews has failed, and may have renewed these. ``left``: what a fetch by
    the record limit has got leaves the rest of its batches in the window, as if no attempt had been made."""

    books: Books
    at: TopicPartition
    decided: Decided
    version: int
    start: int
    cells: dict[int, Cell | Fate | None]
    until_ms: dict[int, int | None]
    in_doubt: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)

    def judge(self) -> None:
        """All requests, in order."""
        for request, response in self.decided.asked.get(self.at, ()):
            demand(not self.decided.stopping, self.at, "is decided for clients by an engine that stops:", request)
            if isinstance(request, AcknowledgeOrRenew):
                self._acknowledge(request, response.error)
            elif isinstance(request, ReleaseMember):
                self._release(request.member_id)
            elif isinstance(request, AcquireReadAhead):
                self._acquire(request, response)

    def is_renewed(self, offset: int, cell: Cell | None) -> bool:
        """``cell``: by the commit. Has a request renewed its lock before it failed?"""
        settled = self.cells[offset]
        if offset not in self.in_doubt or cell is None or not isinstance(settled, Cell):
            return False
        return cell == settled._replace(deadline_ms=self._deadline_ms)

    @property
    def _deadline_ms(self) -> int:
        return self.decided.now_ms + self.decided.config.lock_duration_ms

    def _first(self) -> int:
        """The SPSO at this moment."""
        start = max(self.start, self.decided.log_start(self.at))
        unfinished = [one for one, cell in self.cells.items() if one >= start and isinstance(cell, Cell)]
        return min(unfinished, default=max(start, self._end()))

    def _end(self) -> int:
        """The SPEO at this moment."""
        return max((one for one, cell in self.cells.items() if cell is not None), default=-1) + 1

    def _settled(self, offset: int) -> Settled:
        return Settled(self.books, (self.at, offset), self.decided, self.start, self.until_ms.get(offset))

    def _held(self, offset: int, owner: str) -> Cell | None:
        """The record, if this member holds it."""
        cell = self.cells.get(offset)
        return cell if isinstance(cell, Cell) and cell.state is ACQUIRED and cell.member_id == owner else None

    # ------------------------------------------------------------------------------------------- acknowledgements

    def _acknowledge(self, request: AcknowledgeOrRenew, error: ErrorCode) -> None:
        first, owner = self._first(), request.member_id
        named = [found for batch in request.batches for found in _each(batch) if found[0] >= first]
        if error:
            is_refused = any(self._held(offset, owner) is None for offset, _ in named)
            demand(is_refused, self.at, error, "is said to", request, "although it holds", self._states(named))
            self.in_doubt |= {offset for offset, kind in named if kind == RENEW and self._held(offset, owner)}
            return
        for offset, kind in named:
            held = self._held(offset, owner)
            is_hole = self.cells.get(offset) is None and self.books.is_empty((self.at, offset))
            demand(held is not None or is_hole, (self.at, offset), "is acknowledged by", owner, self._states(named))
            if held is not None:
                self._end_attempt(offset, held, kind)

    def _end_attempt(self, offset: int, held: Cell, kind: int) -> None:
        if kind == RENEW:
            self.cells[offset] = held._replace(deadline_ms=self._deadline_ms)
            return
        self.cells[offset] = self._settled(offset).acknowledged_by_client(held, kind)
        self.books.acquisitions[self.at, offset].answer = kind

    def _release(self, owner: str) -> None:
        for offset in sorted(self.cells):
            held = self._held(offset, owner)
            if held is not None:
                session = self.books.acquisitions[self.at, offset].session
                goes_on = session is not None and not session.is_over
                demand(not goes_on, (self.at, offset), "is taken from", owner, "whose session goes on")
                self.cells[offset] = self._settled(offset).given_up(held)

    def _states(self, named: list[tuple[int, int]]) -> dict[int, Cell | Fate | None]:
        return {offset: self.cells.get(offset) for offset, _ in named}

    # ---------------------------------------------------------------------------------------------------- fetches

    def _acquire(self, request: AcquireReadAhead, response: PartitionResponse) -> None:
        has_room = self._end() - self._first() < self.decided.config.max_record_locks
        if response.acquired or response.archived:
            is_paused = self.decided.pauses.holds(self.at.topic, self.at.partition, self.decided.now_ms)
            demand(not is_paused, self.at, "acquired for clients, and paused is", self.decided.pauses)
        for found in response.archived:
            demand(found.reason is ArchiveReason.GAP, self.at, "is archived by a fetch:", found)
            for offset in range(found.first_offset, found.last_offset + 1):
                self._take(offset, request.member_id, None, has_room=has_room)
                self.cells[offset] = Fate("gap")
        for first, last, count in response.acquired:
            for offset in range(first, last + 1):
                self._take(offset, request.member_id, count, has_room=has_room)
        if (response.acquired or response.archived) and request.mode is AcquireMode.RECORD_LIMIT:
            batches = (batch for read in request.reads for batch in read.batches)
            self.left |= {offset for first, last, *_ in batches for offset in range(first, last + 1)}

    def _take(self, offset: int, owner: str, count: int | None, *, has_room: bool) -> None:
        one, was, decided = (self.at, offset), self.cells.get(offset), self.decided
        is_gap = count is None and isinstance(was, Cell) and was.state is AVAILABLE  # it waits for nothing any more
        is_right = is_gap or is_free(was, decided.now_ms)
        demand(is_right, one, "is given to", owner, "out of", was, "at", decided.now_ms)
        demand(has_room or was is not None or offset in self.left, one, "is past a window that is full")
        inside = decided.log_start(self.at) <= offset < decided.looked[self.at].log_end
        demand(inside, one, "is given to", owner, "outside of the log", decided.looked[self.at])
        demand(not self.books.is_called(one), one, "is given to", owner, "while a worker has it in its handler")
        if count is None:
            return
        attempts = self.books.entered[one] + self.books.overcharged[one]
        demand(count == attempts + 1, one, "is given with count", count, "after", attempts, "attempts")
        assert not isinstance(was, Fate)
        excused = was.excused if was is not None else 0
        self.cells[offset] = Cell(ACQUIRED, count, owner, self._deadline_ms, Doubt.NONE, excused)
        self.books.entered[one] += 1
        attempt = Acquisition(self.version, owner, count, Doubt.NONE)
        self.books.acquisitions[one] = self.books.given[one, owner, count] = attempt

    def is_left(self, offset: int, cell: Cell | None) -> bool:
        """Is it one that a fetch by the record limit has left?"""
        return cell == Cell(AVAILABLE, 0, None, None, Doubt.NONE) and offset in self.left


def _each(batch: TypedBatch) -> list[tuple[int, int]]:
    first, last, types = batch
    kinds = types * (last - first + 1) if len(types) == 1 else types
    return list(zip(range(first, last + 1), kinds, strict=True))


def holds_still(books: Books, one: At, attempt: Acquisition, cell: Cell | None) -> bool:
    """Is this attempt of an outside member still going on, by the log?"""
    is_current = books.acquisitions.get(one) is attempt and not attempt.is_gone
    return is_current and cell is not None and cell[:3] == (ACQUIRED, attempt.count, attempt.member_id)
