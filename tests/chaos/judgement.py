"""The guarantees, checked against the evidence of a run. Pure.

The evidence is the file of calls: the delivery count of a record is the number of times that a handler was entered with
it. So the counts with which a record was called are 1, 2, 3, ... without a gap and without a repeat, whatever process
was killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from share_spark.delivery.traces import WORKER_LOST
from share_spark.engine.attempts import ENGINE_LOST
from tests.chaos.job import TIMEOUT_MS
from tests.chaos.script import (
    ALWAYS_FAIL,
    KILL_DRIVER,
    KILL_EXECUTOR,
    KILL_WORKER,
    NO_PRICE,
    REJECT,
    SLEEP,
    STAY_IN_C,
    OrderEvent,
)

Offset = tuple[int, int]
"""Partition and offset."""

Calls = Sequence[tuple[int, int, int]]
"""Partition, offset, delivery count; in the order in which they were made."""

Letter = tuple[int, int, int, str, str | None]
"""Partition, offset, delivery count, reason, error."""

_LIMIT_REACHED = "delivery limit reached"
_OVERRUN = f"time limit of {TIMEOUT_MS} ms exceeded"

ARCHIVED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    REJECT: ("rejected", ("never",)),
    ALWAYS_FAIL: (_LIMIT_REACHED, ("ValueError: not yet", WORKER_LOST, ENGINE_LOST)),
    KILL_WORKER: (_LIMIT_REACHED, (WORKER_LOST,)),
    KILL_EXECUTOR: (_LIMIT_REACHED, (WORKER_LOST,)),
    KILL_DRIVER: (_LIMIT_REACHED, (ENGINE_LOST,)),
    SLEEP: (_LIMIT_REACHED, (_OVERRUN,)),
    STAY_IN_C: (_LIMIT_REACHED, (f"{_OVERRUN} and did not react: File ",)),
    NO_PRICE: (_LIMIT_REACHED, ("returned output column price that is no double: ",)),
}
"""Values of the records that must become dead letters, with the reason, and the possible beginnings of their errors."""


class Evidence(NamedTuple):
    """All that can be observed once a run has ended well. ``windows``: SPSO and SPEO from the log, ``status``: the SPSO
    in the status table. ``announced``: dead letters not yet written. ``kills``: faults that have happened.
    ``refusals``: engines that have ended because the sink took no rows, and gave everything back uncharged.
    ``paused_in_handler``: one has gone on with its handler after others had worked. ``keys``: of the records that were
    to be handled in order, ``order``: of these, what happened one after the other."""

    values: Mapping[Offset, str]
    keys: Mapping[Offset, bytes]
    order: Sequence[OrderEvent]
    ends: Mapping[int, int]
    windows: Mapping[int, tuple[int, int]]
    status: Mapping[int, int]
    calls: Calls
    outputs: Sequence[tuple[int, int, int]]
    letters: Sequence[Letter]
    announced: Sequence[str]
    kills: int
    refusals: int
    limit: int
    paused_in_handler: bool


def faults_in(seen: Evidence) -> list[str]:
    """One line for each thing that is wrong."""
    counts = by_record(seen.calls)
    return [
        *_terminal(seen),
        *_called(seen, counts),
        *_put_out(seen, counts),
        *_dead(seen, counts),
        *_out_of_order(seen),
    ]


def by_record(calls: Calls) -> dict[Offset, list[int]]:
    """The delivery counts with which each record was called, in order."""
    counts: dict[Offset, list[int]] = defaultdict(list)
    for partition, offset, count in calls:
        counts[partition, offset].append(count)
    return counts


def _terminal(seen: Evidence) -> Iterator[str]:
    for partition, end in seen.ends.items():
        if seen.windows.get(partition) != (end, end):
            yield f"partition {partition} ends at {end}, its window is {seen.windows.get(partition)}"
        if seen.status.get(partition) != end:
            yield f"partition {partition} ends at {end}, the status table has {seen.status.get(partition)}"
    if seen.announced:
        yield f"dead letters are announced and not written: {seen.announced}"


def _called(seen: Evidence, counts: Mapping[Offset, Sequence[int]]) -> Iterator[str]:
    """Two things only may repeat a count, once each: a sink that refused, for its records were not charged, and an
    engine that was fenced while it was paused, which cannot be kept from going on in its handler."""
    for at in seen.values.keys() - counts.keys():
        yield f"{at} was never given to the handler"
    for at, found in counts.items():
        different = sorted(set(found))
        if different != list(range(1, len(different) + 1)):
            yield f"{at} ({seen.values.get(at)}) was handled with counts {found}: there is a gap"
        if len(found) - len(different) > seen.refusals + seen.paused_in_handler:
            yield f"{at} ({seen.values.get(at)}) was handled with counts {found}: there is a repeat"
        if list(found) != sorted(found) and not seen.paused_in_handler:
            yield f"{at} ({seen.values.get(at)}) was handled with counts {found}: they fall"


def _out_of_order(seen: Evidence) -> Iterator[str]:
    """Records that were entered although an earlier one of their key was not finished."""
    if seen.paused_in_handler:
        return
    last: dict[Offset, OrderEvent] = {}
    for event in seen.order:
        at = event.partition, event.offset
        earlier = (one for one in seen.keys if one[0] == at[0] and one < at and seen.keys[one] == seen.keys[at])
        for one in earlier if not event.finished else ():
            if one not in last or not _is_finished(last[one], seen):
                yield f"{at} was entered before {one} was finished, which has the same key: {last.get(one)}"
        last[at] = event


def _is_finished(event: OrderEvent, seen: Evidence) -> bool:
    """What always fails is finished once it is archived."""
    return event.finished or (seen.values[event.partition, event.offset] == ALWAYS_FAIL and event.count >= seen.limit)


def _put_out(seen: Evidence, counts: Mapping[Offset, Sequence[int]]) -> Iterator[str]:
    """One row for each accepted record, from the last time that it was handled: so none was seen after its accept."""
    rows: dict[Offset, list[int]] = defaultdict(list)
    for partition, offset, count in seen.outputs:
        rows[partition, offset].append(count)
    for at, value in seen.values.items():
        wanted = [] if value in ARCHIVED else [max(counts.get(at, [0]))]
        if rows.get(at, []) != wanted:
            yield f"{at} ({value}): the output has counts {rows.get(at, [])}, not {wanted}; handled {counts.get(at)}"
    for at in rows.keys() - seen.values.keys():
        yield f"{at}: output of a record that is not there"


def _dead(seen: Evidence, counts: Mapping[Offset, Sequence[int]]) -> Iterator[str]:
    letters: dict[Offset, list[Letter]] = defaultdict(list)
    for letter in seen.letters:
        letters[letter[0], letter[1]].append(letter)
    for at, value in seen.values.items():
        found = letters.get(at, [])
        if value in ARCHIVED:
            right = len(found) == 1 and _is_right(found[0], value, max(counts.get(at, [0])), seen)
        else:
            right = not found
        if not right:
            yield f"{at} ({value}): dead letters {found}; handled {counts.get(at)}"


def _is_right(letter: Letter, value: str, last: int, seen: Evidence) -> bool:
    """The handler was entered as often as the letter says: ``limit`` times, and once more if the first death has only
    accused it. Whoever kills an engine while it has a record makes a delivery that does not count towards the limit:
    each such kill may add one."""
    _, _, count, reason, error = letter
    wanted_reason, beginnings = ARCHIVED[value]
    least = seen.limit + (value == KILL_DRIVER)
    in_limit = value == REJECT or least <= count <= least + seen.kills
    return count == last and in_limit and reason == wanted_reason and (error or "").startswith(beginnings)
