"""What happened, record by record, kept apart from the engine; every commit and every handler call is judged by it.

The ledger knows nothing of runs of offsets, segments or stores. It reads each record that is appended to the state log,
offset by offset, decides by itself whether it counts, and asks of each offset: was this transition one that the world
gives a reason for? The reasons are what handlers answered, what the sink holds, the time, and the log start, each as
the engine had read it when it decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from share_spark.engine.memory import InMemoryStateLog, StateCommit
from share_spark.engine.step import LOST
from share_spark.model.ids import TopicPartition
from share_spark.model.offsets import LogEnds
from share_spark.model.records import UNCHANGED, DeliveryState, InFlightBatch, ShareSnapshot, ShareUpdate
from share_spark.model.requests import AcknowledgeType

At = tuple[TopicPartition, int]
"""A record: where, and its offset."""

ACCEPT, RELEASE, REJECT, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.GAP,
)
_AVAILABLE, _ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
_ACKNOWLEDGED, _ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED


class Violation(BaseException):
    """A promise is broken. Not an Exception: to an engine that would be a fault to recover from."""


def demand(holds: bool, *what: object) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(" ".join(str(part) for part in what))


class Cell(NamedTuple):
    """One offset of the window, as ``InFlightBatch`` without its offsets."""

    state: DeliveryState
    count: int
    member_id: str | None
    deadline_ms: int | None
    lost_among: int


class Said(NamedTuple):
    """An answer about one record: acknowledge type or LOST, and the text that came with it."""

    kind: int
    error: str | None


@dataclass(slots=True, eq=False)
class Acquisition:
    """One attempt at one record. ``company``: how many records the same micro-batch acquired, this one included."""

    version: int
    member_id: str
    count: int
    company: int
    called: bool = False


class Fate(NamedTuple):
    """How a record ended. ``may_have_letter``: also where log start and limit both were reasons."""

    kind: str
    count: int = 0
    error: str | None = None
    may_have_letter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What an engine knew when it decided: the reasons that its commit may have."""

    run_id: str
    member_id: str
    now_ms: int
    ends: Mapping[TopicPartition, LogEnds]
    said: Mapping[At, tuple[Acquisition, Said]]
    stopping: bool
    charged: bool
    died_in_handler: frozenset[str]

    def log_start(self, at: TopicPartition) -> int:
        """0 where nothing was to be decided."""
        return self.ends[at].log_start_offset if at in self.ends else 0


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


def _cells(batches: tuple[InFlightBatch, ...]) -> dict[int, Cell]:
    return {offset: Cell(*run[2:]) for run in batches for offset in range(run[0], run[1] + 1)}


