"""What must become of one record in one commit, before anything is acquired: the rules of the ledger, written again.

Nothing here is shared with ``share_spark.partition``. How an attempt of an ended engine was lost is taken from what
really happened: which handlers were entered, and which of them were left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from share_spark.engine.step import LOSSES
from share_spark.model.ids import is_client
from share_spark.model.records import Doubt
from share_spark.model.requests import Loss
from share_spark.partition import PartitionLimits
from share_spark.partition.backoff import Backoff
from tests.simulation.facts import (
    ACCEPT,
    AVAILABLE,
    DIED_AMONG_OTHERS,
    GAP,
    NOT_YET,
    REJECT,
    THROTTLED,
    At,
    Books,
    Cell,
    Course,
    Decided,
    Fate,
    Said,
    demand,
)

_DEEPER = {
    Doubt.NONE: Doubt.LOST_ONCE,
    Doubt.LOST_ONCE: Doubt.LOST_TWICE,
    Doubt.LOST_TWICE: Doubt.LOST_IN_PIECE,
    Doubt.LOST_IN_PIECE: Doubt.ACCUSED,
    Doubt.ACCUSED: Doubt.ACCUSED,
    Doubt.ALONE: Doubt.ACCUSED,
}


_UNCOUNTED = (Loss.NOT_ENTERED, Loss.THROTTLED)


def delays_after(backoff: Backoff, count: int) -> tuple[int, int]:
    """The shortest and the longest that a record may wait after so many deliveries."""
    if backoff.policy == "none":
        return 0, 0
    doubles = backoff.policy == "exponential"
    most_ms = backoff.max_delay_ms if doubles else 10**9
    middle_ms = min(backoff.delay_ms * 2 ** (count - 1 if doubles else 0), most_ms)
    spread_ms = round(middle_ms * backoff.jitter)
    rounding_ms = 1 if spread_ms else 0
    return max(middle_ms - spread_ms - rounding_ms, 0), min(middle_ms + spread_ms + rounding_ms, most_ms)


def loss_of(one: At, delivery: Mapping[At, Course]) -> Loss:
    """How the attempt at ``one`` has ended if the engine of ``delivery`` is dead, and its ledgers show it."""
    course = delivery.get(one, NOT_YET)
    in_handlers = sum(other.in_handler for other in delivery.values())
    if not course.entered:
        return Loss.NOT_ENTERED
    if course.waits:
        return Loss.FINISHED
    if course.in_handler:
        return Loss.IN_HANDLER if in_handlers == 1 else Loss.AMONG_OTHERS
    if course.left == DIED_AMONG_OTHERS:
        return Loss.AMONG_OTHERS
    if course.left == THROTTLED:
        return Loss.THROTTLED
    is_told = in_handlers or any(other.left == DIED_AMONG_OTHERS for other in delivery.values())
    return Loss.FINISHED if is_told else Loss.AFTER_HANDLER


@dataclass(slots=True)
class Settled:
    """Of one record. ``start``: the SPSO before; an attempt below it goes on where the log start was higher once, also
    where an unclean leader election has moved that back since. ``until_ms``: before which it is not acquired, by the
    commit that is judged. ``has_clients``: some of them hold records of this share-partition; then locks end once more
    when the log start is known."""

    books: Books
    one: At
    decided: Decided
    start: int
    until_ms: int | None = None
    has_clients: bool = False

    def settle(self, was: Cell | None) -> Cell | Fate | None:
        """None: never acquired. A Cell: stays, or is Available now. A Fate: finished."""
        if was is None:
            return None
        if was.state.is_final:
            return self.books.fates[self.one]
        if was.state is AVAILABLE:
            return Fate("log start") if self._is_below() else was
        return self._settle_acquired(was)

    def _settle_acquired(self, was: Cell) -> Cell | Fate:
        if is_client(was.member_id or ""):
            return self._settle_lock_of_client(was)
        if self.books.is_late and self.one[1] < self.start:
            return self._settle_below(was)
        held = self.books.acquisitions[self.one]
        in_sink = self.books.in_sink.get(self.one)
        of, said = self.decided.said.get(self.one, (None, None))
        if said is not None and of is held:
            return self._answered(was, said, self.decided.said_ms)
        if in_sink is not None and in_sink[0] == held.version:
            return self._answered(was, in_sink[1], self.decided.now_ms)
        if self.one[0] not in self.decided.ends:
            return was
        is_own = was.member_id == self.decided.member_id
        if is_own and self.decided.gives_back:
            return self._lost(was, Loss.NOT_ENTERED, None)
        assert was.deadline_ms is not None
        if was.deadline_ms > self.decided.now_ms:
            return was
        if is_own:
            return Fate("log start", was.count) if self.has_clients and self._is_below() else was
        return self._lost(was, self._loss(was.member_id), None)

    def _settle_lock_of_client(self, was: Cell) -> Cell | Fate:
        """Whoever has the group: it is an attempt that has failed, and nobody is suspected."""
        assert was.deadline_ms is not None
        if was.deadline_ms > self.decided.now_ms or self.one[0] not in self.decided.ends:
            return was
        return self.given_up(was)

    def given_up(self, was: Cell) -> Cell | Fate:
        """By an outside member: its lock has run out, or its session has ended."""
        if self._is_below():
            return Fate("log start", was.count)
        self.books.failed[self.one] += 1
        if self._is_used_up(was):
            return Fate("delivery limit reached", was.count, by_client=True)
        return _available(was.count, Doubt.NONE, was.excused)

    def acknowledged_by_client(self, was: Cell, kind: int) -> Cell | Fate:
        """Of a record that it holds, at or above the SPSO."""
        return self._answered(was, Said(kind, None), self.decided.now_ms, by_client=True)

    def _settle_below(self, was: Cell) -> Cell | Fate:
        """No answer counts below the SPSO. There even the locks of an engine that lives end."""
        assert was.deadline_ms is not None
        is_own = was.member_id == self.decided.member_id
        is_over = was.deadline_ms <= self.decided.now_ms or (is_own and self.decided.gives_back)
        return Fate("log start", was.count) if is_over and self.one[0] in self.decided.ends else was

    def _loss(self, member_id: str | None) -> Loss:
        assert member_id is not None
        if member_id in self.decided.lost:
            return Loss.UNKNOWN
        # An engine that stops at once commits no output, so that of the engine before may be lost.
        is_kept = self.books.acquisitions[self.one].is_kept and not self.decided.stopping
        demand(not is_kept, self.one, "has an answer, which the next engine has not taken over")
        return loss_of(self.one, self.decided.courses[member_id])

    def _answered(self, was: Cell, said: Said, since_ms: int, *, by_client: bool = False) -> Cell | Fate:
        if said.kind in LOSSES:
            lost = self._lost(was, Loss(said.kind), said.error)
            since_ms = self.decided.now_ms if said.kind == Loss.THROTTLED else since_ms
            return self._held_back(lost, said.delay_ms, since_ms) if said.delay_ms and isinstance(lost, Cell) else lost
        if said.kind == ACCEPT:
            return Fate("accepted", was.count, by_client=by_client)
        if said.kind == REJECT:
            return Fate("rejected", was.count, said.error, by_client=by_client)
        if said.kind == GAP:
            return Fate("gap")
        self.books.failed[self.one] += 1
        if self._is_used_up(was):
            return Fate("delivery limit reached", was.count, said.error, self._is_below(), by_client)
        return Fate("log start") if self._is_below() else self._released(was, said)

    def _held_back(self, given_back: Cell, wait_ms: int, since_ms: int) -> Cell:
        """It waits as long as the record before it, or as a service asks, unless it is searched."""
        until_ms = since_ms + wait_ms
        if given_back.doubt >= Doubt.LOST_TWICE or until_ms <= self.decided.now_ms:
            return given_back
        return given_back._replace(deadline_ms=until_ms)

    def _released(self, was: Cell, said: Said) -> Cell:
        """What the handler asks for, exactly, else within what the group's settings say."""
        least_ms = most_ms = said.delay_ms or 0
        if said.delay_ms is None:
            least_ms, most_ms = delays_after(PartitionLimits.of(self.decided.config).backoff, was.count)
        now_ms, until_ms = self.decided.now_ms, self.until_ms
        if until_ms is None or not least_ms <= until_ms - now_ms <= most_ms:
            until_ms = now_ms + least_ms if least_ms else None
        return Cell(AVAILABLE, was.count, None, until_ms, Doubt.NONE, was.excused)

    def _lost(self, was: Cell, loss: Loss, error: str | None) -> Cell | Fate:
        """Not acknowledged. The limit archives only what was the only one in a handler, and accused of it before."""
        self._charge(loss)
        self.books.suspicions[self.one] += loss not in (*_UNCOUNTED, Loss.FINISHED)
        is_charged = self._was_alone(was, loss)
        self.books.failed[self.one] += is_charged
        is_guilty = is_charged and (loss is Loss.AFTER_HANDLER or self._is_used_up(was))
        if self._is_below():
            return Fate("log start", was.count, error, is_guilty)
        if is_guilty:
            self.books.alone_in_crash.append(self.one)
            demand(self.books.suspicions[self.one] > 1, self.one, "is archived for the first death")
            return Fate("delivery limit reached", was.count, error)
        if loss in _UNCOUNTED:
            return _available(was.count - 1, self._doubt_after(was, loss), was.excused)
        return _available(was.count, self._doubt_after(was, loss), was.excused + (not is_charged))

    def _is_used_up(self, was: Cell) -> bool:
        return was.count - was.excused >= self.decided.config.max_delivery_count

    def _charge(self, loss: Loss) -> None:
        """The books: an attempt is charged if its handler was entered, and never otherwise where that is known."""
        entered = self.books.acquisitions[self.one].course.entered
        if loss is Loss.THROTTLED:
            # Not entered: its engine died before the delivery began, and has left the ledger of the one before.
            self.books.entered[self.one] -= entered
        elif loss is Loss.NOT_ENTERED and entered:
            is_forgiven = self.books.acquisitions[self.one] in self.decided.forgiven
            demand(is_forgiven, self.one, "was in a handler, and its attempt is taken back")
            self.books.entered[self.one] -= 1
        elif loss is not Loss.NOT_ENTERED and not entered:
            demand(loss is Loss.UNKNOWN, self.one, "was in no handler, and is charged as", loss)
            self.books.overcharged[self.one] += 1

    def _was_alone(self, was: Cell, loss: Loss) -> bool:
        overdue = was.count >= 2 * self.decided.config.max_delivery_count
        if was.doubt is Doubt.ALONE and (loss is Loss.UNKNOWN or (loss is Loss.AFTER_HANDLER and overdue)):
            return True
        return loss is Loss.IN_HANDLER and was.doubt >= Doubt.ACCUSED

    def _doubt_after(self, was: Cell, loss: Loss) -> Doubt:
        match loss:
            case Loss.NOT_ENTERED | Loss.THROTTLED:
                return min(was.doubt, Doubt.ACCUSED)
            case Loss.FINISHED:
                return Doubt.NONE
            case Loss.IN_HANDLER | Loss.AMONG_OTHERS:
                return Doubt.ACCUSED
            case Loss.UNKNOWN | Loss.AFTER_HANDLER:
                return _DEEPER[was.doubt]

    def _is_below(self) -> bool:
        return self.one[1] < max(self.start, self.decided.log_start(self.one[0]))


def _available(count: int, doubt: Doubt, excused: int) -> Cell:
    return Cell(AVAILABLE, count, None, None, doubt, excused)
