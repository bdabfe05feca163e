"""Many ranges as arrays, behind the sequence interface of the tuples: no Python object for each range.

    ranges   [A1 a-----][V1]        [A1 a--]     A: Acquired by member a, V: Available, the digit is the delivery count
    first     100       105          120
    last      104       105          130         inclusive
    kind      0         1            0           which of ``kinds`` the range is of

``kinds`` are the distinct values of the other fields. There are few, however many ranges: so a rule is asked once for
each kind, by the function that the tuples use, and its answer goes to all ranges of the kind by one look-up in an
array. Pure: NumPy computes here, it reads nothing.

Small sequences stay tuples, which are faster then: ``are_many`` is the one place that chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeGuard, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Row = TypeVar("Row", bound=tuple[Any, ...])
OtherRow = TypeVar("OtherRow", bound=tuple[Any, ...])

Kind = tuple[Any, ...]
Offsets = NDArray[np.int64]
Chosen = NDArray[np.bool_] | NDArray[np.intp] | slice

COLUMNS_FROM = 256
"""The number of ranges from which on arrays are faster than tuples (``python -m tests.bench window``)."""

_ROWS_AT_ONCE = 1_024
"""Rows that an iteration makes at a time, as many readers stop at an early one."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Columns(Sequence[Row], Generic[Row]):
    """Ranges ``row(first, last, *kinds[kind])``, ascending and disjoint.

    ``first``, ``last`` (int64) and ``kind`` (int32) have one entry per range and are never written to. ``kinds`` are
    distinct, and each of them is used.
    """

    row: Callable[..., Row]
    first: Offsets
    last: Offsets
    kind: NDArray[np.int32]
    kinds: tuple[Kind, ...]

    def __len__(self) -> int:
        return len(self.kind)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Columns[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Columns[Row]:
        if isinstance(index, slice):
            return self if index.indices(len(self)) == (0, len(self), 1) else self.where(index)
        return self.row(int(self.first[index]), int(self.last[index]), *self.kinds[self.kind[index]])

    def __iter__(self) -> Iterator[Row]:
        row, kinds = self.row, self.kinds
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            some = slice(begin, begin + _ROWS_AT_ONCE)
            columns = self.first[some].tolist(), self.last[some].tolist(), self.kind[some].tolist()
            for first, last, kind in zip(*columns, strict=True):
                yield row(first, last, *kinds[kind])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Columns):
            same_size = len(self) == len(other)
            same_offsets = same_size and bool((self.first == other.first).all() and (self.last == other.last).all())
            return same_offsets and self._has_kinds_of(other)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def _has_kinds_of(self, other: Columns[Any]) -> bool:
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        mine = np.array([numbers.get(kind, -1) for kind in other.kinds], np.int32)
        return bool((mine[other.kind] == self.kind).all())

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Columns({list(self)!r})"

    @property
    def sizes(self) -> Offsets:
        """The number of offsets of each range."""
        sizes: Offsets = self.last - self.first + 1
        return sizes

    @property
    def samples(self) -> list[Row]:
        """A row of each kind; its offsets mean nothing."""
        return [self.row(0, 0, *kind) for kind in self.kinds]

    def where(self, chosen: Chosen) -> Columns[Row]:
        """Return the ranges that a mask, an index array or a slice chooses."""
        return _used(Columns(self.row, self.first[chosen], self.last[chosen], self.kind[chosen], self.kinds))

    def mask(self, is_wanted: Callable[[Row], bool]) -> NDArray[np.bool_]:
        """Return for each range whether ``is_wanted``, which goes by anything but the offsets."""
        return self.by_kind([is_wanted(sample) for sample in self.samples], np.bool_)

    def by_kind(self, values: Sequence[Any], dtype: Any) -> NDArray[Any]:
        """Return for each range the value of its kind."""
        return np.array(values, dtype)[self.kind]

    def totals(self) -> list[int]:
        """Count the offsets of each kind. Exact: a float holds every integer up to 2^53."""
        return [int(total) for total in np.bincount(self.kind, weights=self.sizes, minlength=len(self.kinds))]

    def recoded(self, row: Callable[..., OtherRow], kinds: Sequence[Kind | None]) -> Columns[OtherRow]:
        """Return the same ranges with other fields: ``kinds[n]`` for those of kind ``n``; None leaves them out."""
        numbers: dict[Kind, int] = {}
        codes = [-1 if kind is None else numbers.setdefault(kind, len(numbers)) for kind in kinds]
        if codes == list(range(len(codes))):
            return Columns(row, self.first, self.last, self.kind, tuple(numbers))
        kind = self.by_kind(codes, np.int32)
        if -1 not in codes:
            return Columns(row, self.first, self.last, kind, tuple(numbers))
        kept = kind >= 0
        return Columns(row, self.first[kept], self.last[kept], kind[kept], tuple(numbers))


