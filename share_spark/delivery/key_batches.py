"""Order by key inside a task: the records that may be entered next.

All records of a key come to one task, in the order of their offsets (``acquired_records.by_key``), and with them those
that are not finished and not acquired: rows with a mark (``marked_rows``), which are never delivered. An earlier run of
the task may leave more of these: records that it entered and did not finish. ``engine.key_order`` has the rule; here it
is applied to Arrow batches, by numbers instead of keys:

    row           0    1    2    3    4    5
    key           a    b    a    -    b    a        -: none
    number        0    1    0   -1    1    0
    wave          0    0    1    0    1    2

Handlers of one record get a batch as it is, without the held-back records (``BatchOrder.admitted``). Handlers of
batches get it in waves, in which no key occurs twice: as many calls as the most frequent key has records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.calling import CallOutcome, Calls
from share_spark.delivery.marked_rows import unmarked, waits_ms_of
from share_spark.delivery.output_rows import OutputRows
from share_spark.engine.key_order import FINISHED, FREE, KeyOrder
from share_spark.handlers.acknowledgement import NO_DELAY, Ack, Answers
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss

Numbers = npt.NDArray[np.int64]

_NO_KEY = -1
T = TypeVar("T")


@dataclass(slots=True)
class TaskOrder:
    """The keys that are held back in one task. ``topic``: of all its records; None: batches have a column of that
    name."""

    topic: str | None = None
    _order: KeyOrder = field(default_factory=KeyOrder)

    def outcomes(
        self, batch: pa.RecordBatch, calls: Calls, call: Callable[[pa.RecordBatch], CallOutcome], *, by_record: bool
    ) -> Iterator[tuple[pa.RecordBatch, CallOutcome]]:
        """Yield the records of ``batch`` in parts, each with its outcome. ``call``: calls the handler on one part.
        ``by_record``: it is a handler of one record. Batches come in the order of their offsets."""
        found = BatchOrder.of(batch, self.topic, self._order)
        if by_record:
            yield from _whole(found, calls, call)
        else:
            yield from _in_waves(found, call)
        found.hold_back_after(self._order)


def _whole(
    found: BatchOrder, calls: Calls, call: Callable[[pa.RecordBatch], CallOutcome]
) -> Iterator[tuple[pa.RecordBatch, CallOutcome]]:
    if not found.records.num_rows:
        return
    calls.order = found
    outcome = call(found.records)
    calls.order = None
    calls.entered -= found.passed
    answers = found.with_held_back(outcome.answers)
    found.note(np.arange(found.records.num_rows), answers)
    yield found.records, replace(outcome, answers=answers)


def _in_waves(
    found: BatchOrder, call: Callable[[pa.RecordBatch], CallOutcome]
) -> Iterator[tuple[pa.RecordBatch, CallOutcome]]:
    for rows in found.waves():
        part = found.records.take(rows)
        outcome = call(part)
        found.note(rows, outcome.answers)
        yield part, outcome
    if found.held:
        rest = found.records.take(list(found.held))
        nothing = Answers.same(rest.num_rows, Loss.NOT_ENTERED)
        waits_ms = np.array(list(found.held.values()), np.int64)
        yield rest, CallOutcome(answers=replace(nothing, delays_ms=_as_delays(waits_ms)))


@dataclass(slots=True, kw_only=True)
class BatchOrder:
    """The records of a batch that have to be delivered, and those that hold them back.

    ``held``: rows that were held back, and how long each waits at least. ``passed``: how many of them lie before the
    last row that was admitted.
    """

    records: pa.RecordBatch
    _keys: _Keys
    _numbers: Numbers
    _waits_ms: list[int]
    """Per number, how long its key waits; the last is for rows without a key, which never wait."""
    _earlier_ms: Numbers
    """Per row, how long it waits for rows of this batch that are not acquired."""
    held: dict[int, int] = field(default_factory=dict)
    passed: int = 0

    @classmethod
    def of(cls, batch: pa.RecordBatch, topic: str | None, order: KeyOrder) -> BatchOrder:
        """Return the order of ``batch``, which also has rows that are not acquired; ``order`` holds back their keys."""
        keys, numbers = _Keys.of(batch, topic)
        marks_ms = waits_ms_of(batch.column("delivery_count").to_numpy())
        waits_ms = (
            [order.wait_ms(*keys.place(number)) for number in range(keys.total)] if order else [FREE] * keys.total
        )
        earlier_ms = np.full(batch.num_rows, FREE, np.int64)
        for row in np.flatnonzero((marks_ms >= 0) & (numbers != _NO_KEY)).tolist():
            wait_ms = int(marks_ms[row])
            successors = np.flatnonzero(numbers[row:] == numbers[row]) + row
            earlier_ms[successors] = np.maximum(earlier_ms[successors], wait_ms)
            order.hold_back(*keys.place(int(numbers[row])), wait_ms)
        own = marks_ms < 0
        return cls(
            records=unmarked(batch),
            _keys=keys,
            _numbers=numbers[own],
            _waits_ms=[*waits_ms, FREE],
            _earlier_ms=earlier_ms[own],
        )

    def admitted(
        self, records: Iterable[tuple[int, T]], codes: Sequence[int], delays: dict[int, int], rows: OutputRows | None
    ) -> Iterator[tuple[int, T]]:
        """Yield those of ``records`` (row, record) that may be entered now. Each is answered, in ``codes`` and
        ``delays``, before the next one is taken. Output rows of a record are converted before its successor is entered:
        one that does not fit is a release."""
        numbers, waits_ms, earlier_ms = self._numbers.tolist(), self._waits_ms, self._earlier_ms.tolist()
        unchecked: dict[int, int] = {}
        for row, record in records:
            number = numbers[row]
            if number in unchecked and rows is not None:
                rows.write_all()
                for other, at in unchecked.items():
                    self._answered(other, codes[at], 0)
                unchecked.clear()
            wait_ms = max(waits_ms[number], earlier_ms[row])
            if wait_ms != FREE:
                self.held[row] = wait_ms
                continue
            self.passed = len(self.held)
            yield row, record
            self._answered(number, codes[row], delays.get(row, 0))
            if rows is not None and number != _NO_KEY:
                unchecked[number] = row

    def waves(self) -> Iterator[Numbers]:
        """Yield rows in waves, in which no two have one key. Each wave is answered (``note``) before the next one is
        taken."""
        ranks = _ranks(self._numbers)
        ends = np.cumsum(np.bincount(ranks))
        for rows in np.split(np.argsort(ranks, kind="stable"), ends[:-1]) if len(ranks) else ():
            waits_ms = np.maximum(np.array(self._waits_ms, np.int64)[self._numbers[rows]], self._earlier_ms[rows])
            is_free = waits_ms == FREE
            self.held.update(zip(rows[~is_free].tolist(), waits_ms[~is_free].tolist(), strict=True))
            if is_free.any():
                yield rows[is_free]

    def note(self, rows: Numbers, answers: Answers) -> None:
        """Hold back the keys of records that are neither accepted nor rejected."""
        others = np.flatnonzero(answers.codes != Ack.ACCEPT).tolist()
        if not others:
            return
        delays_ms = answers.every_delay_ms
        for at in others:
            self._answered(int(self._numbers[rows[at]]), int(answers.codes[at]), int(delays_ms[at]))

    def _answered(self, number: int, code: int, delay_ms: int) -> None:
        if code not in FINISHED and number != _NO_KEY:
            self._waits_ms[number] = max(self._waits_ms[number], delay_ms, 0)

    def with_held_back(self, answers: Answers) -> Answers:
        """Mark the rows that were held back in ``answers``, which are of all rows."""
        if not self.held:
            return answers
        rows, waits_ms = list(self.held), np.array(list(self.held.values()), np.int64)
        codes, delays_ms = answers.codes.copy(), answers.every_delay_ms.copy()
        codes[rows], delays_ms[rows] = Loss.NOT_ENTERED, _as_delays(waits_ms)
        return replace(answers, codes=codes, delays_ms=delays_ms)

    def hold_back_after(self, order: KeyOrder) -> None:
        """Hold back later records of the keys of this batch that wait."""
        for number, wait_ms in enumerate(self._waits_ms[:-1]):
            if wait_ms != FREE:
                order.hold_back(*self._keys.place(number), wait_ms)


def _as_delays(waits_ms: Numbers) -> Numbers:
    """Return the waits as delays; an unknown wait is no delay."""
    return np.where(waits_ms > 0, waits_ms, NO_DELAY)


def _ranks(numbers: Numbers) -> npt.NDArray[np.intp]:
    """Return, for each row, how many rows before it have its number; 0 for rows without a key."""
    order = np.argsort(numbers, kind="stable")
    begins = np.flatnonzero(np.diff(numbers[order], prepend=_NO_KEY - 1))
    sizes = np.diff(np.append(begins, len(numbers)))
    ranks = np.empty(len(numbers), np.intp)
    ranks[order] = np.arange(len(numbers)) - np.repeat(begins, sizes)
    ranks[numbers == _NO_KEY] = 0
    return ranks


class _Keys(NamedTuple):
    """The different keys of a batch by number; equal ones of two partitions are different."""

    keys: list[bytes]
    partitions: list[TopicPartition]
    codes: Numbers

    @classmethod
    def of(cls, batch: pa.RecordBatch, topic: str | None) -> tuple[_Keys, Numbers]:
        """Return the keys, and the number of each row's key, ``_NO_KEY`` where it has none."""
        encoded: Any = batch.column("key").dictionary_encode()
        index = encoded.indices.fill_null(_NO_KEY).to_numpy().astype(np.int64)
        partitions, of_row = _partitions(batch, topic)
        codes, numbers = np.unique(index * len(partitions) + of_row, return_inverse=True)
        numbers = numbers.astype(np.int64)
        without = int((codes < 0).sum())  # these are the lowest
        return cls(encoded.dictionary.to_pylist(), partitions, codes[without:]), np.maximum(numbers - without, _NO_KEY)

    @property
    def total(self) -> int:
        return len(self.codes)

    def place(self, number: int) -> tuple[TopicPartition, bytes]:
        """Return the place of the key with this number."""
        key, partition = divmod(int(self.codes[number]), len(self.partitions))
        return self.partitions[partition], self.keys[key]


def _partitions(batch: pa.RecordBatch, topic: str | None) -> tuple[list[TopicPartition], Numbers]:
    """Return the topic-partitions in a batch, and the index of each row's one."""
    numbers, of_row = np.unique(batch.column("partition").to_numpy(), return_inverse=True)
    if topic is not None:
        return [TopicPartition(topic, int(number)) for number in numbers], of_row.astype(np.int64)
    names: Any = batch.column("topic").dictionary_encode()
    topics = names.dictionary.to_pylist()
    found = [TopicPartition(name, int(number)) for name in topics for number in numbers]
    return found, names.indices.to_numpy(zero_copy_only=False).astype(np.int64) * len(numbers) + of_row
