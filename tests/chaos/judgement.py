"""The promises, held against what was seen. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from share_spark.engine.micro_batch import ENGINE_LOST
from share_spark.process.worker import WORKER_LOST
from tests.chaos.script import ALWAYS_FAIL, KILL_DRIVER, KILL_WORKER, REJECT

Offset = tuple[int, int]
"""Partition and offset."""

Calls = Sequence[tuple[int, int, int]]
"""Partition, offset, delivery count; in the order in which they were made."""

Letter = tuple[int, int, int, str, str | None]
"""Partition, offset, delivery count, reason, error."""

LIMIT_REACHED = "delivery limit reached"

ARCHIVED = {
    REJECT: ("rejected", {"never"}),
    ALWAYS_FAIL: (LIMIT_REACHED, {"ValueError: not yet", WORKER_LOST, ENGINE_LOST}),
    KILL_WORKER: (LIMIT_REACHED, {WORKER_LOST}),
    KILL_DRIVER: (LIMIT_REACHED, {ENGINE_LOST}),
}
"""Values of the records that must become dead letters, with the reason and the errors that they may have."""


class Evidence(NamedTuple):
    """Everything there is to see once a run has ended well. ``windows``: SPSO and SPEO from the log, ``people``: the
    SPSO in the table for people. ``announced``: dead letters that wait. ``crashes``: engines that have died so far.
    ``refusals``: engines that have ended because the sink took no rows, and gave everything back uncharged.
    ``slept_in_handler``: one has gone on with its handler after others had worked."""

    values: Mapping[Offset, str]
    ends: Mapping[int, int]
    windows: Mapping[int, tuple[int, int]]
    people: Mapping[int, int]
    calls: Calls
    outputs: Sequence[tuple[int, int, int]]
    letters: Sequence[Letter]
    announced: Sequence[str]
    crashes: int
    refusals: int
    limit: int
    slept_in_handler: bool


def faults_in(seen: Evidence) -> list[str]:
    """One line for each thing that is wrong."""
    counts: dict[Offset, list[int]] = defaultdict(list)
    for partition, offset, count in seen.calls:
        counts[partition, offset].append(count)
    return [
        *_terminal(seen),
        *_called(seen, counts),
        *_put_out(seen, counts),
        *_dead(seen, counts),
    ]


def _terminal(seen: Evidence) -> Iterator[str]:
    for partition, end in seen.ends.items():
        if seen.windows.get(partition) != (end, end):
            yield f"partition {partition} ends at {end}, its window is {seen.windows.get(partition)}"
        if seen.people.get(partition) != end:
            yield f"partition {partition} ends at {end}, the table for people says {seen.people.get(partition)}"
    if seen.announced:
        yield f"dead letters are announced and not written: {seen.announced}"


def _called(seen: Evidence, counts: Mapping[Offset, Sequence[int]]) -> Iterator[str]:
    for at in seen.values.keys() - counts.keys():
        yield f"{at} was never given to the handler"
    for at, told in counts.items():
        if len(told) - len(set(told)) > seen.refusals:
            twice = [count for count, times in Counter(told).items() if times > 1]
            yield f"{at} was handled twice with delivery count {twice}: {told}"
        if list(told) != sorted(told) and not seen.slept_in_handler:
            yield f"{at} was handled with counts that fall: {told}"
        if max(told) - len(set(told)) > seen.crashes:
            yield f"{at} was handled with counts {told}, more gaps than the {seen.crashes} crashes"


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
            right = len(found) == 1 and _tells(found[0], value, max(counts.get(at, [0])), seen.limit)
        else:
            right = not found
        if not right:
            yield f"{at} ({value}): dead letters {found}; handled {counts.get(at)}"


def _tells(letter: Letter, value: str, last: int, limit: int) -> bool:
    """A record that has failed often enough may have died with its engine in the end, unseen by the handler."""
    _, _, count, reason, error = letter
    wanted_reason, errors = ARCHIVED[value]
    enough = count == last if value == REJECT else count >= max(last, limit)
    return enough and reason == wanted_reason and error in errors
