"""A share-partition record by record: an independent oracle, written from the rules, slow and plain.

One entry per offset in a dict, nothing clever; it shares no code with the package but the values of requests. It covers
acquisitions by offset alone, and everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
FINAL = (ACKNOWLEDGED, ARCHIVED)
NO_DOUBT, LOST_ONCE, LOST_TWICE, LOST_IN_PIECE, ACCUSED, ALONE = range(6)
UNKNOWN, IN_HANDLER, AMONG_OTHERS, FINISHED, AFTER_HANDLER, NOT_ENTERED, THROTTLED = range(101, 108)
INVALID_REQUEST, INVALID_RECORD_STATE = "INVALID_REQUEST", "INVALID_RECORD_STATE"


@dataclass
class OracleRecord:
    """State of one offset in the window. ``deadline``: nobody acquires it before; of a member, or of a delay.
    ``excused``: how many of its deliveries do not count towards the limit."""

    state: int
    count: int
    member: str | None = None
    deadline: int | None = None
    doubt: int = NO_DOUBT
    excused: int = 0

    def end(self, state: int, limit: int, doubt: int = 0) -> None:
        """R4, R6: leave Acquired; back to Available only while attempts are left."""
        assert self.state == ACQUIRED
        spent = state == AVAILABLE and self.count - self.excused >= limit
        self.state = ARCHIVED if spent else state
        self.doubt = doubt if self.state == AVAILABLE else NO_DOUBT
        self.excused = self.excused if self.state == AVAILABLE else 0
        self.member = self.deadline = None

    def facts(self) -> tuple[int, int, str | None, int | None, int, int]:
        """All but the offset, in the order of the package."""
        return self.state, self.count, self.member, self.deadline, self.doubt, self.excused


@dataclass
class PartitionOracle:
    """SPSO, SPEO (exclusive) and a record per offset. ``backoff``: the delay after so many deliveries."""

    max_count: int
    max_locks: int
    lock_ms: int
    start: int = 0
    end: int = 0
    records: dict[int, OracleRecord] = field(default_factory=dict)
    backoff: Callable[[int], int] = lambda _: 0

    def next_fetch_offset(self) -> int:
        """R36."""
        open_ = [o for o, r in self.records.items() if r.state == AVAILABLE]
        return min(open_, default=self.end)

    def acquire(self, member: str, last: int, most: int, now: int, searched: int = NO_DOUBT) -> list[tuple[int, int]]:
        """R37, R38: (offset, delivery count) of what the member gets of the log up to ``last``."""
        got = []
        for offset in range(self.next_fetch_offset(), last + 1):
            if len(got) == most:
                break
            if offset >= self.end:
                if offset - self.start >= self.max_locks:
                    break
                self.records[offset] = OracleRecord(AVAILABLE, 0)
                self.end = offset + 1
            record = self.records.get(offset)
            if record is None or (record.deadline is not None and record.deadline > now):
                continue
            if record.state == AVAILABLE and record.doubt < max(searched, LOST_TWICE):
                record.state, record.count = ACQUIRED, record.count + 1
                record.doubt = min(record.doubt, LOST_ONCE)
                record.member, record.deadline = member, now + self.lock_ms
                got.append((offset, record.count))
        return got

    def acquire_suspects(
        self, member: str, searched: int, most: int, now: int, *, alone: bool = False
    ) -> list[tuple[int, int]]:
        """The first of those with this doubt."""
        piece = [o for o, r in sorted(self.records.items()) if (r.state, r.doubt) == (AVAILABLE, searched)][:most]
        for offset in piece:
            record = self.records[offset]
            record.state, record.count = ACQUIRED, record.count + 1
            record.doubt = ALONE if alone else searched
            record.member, record.deadline = member, now + self.lock_ms
        return [(offset, self.records[offset].count) for offset in piece]

    def acknowledge(
        self,
        member: str,
        batches: list[tuple[int, int, list[int]]],
        now: int,
        delays: dict[int, int] | None = None,
        *,
        may_renew: bool = True,
    ) -> str | None:
        """R47-R53, and renewals (KIP-1222). ``delays``: by offset, what the member asks for."""
        if not self.well_formed(batches, range(5 if may_renew else 4)):
            return INVALID_REQUEST
        ended: dict[int, int] = {}
        for first, last, types in batches:
            error = self.note_batch(member, first, last, types, ended, now)
            if error is not None:
                return error
        for offset, kind in ended.items():
            state = {0: ARCHIVED, 1: ACKNOWLEDGED, 2: AVAILABLE, 3: ARCHIVED}[kind]
            record = self.records[offset]
            record.end(state, self.max_count)
            delay = (delays or {}).get(offset, self.backoff(record.count))
            if record.state == AVAILABLE and delay:
                record.deadline = now + delay
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
    def well_formed(batches: list[tuple[int, int, list[int]]], kinds: range) -> bool:
        """R48, with Kafka's leniency for one shared offset."""
        previous = -1
        for first, last, types in batches:
            if first > last or first < previous or len(types) not in (1, last - first + 1):
                return False
            if any(kind not in kinds for kind in types):
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
            record.end(ARCHIVED if below else AVAILABLE, self.max_count)
        if offsets:
            self.advance()

    def lose(self, losses: dict[int, int]) -> None:
        """Attempts that ended without an acknowledgement, by what is known of how."""
        for offset, loss in losses.items():
            record = self.records[offset]
            if offset < self.start:
                record.end(ARCHIVED, self.max_count)
            elif self.is_to_blame(record, loss):
                # At last, one that was alone in so many micro-batches is to blame for all of them.
                overdue = loss == AFTER_HANDLER
                record.end(ARCHIVED if overdue else AVAILABLE, self.max_count, ACCUSED)
            else:
                self.give_back(record, loss)
        if losses:
            self.advance()

    def is_to_blame(self, record: OracleRecord, loss: int) -> bool:
        """It was the only one."""
        overdue = record.count >= 2 * self.max_count
        alone = record.doubt == ALONE and (loss == UNKNOWN or (loss == AFTER_HANDLER and overdue))
        return (loss == IN_HANDLER and record.doubt >= ACCUSED) or alone

    def give_back(self, record: OracleRecord, loss: int) -> None:
        """Whatever the limit says."""
        after = {
            NOT_ENTERED: min(record.doubt, ACCUSED),
            THROTTLED: min(record.doubt, ACCUSED),
            FINISHED: NO_DOUBT,
            AMONG_OTHERS: ACCUSED,
            IN_HANDLER: ACCUSED,
        }
        doubt = after.get(loss, min(record.doubt + 1, ACCUSED))
        record.end(AVAILABLE, record.count + 1, doubt)
        if loss in (NOT_ENTERED, THROTTLED):
            record.count -= 1
        else:
            record.excused += 1

    def expire(
        self, now: int, *, lost: bool = False, traces: dict[str, dict[int, tuple[int, int]]] | None = None
    ) -> None:
        """``traces``: by member and offset, (delivery count, how it ended) of what was entered."""
        held = ((o, r.deadline) for o, r in self.records.items() if r.state == ACQUIRED)
        due = [o for o, at in held if at is not None and at <= now]
        if lost:
            self.lose({o: self.traced(self.records[o], o, traces or {}) for o in due})
        else:
            self.end_attempts(due)

    def traced(self, record: OracleRecord, offset: int, traces: dict[str, dict[int, tuple[int, int]]]) -> int:
        """How an attempt of a dead member ended."""
        if record.member not in traces:
            return UNKNOWN
        count, loss = traces[record.member].get(offset, (-1, NOT_ENTERED))
        return loss if count == record.count else NOT_ENTERED

    def release(self, member: str) -> None:
        self.end_attempts([o for o, r in self.records.items() if r.member == member])

    def move_log_start(self, offset: int) -> None:
        """R25."""
        if offset <= self.start:
            return
        for at, record in list(self.records.items()):
            if at < offset and record.state == AVAILABLE:
                record.state, record.deadline, record.excused = ARCHIVED, None, 0
        self.start = offset
        self.end = max(self.end, offset)
        self.forget()

    def truncate(self, end: int) -> None:
        """The log ends here now: nothing at or above it has ever been."""
        if end >= self.end:
            return
        self.records = {offset: record for offset, record in self.records.items() if offset < end}
        self.start, self.end = min(self.start, end), end
        self.advance()

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
