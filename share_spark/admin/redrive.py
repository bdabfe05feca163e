"""Redrive: dead letters are sent again, as new records, at a limited rate.

    read letters -> send a piece -> ... -> mark the letters that were sent, in one commit -> go on

A letter is marked after it was sent, so a process that dies in between leaves it unmarked, and the next redrive sends
it again: at least once, and each time with the same id in a header (``redriven_record``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple, Protocol

import pyarrow.compute as pc

from share_spark.admin.letters import LetterFilter
from share_spark.admin.redriven_record import RedrivenRecord, redrive_id, redriven_record
from share_spark.admin.stored_letters import StoredLetter, StoredLetters
from share_spark.model.errors import ConfigError, DeadLetterError, TopicError

_PIECE, _PIECE_BYTES = 1_000, 16 << 20
"""The most letters, and bytes, that are sent together, unless a rate is lower."""

_MARKED_TOGETHER, _MARKED_BYTES, _MARKED_AFTER_S = 10_000, 64 << 20, 10.0
"""The limits after which letters are marked; what a process that dies leaves unmarked is sent twice."""


class Sent(NamedTuple):
    """The records that are in the topic for certain (their places in the list), and the error, if there was one."""

    delivered: Sequence[int]
    fault: str | None = None


class RedriveTarget(Protocol):
    """The topics to send to."""

    def partitions(self, topic: str) -> Collection[int]:
        """Return the partitions of a topic. Raises TopicError (no such topic), TopicUnreachableError."""
        ...

    def send(self, records: Sequence[RedrivenRecord]) -> Sent:
        """Send all records; return when their outcome is known, or a time limit is over."""
        ...


class RedriveProgress(NamedTuple):
    """The number of letters sent so far, and in total."""

    sent: int
    total: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveReport:
    """The result of a redrive. ``sent``: letters. ``marked``: those of them that were marked; one that was changed,
    deleted or marked by others since it was read is not."""

    sent: int
    marked: int


@dataclass(slots=True)
class SendRate:
    """A limit of ``per_s`` records a second since the first; None: no limit."""

    per_s: float | None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _began: float | None = None
    _sent: int = 0

    @property
    def piece(self) -> int:
        """The number of records that are sent together: those of a second, within a limit."""
        return _PIECE if self.per_s is None else max(1, min(_PIECE, int(self.per_s)))

    def wait(self, records: int) -> None:
        """Wait until so many more may be sent."""
        if (early_s := self.early_s()) > 0:
            self.sleep(early_s)
        self._began = self.clock() if self._began is None else self._began
        self._sent += records

    def early_s(self) -> float:
        """Return the seconds until more may be sent; below 0 if they could have been."""
        return 0.0 if self.per_s is None else self._sent / self.per_s - self.elapsed_s()

    def elapsed_s(self) -> float:
        """Return the seconds since the first record."""
        return 0.0 if self._began is None else self.clock() - self._began


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan:
    """The letters to be sent: ``total`` letters of ``paths``, the files with the oldest first, to ``topics`` with the
    partitions that are required."""

    where: LetterFilter
    paths: tuple[str, ...]
    total: int
    topics: Mapping[str, Collection[int]]
    to_topic: str | None = None

    def check_target(self, target: RedriveTarget) -> None:
        """Raise TopicError if a topic or partition is missing. Nothing is sent."""
        for topic, wanted in self.topics.items():
            there = target.partitions(topic)
            if missing := sorted(set(wanted) - set(there)):
                raise TopicError(f"topic {topic!r} has no partition {missing[0]}")


def plan_redrive(
    stored: StoredLetters, where: LetterFilter, *, to_topic: str | None = None, limit: int | None = None
) -> RedrivePlan:
    """Read the letters and return the plan; send nothing. ``limit``: the most letters. Raises DeadLetterError."""
    oldest: dict[str, Any] = {}
    topics: dict[str, set[int]] = {}
    total = 0
    for path, rows in stored.scan(where):
        oldest[path] = pc.min(rows.column("archived_at")).as_py()
        total += rows.num_rows
        pairs = rows.group_by(["topic", "partition"]).aggregate([]).to_pylist()
        for pair in pairs:
            topics.setdefault(pair["topic"], set()).add(pair["partition"])
    if to_topic is not None and total:
        topics = {to_topic: topics.get(to_topic, set())}
    paths = tuple(sorted(oldest, key=lambda path: oldest[path]))
    total = total if limit is None else min(total, limit)
    return RedrivePlan(where=where, paths=paths, total=total, topics=topics, to_topic=to_topic)


@dataclass(slots=True, kw_only=True)
class Redrive:
    """One run. ``stored``: the table as it was planned on; ``marks``: the same table, at its newest version."""

    plan: RedrivePlan
    stored: StoredLetters
    marks: StoredLetters
    target: RedriveTarget
    rate: SendRate
    progress: Callable[[RedriveProgress], None]
    wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _unmarked: list[StoredLetter] = field(default_factory=list)
    _unmarked_bytes: int = 0
    _marked_at_s: float = 0.0
    _sent: int = 0
    _marked: int = 0

    def run(self) -> RedriveReport:
        """Send and mark the letters. Raises TopicError (the target; what was sent is marked), DeadLetterError (what was
        sent could not be marked, and would be sent again)."""
        self.marks.check_can_change()
        self.plan.check_target(self.target)
        try:
            for piece in self._pieces():
                self.rate.wait(len(piece))
                self._send(piece)
                if self._is_mark_due():
                    self._mark()
        finally:
            self._mark()
        return RedriveReport(sent=self._sent, marked=self._marked)

    def _pieces(self) -> Iterator[list[StoredLetter]]:
        piece: list[StoredLetter] = []
        bytes_ = 0
        for found in islice(self.stored.letters(self.plan.where, self.plan.paths), self.plan.total):
            piece.append(found)
            bytes_ += found.letter.size
            if len(piece) >= self.rate.piece or bytes_ >= _PIECE_BYTES:
                yield piece
                piece, bytes_ = [], 0
        if piece:
            yield piece

    def _send(self, piece: Sequence[StoredLetter]) -> None:
        records = [redriven_record(letter, self.plan.to_topic) for _, letter in piece]
        delivered, fault = self.target.send(records)
        self._unmarked += [piece[at] for at in delivered]
        self._unmarked_bytes += sum(piece[at].letter.size for at in delivered)
        self._sent += len(delivered)
        self.progress(RedriveProgress(self._sent, self.plan.total, self.rate.elapsed_s()))
        if fault is not None:
            first = next(found.letter for at, found in enumerate(piece) if at not in delivered)
            place = f"{first.topic}:{first.partition}:{first.offset}"
            raise TopicError(f"{self._sent} of {self.plan.total} letters were sent, but not {place}: {fault}")

    def _is_mark_due(self) -> bool:
        next_s = self.rate.elapsed_s() + max(0.0, self.rate.early_s())
        late = next_s - self._marked_at_s >= _MARKED_AFTER_S
        return late or len(self._unmarked) >= _MARKED_TOGETHER or self._unmarked_bytes >= _MARKED_BYTES

    def _mark(self) -> None:
        letters, self._unmarked, self._unmarked_bytes = self._unmarked, [], 0
        self._marked_at_s = self.rate.elapsed_s()
        if not letters:
            return
        sent = {letter.identity: redrive_id(letter) for _, letter in letters}
        try:
            self._marked += self.marks.mark(sent, self.wall_clock(), {path for path, _ in letters})
        except DeadLetterError as fault:
            raise DeadLetterError(
                f"{len(letters)} letters were sent and could not be marked as redriven ({fault}): the next redrive "
                "sends them again, with the same ids"
            ) from fault


def check_rate(per_s: float | None) -> None:
    """Check that a rate is above 0. Raises ConfigError."""
    if per_s is not None and not 0 < per_s < float("inf"):
        raise ConfigError(f"a rate of {per_s:g} letters a second is not above 0")
