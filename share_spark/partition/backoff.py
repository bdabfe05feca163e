"""The time that a released record waits until it is delivered again: by its handler, else by a policy.

    policy         delay after delivery 1, 2, 3, 4, ...
    none           -
    fixed          d  d  d  d
    exponential    d  2d 4d 8d   at most ``max_delay_ms``

A delay is a lock that no member holds: the record is Available, and nobody acquires it before ``lock_deadline_ms``. It
belongs to an answer. An attempt that ended without one (its engine or the worker of its whole batch died), or that was
given back before its handler was entered, is not delayed. Two exceptions: in order of keys, what is given back since an
earlier record of its key waits, waits as long as that one; and what was throttled waits as long as was asked for.

There is no randomness here: the jitter is one of a few levels, chosen by a hash of where the records are and how often
they were delivered. A range that was released together waits together, so ranges are not cut.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from share_spark.model.config import BackoffPolicy
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import DeliveryState, Doubt, InFlightBatch
from share_spark.model.requests import RetryDelay
from share_spark.partition.columns import (
    Columns,
    Kind,
    are_many,
    as_columns,
    intersection,
    is_columns,
    joined,
    merged,
    outside,
    with_hash,
)
from share_spark.partition.runs import Runs

LEVELS = 9
"""Different delays after the same delivery count."""

_MOST_DOUBLINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delays of a group's released records.

    ``max_delay_ms``: of EXPONENTIAL. ``jitter`` (0 to 1): the delay is between ``1 - jitter`` and ``1 + jitter`` of
    what the policy says, and not above the maximum.
    """

    policy: BackoffPolicy = BackoffPolicy.NONE
    delay_ms: int = 1_000
    max_delay_ms: int = 60_000
    jitter: float = 0.0

    def __bool__(self) -> bool:
        return self.policy is not BackoffPolicy.NONE

    def delay_after_ms(self, delivery_count: int, level: int = LEVELS // 2) -> int:
        """Return the delay after this delivery; ``level`` 0 is the shortest, the one in the middle has no jitter."""
        factor = 1 - self.jitter + 2 * self.jitter * level / (LEVELS - 1)
        match self.policy:
            case BackoffPolicy.NONE:
                return 0
            case BackoffPolicy.FIXED:
                return round(self.delay_ms * factor)
            case BackoffPolicy.EXPONENTIAL:
                doubled_ms = self.delay_ms << min(delivery_count - 1, _MOST_DOUBLINGS)
                return min(round(min(doubled_ms, self.max_delay_ms) * factor), self.max_delay_ms)


NO_BACKOFF = Backoff()


def delayed(ended: Runs, delays: Sequence[RetryDelay], backoff: Backoff, key: SharePartitionKey, now_ms: int) -> Runs:
    """Set the time before which the Available ones of ``ended``, runs whose attempts have ended, are not acquired.

    ``delays``: what handlers asked for, ascending and disjoint; it wins over ``backoff``.
    """
    if not ended or not (delays or backoff):
        return ended
    changes = as_columns(ended)
    is_released = changes.mask(_may_wait)
    if not is_released.any():
        return ended
    rest = released = joined(changes.where(is_released))
    parts = [changes.where(~is_released)]
    if delays:
        asked = as_columns(delays)
        parts.append(_as_asked(intersection(_row, released, asked), now_ms))
        rest = outside(released, asked)
    parts.append(_by_policy(rest, backoff, key, now_ms))
    found = merged(*parts)
    return found if is_columns(ended) or are_many(len(found)) else tuple(found)


def _may_wait(run: InFlightBatch) -> bool:
    """Return whether ``run`` may wait. Not what is searched for a record that ends engines: the search must go on."""
    return run.delivery_state is DeliveryState.AVAILABLE and run.doubt < Doubt.LOST_TWICE


def _row(first: int, last: int, *fields: Any) -> tuple[Any, ...]:
    """Make a row of a released run with one more field: the delay that was asked for, or a level."""
    return first, last, *fields


def _as_asked(asked: Columns[tuple[Any, ...]], now_ms: int) -> Columns[InFlightBatch]:
    return asked.recoded(InFlightBatch, [_until(kind[:-1], kind[-1], now_ms) for kind in asked.kinds])


def _by_policy(
    released: Columns[InFlightBatch], backoff: Backoff, key: SharePartitionKey, now_ms: int
) -> Columns[InFlightBatch]:
    if not backoff or not released:
        return released
    counts = [run.delivery_count for run in released.samples]
    if not backoff.jitter:
        delays = [backoff.delay_after_ms(count) for count in counts]
        return released.recoded(
            InFlightBatch, [_until(*found, now_ms) for found in zip(released.kinds, delays, strict=True)]
        )
    seeds = [zlib.crc32(f"{key.topic_id}/{key.partition}/{count}".encode()) for count in counts]
    spread = with_hash(_row, released, seeds, LEVELS)
    return spread.recoded(
        InFlightBatch, [_until(kind[:-1], backoff.delay_after_ms(kind[1], kind[-1]), now_ms) for kind in spread.kinds]
    )


def _until(kind: Kind, delay_ms: int, now_ms: int) -> Kind:
    """Return the fields of a run that is not acquired for so long. A delay of 0 is none."""
    run = InFlightBatch(0, 0, *kind)
    return run._replace(lock_deadline_ms=now_ms + delay_ms if delay_ms else None)[2:]
