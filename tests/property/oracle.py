"""A share-partition record by record: an independent oracle, written from the rules, slow and plain.

One entry per offset in a dict, nothing clever; it shares no code with the package but the values of requests. It covers
acquisitions by offset alone (``AcquireMode.EXACT``), and everything else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
FINAL = (ACKNOWLEDGED, ARCHIVED)
INVALID_REQUEST, INVALID_RECORD_STATE = "INVALID_REQUEST", "INVALID_RECORD_STATE"


@dataclass
class Record:
    """State of one offset in the window."""

    state: int
    count: int
    member: str | None = None
    deadline: int | None = None
    lost_among: int = 0

    def end(self, state: int, limit: int, lost_among: int = 0) -> None:
        """R4, R6: leave Acquired; back to Available only while attempts are left."""
        assert self.state == ACQUIRED
        spent = state == AVAILABLE and self.count >= limit
        self.state = ARCHIVED if spent else state
        self.lost_among = lost_among if self.state == AVAILABLE else 0
        self.member = self.deadline = None


@dataclass
class Oracle:
    """SPSO, SPEO (exclusive) and a record per offset."""

    max_count: int
    max_locks: int
    lock_ms: int
    start: int = 0
    end: int = 0
    records: dict[int, Record] = field(default_factory=dict)

    def next_fetch_offset(self) -> int:
        """R36."""
        open_ = [o for o, r in self.records.items() if r.state == AVAILABLE]
        return min(open_, default=self.end)

    def acquire(self, member: str, last: int, most: int, now: int) -> list[tuple[int, int]]:
        """R37, R38: (offset, delivery count) of what the member gets of the log up to ``last``."""
        got = []
        for offset in range(self.next_fetch_offset(), last + 1):
            if len(got) == most:
                break
            if offset >= self.end:
                if offset - self.start >= self.max_locks:
                    break
                self.records[offset] = Record(AVAILABLE, 0)
                self.end = offset + 1
            record = self.records.get(offset)
            if record is not None and record.state == AVAILABLE and not record.lost_among:
                record.state, record.count = ACQUIRED, record.count + 1
                record.member, record.deadline = member, now + self.lock_ms
                got.append((offset, record.count))
        return got

    def acquire_suspects(self, member: str, now: int) -> list[tuple[int, int]]:
        """One piece of what crashes have left: fewest deliveries first; by its size the last attempt is one alone."""
        waiting = [(r.count, o, r.lost_among) for o, r in self.records.items() if r.state == AVAILABLE and r.lost_among]
        if not waiting:
            return []
        count, _, among = min(waiting)
        factor = 1
        while count < self.max_count and factor ** (self.max_count - count) < among:
            factor += 1
        size = -(-among // factor) if count < self.max_count else 1
        piece = [o for c, o, a in sorted(waiting) if (c, a) == (count, among)][:size]
        for offset in piece:
            record = self.records[offset]
            record.state, record.count, record.lost_among = ACQUIRED, count + 1, len(piece)
            record.member, record.deadline = member, now + self.lock_ms
        return [(offset, count + 1) for offset in piece]

    def acknowledge(self, member: str, batches: list[tuple[int, int, list[int]]], now: int) -> str | None:
        """R47-R53, and renewals (KIP-1222)."""
        if not self.well_formed(batches):
            return INVALID_REQUEST
        ended: dict[int, int] = {}
        for first, last, types in batches:
            error = self.note_batch(member, first, last, types, ended, now)
            if error is not None:
                return error
        for offset, kind in ended.items():
            state = {0: ARCHIVED, 1: ACKNOWLEDGED, 2: AVAILABLE, 3: ARCHIVED}[kind]
            self.records[offset].end(state, self.max_count)
        if ended:
            self.advance()
        return None

    def note_batch(
        self,
        member: str,
        first: int,
        last: int,
        types: list[int],
        ended: dict[int, int],
        now: int,
    ) -> str | None:
        """R49 for one batch; what it ends goes into ``ended``, renewals are done at once."""
        if last < self.start:
            return None
        known = [o for o in self.records if o >= self.start or self.is_held_below(o)]
        if not known or (first >= self.start and first < min(known)):
            return INVALID_RECORD_STATE
        if last > max(known):
            return INVALID_REQUEST
        for offset in (o for o in range(max(first, self.start), last + 1) if o in self.records):
            record = self.records[offset]
            if record.state != ACQUIRED or record.member != member or offset in ended:
                return INVALID_RECORD_STATE
            kind = types[0] if len(types) == 1 else types[offset - first]
            if kind == 4:
                record.deadline = now + self.lock_ms
            else:
                ended[offset] = kind
        return None

    @staticmethod
    def well_formed(batches: list[tuple[int, int, list[int]]]) -> bool:
        """R48, with Kafka's leniency for one shared offset."""
        previous = -1
        for first, last, types in batches:
            if first > last or first < previous or len(types) not in (1, last - first + 1):
                return False
            if any(kind not in range(5) for kind in types):
                return False
            previous = last
        return True

    def is_held_below(self, offset: int) -> bool:
        return self.records[offset].state == ACQUIRED

    def end_attempts(self, offsets: list[int]) -> None:
        """R55, R57; what lies below the log start is archived whatever its count."""
        for offset in offsets:
            below = offset < self.start
            record = self.records[offset]
            record.end(ARCHIVED if below else AVAILABLE, self.max_count, record.lost_among)
        if offsets:
            self.advance()

    def lose(self, offsets: list[int], in_handler: frozenset[str] | None = None) -> None:
        """A crash took these: only one that ran alone can be archived for it."""
        inside = [o for o in offsets if o >= self.start]
        among = Counter(self.records[o].count for o in inside)
        alone = [o for o in inside if self.records[o].lost_among == 1]
        guilty = [o for o in alone if in_handler is None or self.records[o].member in in_handler]
        overdue = [o for o in alone if self.records[o].count >= 2 * self.max_count]
        self.end_attempts([o for o in offsets if o < self.start or o in guilty or o in overdue])
        for offset in inside:
            record = self.records.get(offset)
            if record is not None and record.state == ACQUIRED:
                record.end(AVAILABLE, record.count + 1, among[record.count])
        if offsets:
            self.advance()

    def expire(self, now: int, *, lost: bool = False, in_handler: frozenset[str] | None = None) -> None:
        held = ((o, r.deadline) for o, r in self.records.items())
        due = [o for o, at in held if at is not None and at <= now]
        self.lose(due, in_handler) if lost else self.end_attempts(due)

    def release(self, member: str) -> None:
        self.end_attempts([o for o, r in self.records.items() if r.member == member])

    def move_log_start(self, offset: int) -> None:
        """R25."""
        if offset <= self.start:
            return
        for at, record in list(self.records.items()):
            if at < offset and record.state == AVAILABLE:
                record.state = ARCHIVED
        self.start = offset
        self.end = max(self.end, offset)
        self.forget()

    def advance(self) -> None:
        """R15; an Acquired record below the start holds it up."""
        self.forget()
        if any(offset < self.start for offset in self.records):
            return
        unfinished = [o for o, r in self.records.items() if r.state not in FINAL]
        if self.records:
            self.start = max(self.start, min(unfinished, default=self.end))
        self.forget()

    def forget(self) -> None:
        """R2: below the start, only what is still held has a state."""
        for offset in [o for o in self.records if o < self.start]:
            if self.records[offset].state != ACQUIRED:
                del self.records[offset]