def _used(columns: Columns[Row]) -> Columns[Row]:
    """Leave out the kinds that no range is of."""
    if len(columns.kinds) == 1 and columns:
        return columns
    counts = np.bincount(columns.kind, minlength=len(columns.kinds))
    if counts.all():
        return columns
    kinds = [kind if count else None for kind, count in zip(columns.kinds, counts.tolist(), strict=True)]
    return columns.recoded(columns.row, kinds)


def is_columns(ranges: Sequence[Row]) -> TypeGuard[Columns[Row]]:
    """Return whether ``ranges`` are columns."""
    # Not isinstance: for a subclass of an abstract class that takes ten times as long, and this is asked for each small
    # share-partition a dozen times.
    return type(ranges) is Columns


def are_many(count: int) -> bool:
    """Return whether so many ranges are columns, and not a tuple."""
    return count >= COLUMNS_FROM


def in_best_form(ranges: Sequence[Row]) -> Sequence[Row]:
    """Return many ranges as columns, few as a tuple."""
    if are_many(len(ranges)):
        return as_columns(ranges)
    return ranges if isinstance(ranges, tuple) else tuple(ranges)


def as_columns(ranges: Sequence[Row]) -> Columns[Row]:
    """Return ``ranges``, at least one and of one type, as columns."""
    if is_columns(ranges):
        return ranges
    numbers: dict[Kind, int] = {}
    kind = [numbers.setdefault(found[2:], len(numbers)) for found in ranges]
    first, last = (np.array([found[at] for found in ranges], np.int64) for at in (0, 1))
    return Columns(_row_like(ranges[0]), first, last, np.array(kind, np.int32), tuple(numbers))


def _row_like(row: Row) -> Callable[..., Row]:
    found: Callable[..., Row] = type(row)
    return found


def coded(
    row: Callable[..., Row], first: Offsets, last: Offsets, code: NDArray[Any], meanings: Mapping[int, Kind]
) -> Sequence[Row]:
    """Make ranges of arrays: first offset, last offset, and the code (0 or more) that means the other fields."""
    if not are_many(len(code)):
        columns = first.tolist(), last.tolist(), code.tolist()
        return tuple(row(begin, end, *meanings[number]) for begin, end, number in zip(*columns, strict=True))
    kinds = np.zeros(max(meanings) + 1, np.int32)
    kinds[list(meanings)] = np.arange(len(meanings))
    return _used(Columns(row, first, last, kinds[code], tuple(meanings.values())))


def intersection(row: Callable[..., OtherRow], one: Columns[Any], other: Columns[Any]) -> Columns[OtherRow]:
    """Return what lies in both, cut at the ends of both, with the fields of ``one`` and then those of ``other``.

        one      [a---------]    [b----]
        other       [x--][y---]  [z-]
        result      [ax-][ay]    [bz]

    ``other`` has few kinds: the cost is that of its kinds times those of ``one``, beside the ranges.
    """
    if len(one) <= len(other):
        mine, theirs = _overlapping(one, other)
    else:
        theirs, mine = _overlapping(other, one)
    first = np.maximum(one.first[mine], other.first[theirs])
    last = np.minimum(one.last[mine], other.last[theirs])
    kind = one.kind[mine] * np.int32(len(other.kinds)) + other.kind[theirs]
    return _used(Columns(row, first, last, kind, tuple(left + right for left in one.kinds for right in other.kinds)))


