"""Where Spark's hash partitioning sends a row: known here, so that keys can be chosen for their place.

Should Spark place rows otherwise some day, or with private knowledge refused, keys are 0, 1, 2 ...: rows of one key
still come to one task, but some tasks may have several keys and others none.
"""

from __future__ import annotations

from itertools import count

from share_spark.spark.capabilities import KEY_PLACEMENT, is_allowed

_SEED = 42
"""Of Spark's hash partitioning."""

_MASK = 0xFFFFFFFF


def keys_of_tasks(tasks: int) -> list[int]:
    """For each task an integer that Spark's hash partitioning sends to it."""
    if not is_allowed(KEY_PLACEMENT):
        return list(range(tasks))
    keys: dict[int, int] = {}
    for value in count():
        if len(keys) == tasks:
            break
        keys.setdefault(murmur3(value) % tasks, value)
    return [keys[task] for task in range(tasks)]


def murmur3(value: int) -> int:
    """Spark's ``hash`` of one int: Murmur3, 32 bits, signed."""
    mixed = _rotate((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    state = (_rotate(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