@dataclass(slots=True)
class Ledger:
    """``fates``: of every record that is finished. ``in_sink``: answers that a commit of the sink has decided, with the
    version that acquired. ``counted``: by run and batch id. ``owners``: the run that owned the group, by version."""

    group_id: str
    lock_ms: int
    limit: int
    max_locks: int
    max_records: int
    windows: dict[TopicPartition, Window] = field(default_factory=dict)
    acquisitions: dict[At, Acquisition] = field(default_factory=dict)
    suspects: set[At] = field(default_factory=set)
    fates: dict[At, Fate] = field(default_factory=dict)
    in_sink: dict[At, tuple[int, Said]] = field(default_factory=dict)
    acquired_times: dict[At, int] = field(default_factory=dict)
    owner: tuple[int, str] = (0, "")
    owners: list[str] = field(default_factory=list)
    counted: dict[tuple[str, int], StateCommit] = field(default_factory=dict)
    crash_archived: int = 0

    # ------------------------------------------------------------------------------------------------- who may write

    def owned_by(self, version: int) -> str:
        """The run that owned the group once ``version`` was written."""
        return self.owners[version] if version >= 0 else ""

    def append(self, log: InMemoryStateLog, commit: StateCommit, decided: Decided | None) -> bool:
        """``commit`` is now the newest of ``log``. Does it count? Of two claims of one epoch the first does."""
        demand(len(log.commits) == len(self.owners) + 1, "an append that nobody told of")
        own = commit.group_id == self.group_id
        if own and commit.kind == "claim" and commit.writer_epoch > self.owner[0]:
            self.owner = (commit.writer_epoch, commit.run_id)
        self.owners.append(self.owner[1])
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
        taken: list[At] = []
        for topic, record in commit.records:
            at = TopicPartition(topic, record.key.partition)
            before = self.windows.get(at, Window())
            after = before.after(record)
            taken += self._judge_partition(at, before, after, decided)
            self.windows[at] = after
        self._judge_company(taken)
        for one in taken:
            count = self.windows[one[0]].cells[one[1]].count
            self.acquisitions[one] = Acquisition(version, decided.member_id, count, len(taken))
            self.acquired_times[one] = self.acquired_times.get(one, 0) + 1
            demand(count == self.acquired_times[one], one, "has count", count, "not", self.acquired_times[one])

    def _judge_partition(self, at: TopicPartition, before: Window, after: Window, decided: Decided) -> list[At]:
        """Returns what was acquired."""
        demand(after.start >= before.start, at, "the SPSO goes back from", before.start, "to", after.start)
        taken = []
        for offset in sorted(before.cells.keys() | after.cells.keys()):
            one = (at, offset)
            was, cell = before.cells.get(offset), after.cells.get(offset)
            demand(cell is not None or offset < after.start, one, "has vanished:", was)
            settled = Settled(self, one, decided).settle(was)
            if self._is_taken(one, was, cell, settled, decided):
                taken.append(one)
                demand(offset < after.start + self.max_locks, one, "is past the window from", after.start)
            else:
                self._check_settled(one, was, cell, settled)
        self._skip_to(at, before, after, decided)
        return taken

    def _is_taken(
        self, one: At, was: Cell | None, cell: Cell | None, settled: Cell | Fate | None, decided: Decided
    ) -> bool:
        if cell is None or cell.state is not _ACQUIRED or cell == was:
            return False
        free = settled is None or (isinstance(settled, Cell) and settled.state is _AVAILABLE)
        demand(free, one, "acquired out of", was)
        assert not isinstance(settled, Fate)
        count = (settled.count if settled else 0) + 1
        expected = (_ACQUIRED, count, decided.member_id, decided.now_ms + self.lock_ms)
        demand(cell[:4] == expected, one, "acquired as", cell, "not", expected, "from", was)
        ends = decided.ends[one[0]]
        demand(ends.log_start_offset <= one[1] < ends.end_offset, one, "acquired outside of the log", ends)
        demand(not decided.stopping, one, "acquired by an engine that stops")
        return True

    def _check_settled(self, one: At, was: Cell | None, cell: Cell | None, settled: Cell | Fate | None) -> None:
        if isinstance(settled, Fate):
            final = _ACKNOWLEDGED if settled.kind == "accepted" else _ARCHIVED
            demand(cell is None or cell.state is final, one, "should be", settled, "is", cell, "was", was)
            if one not in self.fates:
                self.fates[one] = settled
            self.suspects.discard(one)
            return
        demand(settled is not None, one, "came to", cell, "without being acquired")
        demand(cell is not None, one, "has vanished, should be", settled, "was", was)
        assert settled is not None
        assert cell is not None
        demand(cell[:4] == settled[:4], one, "should be", settled, "is", cell, "was", was)
        if cell.state is _AVAILABLE:
            demand((one in self.suspects) == (cell.lost_among > 0), one, "suspect or not:", cell, "was", was)

    def _judge_company(self, taken: list[At]) -> None:
        """What a crash has put in doubt runs by itself: one piece of one share-partition."""
        doubted = [one for one in taken if one in self.suspects]
        if doubted:
            demand(len(doubted) == len(taken), "suspects", doubted[:3], "run with others", taken[:3])
            demand(len({at for at, _ in taken}) == 1, "suspects of several share-partitions run together")
        else:
            demand(len(taken) <= self.max_records, len(taken), "records acquired at once")
        for at, offset in taken:
            lost_among = self.windows[at].cells[offset].lost_among
            demand(lost_among == (len(taken) if doubted else 0), (at, offset), "runs among", lost_among)

    def _skip_to(self, at: TopicPartition, before: Window, after: Window, decided: Decided) -> None:
        """What the SPSO has passed without a cell was never acquired: only the log start may do that (R25)."""
        if before.start == -1:
            return
        log_start = decided.log_start(at)
        for offset in range(before.start, after.start):
            if offset not in before.cells and offset not in after.cells and (at, offset) not in self.fates:
                demand(offset < log_start, (at, offset), "is passed over, the log start is", log_start)
                self.fates[at, offset] = Fate("log start")

    # ------------------------------------------------------------------------------------------------- calls and sink

    def call(self, run_id: str, held: Acquisition | None, one: At, count: int) -> None:
        """A handler is called with a record. ``held``: the acquisition by which its engine was given it."""
        demand(held is not None and held.count == count, one, "delivered with count", count, "held:", held)
        assert held is not None
        demand(not held.called, one, "delivered twice with count", count)
        held.called = True
        if run_id == self.owner[1]:
            cell = self.windows[one[0]].cells.get(one[1])
            holds = cell is not None and cell[:3] == (_ACQUIRED, count, held.member_id)
            demand(holds, one, "delivered without being held:", cell)
            demand(one not in self.in_sink or self.in_sink[one][0] != held.version, one, "delivered after its output")

    def put_out(self, held: Mapping[At, Acquisition], said: Mapping[At, Said]) -> None:
        """The sink has committed the output of this delivery: its answers are final."""
        for one, answer in said.items():
            if answer.kind == ACCEPT:
                is_now = one not in self.fates and self.acquisitions[one] is held[one]
                demand(is_now, one, "put out by an attempt that is over")
            self.in_sink[one] = held[one].version, answer