def _overlapping(few: Columns[Any], many: Columns[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the numbers of all pairs of a range of ``few`` and one of ``many`` that overlap, ascending."""
    begin = np.searchsorted(many.last, few.first)
    nearest = np.minimum(begin, len(many) - 1)
    if few and many and (few.last <= many.last[nearest]).all():  # the frequent case: none overlaps two
        counts = (many.first[nearest] <= few.last).astype(np.intp)
    else:
        counts = np.maximum(np.searchsorted(many.first, few.last, side="right") - begin, 0)
    at_few = np.repeat(np.arange(len(few)), counts)
    return at_few, np.arange(len(at_few)) + np.repeat(begin - np.cumsum(counts) + counts, counts)


def outside(base: Columns[Row], changes: Columns[Any]) -> Columns[Row]:
    """Return what of ``base`` the ranges of ``changes`` (at least one) do not cover.

    base       [a----------------][b----]
    changes         [x---]           [y--]
    result     [a--]      [a-----][b]
    """
    limits = np.iinfo(np.int64)
    first = np.concatenate([[limits.min], changes.last + 1])
    last = np.concatenate([changes.first - 1, [limits.max]])
    holes = first <= last
    between = Columns(base.row, first[holes], last[holes], np.zeros(int(holes.sum()), np.int32), ((),))
    return intersection(base.row, base, between)


def concatenated(*parts: Columns[Row]) -> Columns[Row]:
    """Return all ranges, part after part."""
    filled = [part for part in parts if part]
    if len(filled) <= 1:
        return filled[0] if filled else parts[0]
    numbers: dict[Kind, int] = {}
    return Columns(
        parts[0].row,
        np.concatenate([part.first for part in filled]),
        np.concatenate([part.last for part in filled]),
        np.concatenate([_numbered(part, numbers) for part in filled]),
        tuple(numbers),
    )


def _numbered(ranges: Columns[Any], numbers: dict[Kind, int]) -> NDArray[np.int32]:
    """Return for each range the number of its kind in ``numbers``, to which new kinds are added."""
    return ranges.by_kind([numbers.setdefault(kind, len(numbers)) for kind in ranges.kinds], np.int32)


def merged(*parts: Columns[Row]) -> Columns[Row]:
    """Return all ranges, ascending."""
    found = concatenated(*parts)
    return found.where(np.argsort(found.first, kind="stable"))


def joined(ranges: Columns[Row]) -> Columns[Row]:
    """Join touching ranges of one kind."""
    begins = np.ones(len(ranges), np.bool_)
    begins[1:] = (ranges.kind[1:] != ranges.kind[:-1]) | (ranges.last[:-1] + 1 != ranges.first[1:])
    if begins.all():
        return ranges
    ends = np.append(begins[1:], True)
    return Columns(ranges.row, ranges.first[begins], ranges.last[ends], ranges.kind[begins], ranges.kinds)


def overlay(base: Columns[Row], changes: Columns[Row]) -> Columns[Row]:
    """Replace the offsets of ``base`` that ``changes`` cover by them. Neither is empty."""
    # One range more on each side, as the outermost change may join with the range that it touches.
    begin = max(int(np.searchsorted(base.last, changes.first[0])) - 1, 0)
    end = int(np.searchsorted(base.first, changes.last[-1], side="right")) + 1
    swept = base[begin:end]
    replaced = _exchanged(swept, changes) or merged(outside(swept, changes), changes)
    return concatenated(base[:begin], joined(replaced), base[end:])


def _exchanged(base: Columns[Row], changes: Columns[Row]) -> Columns[Row] | None:
    """Do the frequent case of ``overlay``: each change is about exactly one whole range. None if one is not."""
    at = np.searchsorted(base.first, changes.first)
    if at[-1] == len(base) or (base.first[at] != changes.first).any() or (base.last[at] != changes.last).any():
        return None
    numbers: dict[Kind, int] = {}
    kind = _numbered(base, numbers)
    kind[at] = _numbered(changes, numbers)
    return _used(Columns(base.row, base.first, base.last, kind, tuple(numbers)))


def from_offset(ranges: Columns[Row], offset: int) -> Columns[Row]:
    """Return what lies at or above ``offset``."""
    found = ranges[int(np.searchsorted(ranges.last, offset)) :]
    return Columns(found.row, np.maximum(found.first, offset), found.last, found.kind, found.kinds)


def below_offset(ranges: Columns[Row], offset: int) -> Columns[Row]:
    """Return what lies below ``offset``."""
    found = ranges[: int(np.searchsorted(ranges.first, offset))]
    return Columns(found.row, found.first, np.minimum(found.last, offset - 1), found.kind, found.kinds)


def raised(ranges: Columns[Row], offset: int, is_kept: Callable[[Row], bool]) -> Columns[Row]:
    """Return what lies at or above ``offset``, and whole the ranges that are to be kept."""
    kept = ranges.mask(is_kept)
    first = np.where(kept, ranges.first, np.maximum(ranges.first, offset))
    return Columns(ranges.row, first, ranges.last, ranges.kind, ranges.kinds).where(kept | (ranges.last >= offset))


def between(ranges: Columns[Row], first: int, last: int) -> Columns[Row]:
    """Return what lies inside ``first..last``."""
    return below_offset(from_offset(ranges, first), last + 1)


def with_hash(
    row: Callable[..., OtherRow], ranges: Columns[Any], seeds: Sequence[int], below: int
) -> Columns[OtherRow]:
    """Add a field: a number from 0 to ``below - 1``, by a hash (splitmix64) of a range's first offset and the seed of
    its kind, which is less than 2^32."""
    mixed = ranges.first.astype(np.uint64) + (ranges.by_kind(seeds, np.uint64) << np.uint64(32)) + np.uint64(_GOLDEN)
    for shift, factor in _SPLITMIX:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    number = ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(below)).astype(np.int32)
    kinds = tuple((*kind, found) for kind in ranges.kinds for found in range(below))
    return _used(Columns(row, ranges.first, ranges.last, ranges.kind * np.int32(below) + number, kinds))


_GOLDEN, _SPLITMIX = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def total_offsets(ranges: Sequence[tuple[Any, ...]]) -> int:
    """Count the offsets of the ranges, of either form."""
    if is_columns(ranges):
        return int(ranges.sizes.sum())
    return sum(found[1] - found[0] + 1 for found in ranges)


def up_to(ranges: Columns[Row], most: int) -> Columns[Row]:
    """Return the first ``most`` (at least one) offsets."""
    ends = np.cumsum(ranges.sizes)
    count = int(np.searchsorted(ends, most)) + 1
    if count > len(ranges):
        return ranges
    found = ranges[:count]
    last = found.last.copy()
    last[-1] -= max(int(ends[count - 1]) - most, 0)
    return Columns(found.row, found.first, last, found.kind, found.kinds)
