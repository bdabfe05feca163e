"""What happened, record by record, kept apart from the engine; every commit and every handler call is judged by it.

The ledger knows nothing of runs of offsets, segments or stores. It reads each record that is appended to the state log,
offset by offset, decides by itself whether it counts, and asks of each offset: was this transition one that the world
gives a reason for? The reasons are what handlers answered, which of them were entered, what the sink holds, the time,
and the log start, each as it was when the engine decided (``settled``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.model.ids import TopicPartition, is_client
from share_spark.model.records import UNCHANGED, DeliveryState, Doubt, InFlightBatch, ShareSnapshot, ShareUpdate
from tests.simulation.facts import (
    ACCEPT,
    ACQUIRED,
    AVAILABLE,
    REJECT,
    Acquisition,
    At,
    Books,
    Cell,
    Course,
    Courses,
    Decided,
    Fate,
    Said,
    demand,
)
from tests.simulation.outside import Outside, is_free
from tests.simulation.settled import Settled
from tests.twins.late_calls import AHEAD, AHEAD_BY_KEY
from tests.twins.memory import InMemoryStateLog, StateCommit

_ACKNOWLEDGED, _ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED


@dataclass(slots=True)
class Window:
    """The window of one share-partition, one entry per offset."""

    start: int = -1
    cells: dict[int, Cell] = field(default_factory=dict)
    snapshot_epoch: int = -1

    def after(self, record: ShareSnapshot | ShareUpdate) -> Window:
        """Read by the words of R74-R85, offset by offset."""
        if isinstance(record, ShareSnapshot):
            demand(record.snapshot_epoch > self.snapshot_epoch, "snapshot epoch goes back:", record)
            return Window(record.start_offset, _cells(record.batches), record.snapshot_epoch)
        demand(record.snapshot_epoch == self.snapshot_epoch, "update of another snapshot:", record)
        moved = record.start_offset != UNCHANGED
        start = record.start_offset if moved else self.start
        kept = {offset: cell for offset, cell in self.cells.items() if not moved or offset >= start}
        kept |= _cells(record.batches)
        cells = {offset: cell for offset, cell in kept.items() if offset >= start or not cell.state.is_final}
        return Window(start, cells, self.snapshot_epoch)

    @property
    def end(self) -> int:
        """The SPEO, exclusive."""
        return max(self.start, max(self.cells, default=-1) + 1)

    def below(self, end: int) -> Window:
        """As it is once the log has lost what was at ``end`` and above."""
        cells = {offset: cell for offset, cell in self.cells.items() if offset < end}
        return Window(min(self.start, end), cells, self.snapshot_epoch)

    @property
    def deepest_doubt(self) -> Doubt:
        """Of what waits."""
        return max((cell.doubt for cell in self.cells.values() if cell.state is AVAILABLE), default=Doubt.NONE)


def _cells(batches: tuple[InFlightBatch, ...]) -> dict[int, Cell]:
    return {offset: Cell(*run[2:]) for run in batches for offset in range(run.first_offset, run.last_offset + 1)}


def _is_of_handler(cell: Cell) -> bool:
    return cell.state is ACQUIRED and not is_client(cell.member_id or "")


class Taken(NamedTuple):
    """A record that a commit has acquired, and what was doubted of it before."""

    one: At
    cell: Cell
    doubt: Doubt


@dataclass(slots=True, kw_only=True)
class Ledger(Books):
    """``counted``: by run and batch id. ``owners``: by version, the run that owned the group. ``lost``: members whose
    own ledgers are gone with their machine. ``read``: those whose finished calls another one has read. ``first``: from
    where on a partition's records are the group's. ``key_of``: the key of a record that the log holds, if order is to
    be kept. ``is_called``: a worker that has outlived its engine has this record in its handler."""

    group_id: str
    windows: dict[TopicPartition, Window] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    first: dict[TopicPartition, int] = field(default_factory=dict)
    owner: tuple[int, str] = (0, "")
    owners: list[str] = field(default_factory=list)
    counted: dict[tuple[str, int], StateCommit] = field(default_factory=dict)
    key_of: Callable[[At], bytes | None] = lambda _: None

    # ------------------------------------------------------------------------------------------------- who may write

    def owned_by(self, version: int) -> str:
        """The run that owned the group once ``version`` was written."""
        return self.owners[version] if version >= 0 else ""

    def append(self, log: InMemoryStateLog, commit: StateCommit, decided: Decided | None) -> bool:
        """``commit`` is now the newest of ``log``. Does it count? Of two claims of one epoch the first does."""
        demand(len(log.commits) == len(self.owners) + 1, "an append that the ledger has not seen")
        own = commit.group_id == self.group_id
        if own and commit.kind == "claim" and commit.writer_epoch > self.owner[0]:
            self.owner = (commit.writer_epoch, commit.run_id)
        self.owners.append(self.owner[1])
        self.times.append(self.times[-1] if self.times else 0)
        counts = own and commit.kind == "records" and (commit.writer_epoch, commit.run_id) == self.owner
        if counts:
            assert decided is not None
            demand(decided.run_id == commit.run_id, "stamped with another run:", commit.run_id)
            earlier = self.counted.setdefault((commit.run_id, commit.batch_id), commit)
            if earlier is commit:
                self._judge(log.version, commit, decided)
            demand(commit == earlier, "a repeated append says something else:", commit, "not", earlier)
        return counts

    # ------------------------------------------------------------------------------------------------------- commits

    def _judge(self, version: int, commit: StateCommit, decided: Decided) -> None:
        before_ms, now_ms = self.times[-1], decided.now_ms
        demand(commit.at_ms == now_ms >= before_ms, "time goes back from", before_ms, "to", now_ms)
        self.times[-1] = now_ms
        searched = self._searched(decided)
        taken: list[Taken] = []
        finished = set(self.fates)
        for topic, record in commit.records:
            at = TopicPartition(topic, record.key.partition)
            before = self.windows.get(at, Window())
            after = before.after(record)
            before = self._cut(at, before, isinstance(record, ShareSnapshot), decided)
            taken += self._judge_partition(at, before, after, decided, version)
            self.windows[at] = after
            self.first[at] = min(after.start, self.first.get(at, after.start))
        self._check_none_is_past_the_end(decided)
        if not decided.has_target:
            self.unlettered |= self.fates.keys() - finished
        most = decided.config.max_records_per_trigger
        self._judge_suspects(taken, searched if searched >= Doubt.LOST_TWICE else Doubt.NONE, most)
        for one, cell, _ in taken:
            demand(not self.is_called(one), one, "is acquired while a worker of an engine before is in its handler")
            self.acquisitions[one] = Acquisition(version, decided.member_id, cell.count, cell.doubt)
            attempts = self.entered[one] + self.overcharged[one]
            demand(cell.count == attempts + 1, one, "has count", cell.count, "after", attempts, "attempts")
        if taken:
            attempts = self.deliveries.get(decided.member_id, {}) if self.is_late else {}
            self.deliveries[decided.member_id] = attempts | {one: self.acquisitions[one] for one, _, _ in taken}
        if taken and self.is_late:
            self._judge_in_flight(decided, any(cell.doubt >= Doubt.LOST_TWICE for _, cell, _ in taken))

    def _searched(self, decided: Decided) -> Doubt:
        """The deepest doubt; what is paused waits with its suspects, and keeps no others waiting."""
        running = (
            window.deepest_doubt
            for at, window in self.windows.items()
            if not decided.pauses.holds(at.topic, at.partition, decided.now_ms)
        )
        return max(running, default=Doubt.NONE)

    def _cut(self, at: TopicPartition, before: Window, is_whole: bool, decided: Decided) -> Window:
        """``before`` without what the engine has seen to be gone. Only a snapshot can say that (R61)."""
        ends = decided.looked.get(at)
        if ends is None or before.start == -1 or ends.log_end >= before.end:
            return before
        demand(is_whole, at, "was truncated to", ends.log_end, "which no update can say; it was", before)
        self.forget(at, ends.log_end)
        return before.below(ends.log_end)

    def _check_none_is_past_the_end(self, decided: Decided) -> None:
        for at, ends in decided.looked.items():
            end = self.windows[at].end if at in self.windows else 0
            demand(end <= ends.log_end, at, "is known up to", end, "though its log ends at", ends.log_end)

    def _judge_partition(
        self, at: TopicPartition, before: Window, after: Window, decided: Decided, version: int
    ) -> list[Taken]:
        """Returns what was acquired for handlers."""
        demand(after.start >= before.start, at, "the SPSO goes back from", before.start, "to", after.start)
        outside = self._outside(at, before, after, decided, version)
        outside.judge()
        taken = []
        for offset, settled in sorted(outside.cells.items()):
            one = (at, offset)
            was, cell = before.cells.get(offset), after.cells.get(offset)
            demand(cell is not None or offset < after.start, one, "has vanished:", was)
            if cell is not None and _is_of_handler(cell) and (cell != was or is_free(settled, decided.now_ms)):
                taken.append(self._taken(one, was, cell, settled, decided))
                is_known = settled is not None or offset in outside.left
                is_inside = is_known or offset < after.start + decided.config.max_record_locks
                demand(is_inside, one, "is past the window from", after.start)
            elif not (outside.is_renewed(offset, cell) or (settled is None and outside.is_left(offset, cell))):
                self._check_settled(one, was, cell, settled)
        self._skip_to(at, before, after, decided)
        return taken

    def _outside(self, at: TopicPartition, before: Window, after: Window, decided: Decided, version: int) -> Outside:
        """The records as they are once everything before the requests of clients is done."""
        waits = {offset: cell.deadline_ms for offset, cell in after.cells.items() if cell.state is AVAILABLE}
        offsets = sorted(before.cells.keys() | after.cells.keys())
        held = self.windows.get(at, before).cells.values()
        has_clients = any(is_client(cell.member_id or "") for cell in held)
        rules = {one: Settled(self, (at, one), decided, before.start, waits.get(one), has_clients) for one in offsets}
        settled = {one: rule.settle(before.cells.get(one)) for one, rule in rules.items()}
        return Outside(
            books=self, at=at, decided=decided, version=version, start=before.start, cells=settled, until_ms=waits
        )

    def _taken(self, one: At, was: Cell | None, cell: Cell, settled: Cell | Fate | None, decided: Decided) -> Taken:
        demand(is_free(settled, decided.now_ms), one, "acquired out of", was, "at", decided.now_ms)
        assert not isinstance(settled, Fate)
        count = (settled.count if settled else 0) + 1
        expected = (ACQUIRED, count, decided.member_id, decided.now_ms + decided.config.lock_duration_ms)
        demand(cell[:4] == expected, one, "acquired as", cell, "not", expected, "from", was)
        excused = settled.excused if settled else 0
        demand(cell.excused == excused, one, "acquired with", cell.excused, "excused deliveries, not", excused)
        ends = decided.ends[one[0]]
        end = ends.end_offset if settled is None else decided.looked[one[0]].log_end
        demand(ends.log_start_offset <= one[1] < end, one, "acquired outside of the log", ends, "up to", end)
        demand(not decided.stopping, one, "acquired by an engine that stops")
        is_paused = decided.pauses.holds(one[0].topic, one[0].partition, decided.now_ms)
        demand(not is_paused, one, "acquired, and paused is", decided.pauses)
        return Taken(one, cell, settled.doubt if settled else Doubt.NONE)

    def _check_settled(self, one: At, was: Cell | None, cell: Cell | None, settled: Cell | Fate | None) -> None:
        if isinstance(settled, Fate):
            final = _ACKNOWLEDGED if settled.kind == "accepted" else _ARCHIVED
            demand(cell is None or cell.state is final, one, "should be", settled, "is", cell, "was", was)
            if one not in self.fates:
                self.fates[one] = settled
            return
        demand(settled is not None, one, "came to", cell, "without being acquired")
        demand(cell is not None, one, "has vanished, should be", settled, "was", was)
        demand(cell == settled, one, "should be", settled, "is", cell, "was", was)

    def _judge_suspects(self, taken: list[Taken], searched: Doubt, most: int) -> None:
        """Suspects run by themselves, those of the deepest doubt first; all other acquisitions leave them out."""
        suspects = [found for found in taken if found.cell.doubt >= Doubt.LOST_TWICE]
        for one, cell, doubt in taken:
            if suspects:
                demand(doubt is searched, one, "of doubt", doubt, "runs while", searched, "is searched")
                is_alone = cell.doubt is Doubt.ALONE and doubt is Doubt.ACCUSED and len(taken) == 1
                demand(cell.doubt is doubt or is_alone, one, "runs as", cell.doubt, "among", len(taken))
            else:
                free = doubt < max(searched, Doubt.LOST_TWICE) and cell.doubt == min(doubt, Doubt.LOST_ONCE)
                demand(free, one, "of doubt", doubt, "runs with others as", cell.doubt, "while", searched)
        if not suspects:
            demand(len(taken) <= most, len(taken), "records acquired at once")

    def _judge_in_flight(self, decided: Decided, are_suspects: bool) -> None:
        """Of what an engine has just acquired, beside what it had: there is room for it, and suspects run by
        themselves."""
        held = [
            cell
            for window in self.windows.values()
            for offset, cell in window.cells.items()
            if cell.state is ACQUIRED and cell.member_id == decided.member_id and offset >= window.start
        ]
        room = (AHEAD_BY_KEY if decided.config.delivery_order == "key" else AHEAD) * decided.config.max_in_flight
        demand(are_suspects or len(held) <= room, len(held), "records in flight, there is room for", room)
        mixed = are_suspects != all(cell.doubt >= Doubt.LOST_TWICE for cell in held)
        demand(not mixed, "suspects are in flight beside others:", held)

    def _skip_to(self, at: TopicPartition, before: Window, after: Window, decided: Decided) -> None:
        """What the SPSO has passed without a cell was never acquired: only the log start may do that (R25)."""
        if before.start == -1:
            return
        log_start = decided.log_start(at)
        for offset in range(before.start, after.start):
            if offset not in before.cells and offset not in after.cells and (at, offset) not in self.fates:
                is_hole = self.has_clients and offset >= log_start and self.is_empty((at, offset))
                demand(offset < log_start or is_hole, (at, offset), "is passed over, the log start is", log_start)
                self.fates[at, offset] = Fate("gap" if is_hole else "log start")

    # ------------------------------------------------------------------------------------------------- calls and sink

    def enter(self, run_id: str, held: Acquisition | None, one: At, count: int) -> None:
        """A handler is entered with a record. ``held``: the acquisition by which its engine was given it."""
        demand(held is not None and held.count == count, one, "delivered with count", count, "held:", held)
        assert held is not None
        demand(not held.course.entered, one, "delivered twice with count", count)
        if self.is_late and self._is_gone(one, held):  # its record was read before the log lost it
            held.course = Course(entered=True, waits=True)
            return
        before = self.entered[one] + self.overcharged[one]
        demand(count == before + 1, one, "delivered with count", count, "after", before, "attempts")
        held.course = Course(entered=True, waits=self.is_late)
        self.entered[one] += 1
        is_replaced = run_id != self.owner[1] and (self.is_late or held.member_id in self.read)
        demand(not is_replaced, one, "delivered by", run_id, "after it was replaced")
        cell = self.windows[one[0]].cells.get(one[1])
        holds = cell is not None and cell[:3] == (ACQUIRED, count, held.member_id)
        demand(holds, one, "delivered without being held:", cell)
        demand(one not in self.in_sink or self.in_sink[one][0] != held.version, one, "delivered after its output")
        self._check_order(one, held)

    def _is_gone(self, one: At, held: Acquisition) -> bool:
        """Has the log lost the record of this attempt?"""
        return held.is_gone or one[1] < self.windows[one[0]].start

    def _check_order(self, one: At, held: Acquisition) -> None:
        """Whatever lies before a record and has its key is finished, or a handler has finished it, and the engine goes
        on with that."""
        (at, offset), key = one, self.key_of(one)
        if key is None or one in self.unseen:
            return
        window = self.windows[at]
        for earlier in ((at, before) for before in range(window.start, offset)):
            is_over = earlier in self.fates or earlier in self.unseen or self.key_of(earlier) != key
            cell = window.cells.get(earlier[1])
            is_over = is_over or self._is_done(self.acquisitions.get(earlier), cell, held)
            demand(is_over, one, "is entered before the end of", earlier, cell)

    def _is_done(self, attempt: Acquisition | None, cell: Cell | None, of: Acquisition) -> bool:
        """By a handler of the same delivery, or, where calls outlast deliveries, of the same member."""
        if attempt is None or attempt.answer not in (ACCEPT, REJECT):
            return False
        if attempt.version == of.version:
            return True
        return self.is_late and cell is not None and cell[:3] == (ACQUIRED, attempt.count, of.member_id)

    def courses(self) -> Courses:
        """As they are now."""
        return {
            member: {one: held.course for one, held in delivery.items()} for member, delivery in self.deliveries.items()
        }

    def put_out(self, held: Mapping[At, Acquisition], said: Mapping[At, Said], *, stopping: bool) -> None:
        """The sink has committed the output of this delivery: its answers are final. An engine may be ``stopping`` as
        it could not note a truncation."""
        for one, answer in said.items():
            demand(stopping or not held[one].is_gone, one, "is put out, although the log was truncated")
            if self.is_late and self._is_gone(one, held[one]):
                self.rows_of_the_gone[one] += answer.kind == ACCEPT
                continue
            if answer.kind == ACCEPT:
                is_now = one not in self.fates and self.acquisitions[one] is held[one]
                demand(is_now, one, "put out by an attempt that is over")
            self.in_sink[one] = held[one].version, answer
