"""The calls at a time of a group, divided over its companions: together they never make more.

A companion that takes no more records may still have calls, and one whose share has become smaller may still have as
many as before. So the others get what is left, and more once these have ended:

    limit 100       A      B      C
    shares         50     50
    B's executor   50     50             B takes no more records, and has 50 calls at most
    is lost        50     30     20      C is new: B has 30 calls left
                   50            50      B has ended
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Calling(NamedTuple):
    """A companion that takes records. ``share``: the calls that it may make now; ``running``: those that it makes."""

    share: int
    running: int


def shares(most_calls: int, companions: Sequence[Calling], elsewhere: int = 0) -> list[int]:
    """Return the shares of ``companions``, as equal as they can be. ``elsewhere``: the calls of those that take no more
    records."""
    left = max(0, most_calls - elsewhere)
    found = list(companions)
    for position, one in enumerate(companions):
        equal = left // len(found) + (position < left % len(found))
        others = sum(max(other) for at, other in enumerate(found) if at != position)
        found[position] = one._replace(share=min(equal, max(one.share, left - others)))
    return [one.share for one in found]
