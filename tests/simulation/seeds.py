"""The seeds of a test: in blocks, most of them left to `make test-all`; and whether some convict an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pytest

BLOCK = 20
"""Seeds of a test."""

_MOST_CONVICTIONS = 20
"""What is wrong shows in several ways; the one that is asked for need not be the first."""


def blocks(seeds: int, in_test: int) -> list[Any]:
    """The first seed of each block; those from ``in_test`` on are long tests."""
    return [pytest.param(first, marks=() if first < in_test else pytest.mark.long) for first in range(0, seeds, BLOCK)]


def is_convicted(run: Callable[[int], str], seeds: Iterable[int], verdict: str) -> bool:
    """Whether one of the first convictions has this verdict. ``run``: plays a seed, and says what is wrong."""
    convictions = (found.splitlines()[-2] for found in map(run, seeds) if found)
    return any(verdict in found for found in islice(convictions, _MOST_CONVICTIONS))
