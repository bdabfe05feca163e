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
batches get it in waves, in which no key occurs twice: as many calls as the most frequent key has records. So that these
are few, several batches are joined before (``TaskOrder.joined``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.calls import CallOutcome, Calls
from share_spark.delivery.marked_rows import unmarked, waits_ms_of
from share_spark.delivery.output_rows import OutputRows
from share_spark.engine.key_order import FINISHED, FREE, KeyOrder
from share_spark.handlers.acknowledgement import NO_DELAY, Ack, Answers
from share_spark.model.errors import TopicUnreachableError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss

Numbers = npt.NDArray[np.int64]

JOINED_ROWS, _JOINED_BYTES = 20_000, 16 << 20
"""The rows and the bytes from which batches are enough for one. More would hardly make fewer waves."""

_NO_KEY = -1
_ABOVE_WAITS = 1 << 32
"""More than any wait that a mark can hold."""

T = TypeVar("T")


@dataclass(slots=True)
class TaskOrder:
    """The keys that are held back in one task. ``topic``: of all its records; None: batches have a column of that
    name."""

    topic: str | None = None
    _order: KeyOrder = field(default_factory=KeyOrder)
    _most_rows: int = 0
    """The rows of a batch as it came, and so the most of a call: Spark's setting."""

    def joined(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join small batches. If no more can be read, yield those that were there before the error is raised."""
        some: list[pa.RecordBatch] = []
        rows = size = 0
        try:
            for batch in batches:
                self._most_rows = max(self._most_rows, batch.num_rows)
                some.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= JOINED_ROWS or size >= _JOINED_BYTES:
                    yield from _as_one(some)
                    some, rows, size = [], 0, 0
        except TopicUnreachableError:
            yield from _as_one(some)
            raise
        yield from _as_one(some)

    def outcome(
        self, batch: pa.RecordBatch, calls: Calls, call: Callable[[pa.RecordBatch], CallOutcome]
    ) -> tuple[pa.RecordBatch, CallOutcome]:
        """Return the records of ``batch`` that have to be delivered, and their outcome. ``call``: calls the handler on
        those of them that ``calls.order`` admits. Batches come in the order of their offsets."""
        found = BatchOrder.of(batch, self.topic, self._order, self._most_rows or batch.num_rows)
        if not found.records.num_rows:
            return found.records, CallOutcome(answers=Answers.same(0, Loss.NOT_ENTERED))
        calls.order = found
        outcome = call(found.records)
        calls.order = None
        answers = found.with_held_back(outcome.answers)
        found.note(np.arange(found.records.num_rows), answers)
        found.hold_back_after(self._order)
        return found.records, replace(outcome, answers=answers)


def _as_one(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) > 1:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
    else:
        yield from batches


@dataclass(slots=True, kw_only=True)
class BatchOrder:
    """The records of a batch that have to be delivered, and those that hold them back. ``most_rows``: of a wave."""

    records: pa.RecordBatch
    most_rows: int
    _keys: _Keys
    _numbers: Numbers
    _waits_ms: Numbers
    """Per number, how long its key waits; the last is for rows without a key, which never wait."""
    _earlier_ms: Numbers
    """Per row, how long it waits for rows of this batch that are not acquired."""
    _held_ms: Numbers
    """Per row that was held back, how long it waits at least; FREE for all others."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, topic: str | None, order: KeyOrder, most_rows: int) -> BatchOrder:
        """Return the order of ``batch``, which also has rows that are not acquired; ``order`` holds back their keys."""
        keys, numbers = _Keys.of(batch, topic)
        marks_ms = waits_ms_of(batch.column("delivery_count").to_numpy()).astype(np.int64)
        waits_ms = np.full(keys.total + 1, FREE, np.int64)
        if order:
            waits_ms[:-1] = [order.wait_ms(*keys.place(number)) for number in range(keys.total)]
        is_own, earlier_ms = marks_ms < 0, np.full(batch.num_rows, FREE, np.int64)
        if not is_own.all():
            earlier_ms = _waits_so_far(numbers, marks_ms)
            for row in np.flatnonzero(~is_own & (numbers != _NO_KEY)).tolist():
                order.hold_back(*keys.place(int(numbers[row])), int(marks_ms[row]))
        return cls(
            records=unmarked(batch),
            most_rows=most_rows,
            _keys=keys,
            _numbers=numbers[is_own],
            _waits_ms=waits_ms,
            _earlier_ms=earlier_ms[is_own],
            _held_ms=np.full(int(is_own.sum()), FREE, np.int64),
        )

    def admitted(
        self, records: Iterable[tuple[int, T]], codes: Sequence[int], delays: dict[int, int], rows: OutputRows | None
    ) -> Iterator[tuple[int, T]]:
        """Yield those of ``records`` (row, record) that may be entered now. Each is answered, in ``codes`` and
        ``delays``, before the next one is taken. Output rows of a record are converted before its successor is entered:
        one that does not fit is a release."""
        numbers, waits_ms, earlier_ms = self._numbers.tolist(), self._waits_ms.tolist(), self._earlier_ms.tolist()
        unchecked: dict[int, int] = {}
        for row, record in records:
            number = numbers[row]
            if number in unchecked and rows is not None:
                rows.write_all()
                for other, at in unchecked.items():
                    waits_ms[other] = max(waits_ms[other], _wait_ms_after(codes[at], 0))
                unchecked.clear()
            wait_ms = max(waits_ms[number], earlier_ms[row])
            if wait_ms != FREE:
                self._held_ms[row] = wait_ms
                continue
            yield row, record
            if number != _NO_KEY:
                waits_ms[number] = max(waits_ms[number], _wait_ms_after(codes[row], delays.get(row, 0)))
                if rows is not None:
                    unchecked[number] = row

    def waves(self) -> Iterator[npt.NDArray[np.intp]]:
        """Yield rows in waves, in which no two have one key. Each wave is answered (``note``) before the next one is
        taken."""
        ranks = _ranks(self._numbers)
        ends = np.cumsum(np.bincount(ranks))
        for rows in np.split(np.argsort(ranks, kind="stable"), ends[:-1]) if len(ranks) else ():
            waits_ms = np.maximum(self._waits_ms[self._numbers[rows]], self._earlier_ms[rows])
            self._held_ms[rows] = waits_ms
            free = rows[waits_ms == FREE]
            for at in range(0, len(free), self.most_rows):
                yield free[at : at + self.most_rows]

    def note(self, rows: npt.NDArray[np.intp], answers: Answers) -> None:
        """Hold back the keys of records that are neither accepted nor rejected."""
        others = np.flatnonzero((answers.codes != Ack.ACCEPT) & (answers.codes != Ack.REJECT))
        if not len(others):
            return
        numbers, waits_ms = self._numbers[rows[others]], np.maximum(answers.every_delay_ms[others], 0)
        has_key = numbers != _NO_KEY
        np.maximum.at(self._waits_ms, numbers[has_key], waits_ms[has_key])

    def with_held_back(self, answers: Answers) -> Answers:
        """Mark the rows that were held back in ``answers``, which are of all rows."""
        is_held = self._held_ms != FREE
        if not is_held.any():
            return answers
        codes = np.where(is_held, np.int8(Loss.NOT_ENTERED), answers.codes)
        # An unknown wait is no delay.
        waits_ms = np.where(self._held_ms > 0, self._held_ms, NO_DELAY)
        return replace(answers, codes=codes, delays_ms=np.where(is_held, waits_ms, answers.every_delay_ms))

    def hold_back_after(self, order: KeyOrder) -> None:
        """Hold back later records of the keys of this batch that wait."""
        for number in np.flatnonzero(self._waits_ms[:-1] != FREE).tolist():
            order.hold_back(*self._keys.place(number), int(self._waits_ms[number]))


def _wait_ms_after(code: int, delay_ms: int) -> int:
    """Return how long the key of a record with this answer waits at least."""
    return FREE if code in FINISHED else max(delay_ms, 0)


def _waits_so_far(numbers: Numbers, marks_ms: Numbers) -> Numbers:
    """Return, for each row, the longest of the waits of itself and of earlier rows with its number.

    number     0      1      0      1      0        -1: none, waits for nothing
    mark      FREE   700    FREE   FREE   FREE
    returned  FREE   700    FREE   700    FREE
    """
    order = np.argsort(numbers, kind="stable")
    # Each number has a level of its own, above all waits of the ones before it.
    level = np.cumsum(np.diff(numbers[order], prepend=numbers[order[:1]]) != 0) * _ABOVE_WAITS
    found = np.empty(len(numbers), np.int64)
    found[order] = np.maximum.accumulate(np.maximum(marks_ms[order], FREE) + level) - level
    found[numbers == _NO_KEY] = FREE
    return found


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
