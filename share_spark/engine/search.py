"""The search for a record that brings engines down, over all share-partitions at once. Pure.

Suspects (``partition.lost``) are acquired in micro-batches of their own, so that nothing else can be lost with them.
The deepest doubt is searched first, in pieces of a fixed size: of N that were lost twice N^(2/3) at a time, then √ of
the piece that was lost again, then those that are accused. These run in turn, in one task, so that a trace shows which
one it was; where engines end without leaving a trace, each has a micro-batch to itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from share_spark.engine.step import PartitionSummary
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import Doubt

IN_TURN = 1_000
"""How many accused records one micro-batch takes: they share one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is searched, and what of it runs next: records per share-partition."""

    searched: Doubt
    records: Mapping[SharePartitionKey, int]

    @property
    def alone(self) -> bool:
        """Is it a single record, and accused? A single record that is the rest of a larger piece is not."""
        return self.in_turn and sum(self.records.values()) == 1

    @property
    def in_turn(self) -> bool:
        """Shall its records go to the handler one after another, by themselves?"""
        return self.searched is Doubt.ACCUSED


@dataclass(slots=True, kw_only=True)
class Search:
    """Remembers how many there were when a search began, so that its pieces keep their size. ``one_by_one``: the dead
    leave no traces here. ``comes_next``: the next micro-batch is for suspects, whatever else there is to do."""

    one_by_one: bool = False
    comes_next: bool = True
    _sizes: dict[Doubt, int] = field(default_factory=dict)

    def next_piece(
        self, summaries: Mapping[SharePartitionKey, PartitionSummary], keys: Iterable[SharePartitionKey]
    ) -> Piece | None:
        """None if nothing is suspected in the share-partitions ``keys``."""
        waiting = {key: summaries[key].suspected for key in keys if key in summaries and any(summaries[key].suspected)}
        # The deepest doubt first: a small piece that was lost is searched before new pieces are lost beside it.
        for level in (2, 1, 0):
            doubt = Doubt(Doubt.LOST_TWICE + level)
            found = {key: counts[level] for key, counts in waiting.items() if counts[level]}
            if found:
                # The size at the beginning: pieces of what is left would become smaller and smaller, and more of them.
                self._sizes[doubt] = max(self._sizes.get(doubt, 0), sum(found.values()))
                return Piece(searched=doubt, records=_first(found, self._piece_size(doubt)))
            self._sizes.pop(doubt, None)
        return None

    def _piece_size(self, doubt: Doubt) -> int:
        size = self._sizes[doubt]
        if doubt is Doubt.ACCUSED:
            return 1 if self.one_by_one else IN_TURN
        pieces = math.isqrt(size - 1) + 1 if doubt is Doubt.LOST_IN_PIECE else _cube_root(size)
        return -(-size // pieces)


def _cube_root(size: int) -> int:
    """The lowest number whose cube is not below ``size``."""
    root = round(math.cbrt(size))
    return root if root**3 >= size else root + 1


def _first(found: Mapping[SharePartitionKey, int], most: int) -> dict[SharePartitionKey, int]:
    """The first ``most`` records, key by key."""
    taken: dict[SharePartitionKey, int] = {}
    for key, count in found.items():
        if most <= 0:
            break
        taken[key] = min(count, most)
        most -= taken[key]
    return taken