@dataclass(slots=True)
class Settled:
    """What must become of one record in one commit, before anything is acquired."""

    ledger: Ledger
    one: At
    decided: Decided

    def settle(self, was: Cell | None) -> Cell | Fate | None:
        """None: never acquired. A Cell: stays, or is Available now. A Fate: finished."""
        if was is None:
            return None
        if was.state.is_final:
            return self.ledger.fates[self.one]
        if was.state is _AVAILABLE:
            return Fate("log start") if self._is_below() else was
        return self._settle_acquired(was)

    def _settle_acquired(self, was: Cell) -> Cell | Fate:
        held = self.ledger.acquisitions[self.one]
        in_sink = self.ledger.in_sink.get(self.one)
        of, said = self.decided.said.get(self.one, (None, None))
        if said is not None and of is held:
            return self._answered(was, said)
        if in_sink is not None and in_sink[0] == held.version:
            return self._answered(was, in_sink[1])
        if self.one[0] not in self.decided.ends:
            return was
        if was.member_id == self.decided.member_id and self.decided.stopping:
            return self._given_back(was)
        assert was.deadline_ms is not None
        if was.deadline_ms <= self.decided.now_ms:
            overdue = was.count >= 2 * self.ledger.limit
            return self._lost(was, None, guilty=overdue or was.member_id in self.decided.died_in_handler)
        return was

    def _answered(self, was: Cell, said: Said) -> Cell | Fate:
        if said.kind == LOST:
            return self._lost(was, said.error)
        if said.kind == ACCEPT:
            return Fate("accepted", was.count)
        if said.kind == REJECT:
            return Fate("rejected", was.count, said.error)
        if said.kind == GAP:
            return Fate("gap")
        self.ledger.suspects.discard(self.one)
        return self._released(was, said.error)

    def _released(self, was: Cell, error: str | None) -> Cell | Fate:
        if was.count >= self.ledger.limit:
            return Fate("delivery limit reached", was.count, error, self._is_below())
        return Fate("log start") if self._is_below() else _available(was.count)

    def _given_back(self, was: Cell) -> Cell | Fate:
        if not self.decided.charged:
            self.ledger.acquired_times[self.one] -= 1
            return Fate("log start") if self._is_below() else _available(was.count - 1)
        return self._released(was, None)

    def _lost(self, was: Cell, error: str | None, *, guilty: bool = True) -> Cell | Fate:
        """In a crash. The limit archives only what ran alone, and whose engine, if that died, died in the handler."""
        if self._is_below():
            return Fate("log start", was.count, error, was.count >= self.ledger.limit)
        held = self.ledger.acquisitions[self.one]
        ran_alone = self.one in self.ledger.suspects and held.company == 1
        self.ledger.suspects.add(self.one)
        if ran_alone and guilty and was.count >= self.ledger.limit:
            self.ledger.crash_archived += 1
            return Fate("delivery limit reached", was.count, error)
        demand(was.count <= 2 * self.ledger.limit, self.one, "has lost more attempts than the limit allows:", was)
        return _available(was.count)

    def _is_below(self) -> bool:
        return self.one[1] < self.decided.log_start(self.one[0])


def _available(count: int) -> Cell:
    return Cell(_AVAILABLE, count, None, None, 0)
