"""Compare a replay with its golden scenario, level by level, and find the first difference of each."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from share_spark.coordinator import combine_batches
from share_spark.model.errors import StateError
from share_spark.model.records import StateBatch
from tests.conformance.golden import Golden
from tests.conformance.replay import CannotReplayError, Replay, ReplayStep

LEVELS = (1, 2, 3)
RESULT_KEYS = ("acquired", "acquired_count", "blocked", "error", "by", "pending")
STATE_KEYS = {
    1: ("start_offset", "next_fetch_offset", "in_flight"),
    2: ("acquired", "can_acquire", "end_offset", "delivery_complete_count"),
    3: ("below_start", "cached_batches"),
}
EXCEPTED_FEATURES = frozenset({"persister_failure", "async_persister"})


@dataclass(frozen=True, slots=True)
class Difference:
    """Where and in what a replay departs from the golden scenario. ``step`` -1: the initial state."""

    step: int
    what: str
    golden: Any
    ours: Any
    op: Any = None
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"step {self.step} {self.op}: {self.what}: golden {self.golden}, ours {self.ours}" + (
            f" [{', '.join(self.flags)}]" if self.flags else ""
        )


@dataclass(slots=True)
class ReplayOutcome:
    """One scenario's first difference at each level; none at a level is a pass of it."""

    scenario: Golden
    first: dict[int, Difference] = field(default_factory=dict)

    def passes(self, level: int) -> bool:
        """A level includes the ones below it."""
        return not any(lower in self.first for lower in range(1, level + 1))

    @property
    def excepted(self) -> bool:
        """A persister that fails or holds back: no counterpart in ours (see ``__main__``)."""
        return bool(set(self.scenario["features"]) & EXCEPTED_FEATURES)

    @property
    def required(self) -> bool:
        """No flag, and not excepted."""
        return not self.scenario["differs_from_seed"] and not self.excepted

    def note(self, level: int, difference: Difference) -> None:
        self.first.setdefault(level, difference)


def run_scenario(scenario: Golden) -> ReplayOutcome:
    """Replay a scenario. A difference at level 1 ends it, since everything after would differ as well."""
    outcome = ReplayOutcome(scenario)
    replay = _load(scenario, outcome)
    if replay is None:
        return outcome
    for number, element in enumerate(scenario["ops"]):
        try:
            step = replay.step(element["op"])
        except CannotReplayError as reason:
            outcome.note(1, _difference(number, element, "not replayed", "-", str(reason)))
        except Exception:  # noqa: BLE001 - a crash is a difference to report, the run goes on
            why = traceback.format_exc(limit=-2)
            outcome.note(1, _difference(number, element, "crash", "-", why))
        else:
            _compare(outcome, number, element, step)
        if 1 in outcome.first:
            break
    return outcome


def _load(scenario: Golden, outcome: ReplayOutcome) -> Replay | None:
    """The replay at its initial state; None if the load fails, in which case no operation follows."""
    initial = scenario["initial"]
    try:
        replay = Replay(scenario["config"])
    except StateError as error:
        if initial["error"] is None:
            outcome.note(1, Difference(-1, "initial error", None, str(error)))
        return None
    if initial["error"] is not None:
        outcome.note(1, Difference(-1, "initial error", initial["error"], None))
        return None
    element = {"op": {"op": "load"}, "result": {}, **initial}
    step = ReplayStep({}, replay.view(), replay.persisted(), [])
    _compare(outcome, -1, element, step)
    return replay


def _compare(outcome: ReplayOutcome, number: int, element: Golden, step: ReplayStep) -> None:
    for level, what, golden, ours in _values(element, step):
        if golden != ours:
            outcome.note(level, _difference(number, element, what, golden, ours))


def _values(element: Golden, step: ReplayStep) -> Iterator[tuple[int, str, Any, Any]]:
    """(level, name, golden value, our value) of all that is compared after one operation."""
    golden_result, state = element["result"], element.get("state") or {}
    for key in RESULT_KEYS:
        yield 1, f"result.{key}", golden_result.get(key), step.result.get(key)
    for level, keys in STATE_KEYS.items():
        for key in keys:
            empty = [] if key in ("acquired", "below_start") else None
            yield level, f"state.{key}", state.get(key, empty), step.state[key]
    persisted = element.get("persisted")
    if persisted is not None:
        yield 3, "persisted.start_offset", persisted["start_offset"], step.persisted["start_offset"]
        canonical = [list(batch) for batch in _canonical(persisted["batches"])]
        yield 3, "persisted.batches", canonical, step.persisted["batches"]
    written = [[w["start_offset"], w["batches"]] for w in element.get("persister_writes", ())]
    yield 3, "persister_writes", _written(written), _written(step.writes)


def _canonical(batches: list[list[int]]) -> tuple[StateBatch, ...]:
    return combine_batches((), [StateBatch(*batch) for batch in batches], -1)


def _written(writes: list[list[Any]]) -> tuple[set[int], tuple[StateBatch, ...]]:
    """All writes of one operation together: how they are cut, and their order, is incidental."""
    batches = [batch for _, content in writes for batch in content]
    return {start for start, _ in writes}, _canonical(batches)


def _difference(number: int, element: Golden, what: str, golden: Any, ours: Any) -> Difference:
    flags = tuple(element.get("differs_from_seed", ()))
    return Difference(number, what, golden, ours, element["op"], flags)
