"""A micro-batch that looks at busy share-partitions only is planned as one that looks at all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st

from share_spark.engine.busy_partitions import BusyPartitions, may_rest
from share_spark.engine.planning import PlanInputs, Search, plan, targets_within
from share_spark.engine.progress import lag_of
from share_spark.engine.step import PartitionInput, PartitionSummary
from share_spark.model.ids import LogEnds, SharePartitionKey
from tests.support.answers import answered
from tests.support.examples import examples

KEYS = [SharePartitionKey("billing", "orders-id", partition) for partition in range(4)]
ACCEPTED = answered([(0, 1, 1)])

keys = st.sampled_from(KEYS)
few = st.integers(0, 3)
times = st.none() | st.integers(1, 4)
ends = st.builds(LogEnds, st.integers(-1, 3), st.integers(-1, 6), st.none() | st.integers(0, 6))
suspected = st.tuples(few, few, few) | st.just((0, 0, 0))


@st.composite
def finished(draw: st.DrawFn) -> tuple[PartitionSummary, LogEnds]:
    """Usually up to the end of the log."""
    end = draw(few)
    return PartitionSummary("orders", end, end, 0, None), LogEnds(draw(st.integers(0, end)), end)


@st.composite
def anything(draw: st.DrawFn) -> tuple[PartitionSummary, LogEnds]:
    start, size, available = draw(st.integers(-1, 4)), draw(few), draw(st.integers(0, 2))
    by_state = (available, draw(few), draw(few), draw(few))
    delayed = draw(st.just(()) | st.tuples(st.tuples(st.integers(1, 4), st.integers(1, 2))))
    deadline = draw(times)
    found = PartitionSummary(
        "orders", start, start + size, available, deadline, deadline, draw(suspected), by_state, delayed
    )
    return found, draw(ends)


places = finished() | anything()


single_fields = st.sampled_from(
    [
        {"start_offset": -1},
        {"end_offset": 4},
        {"available": 1},
        {"next_deadline_ms": 3},
        {"suspected": (0, 1, 0)},
        {"delayed": ((2, 1),)},
    ]
)


class Step(NamedTuple):
    """What is new before a micro-batch: whole states, fields of states, log ends."""

    states: dict[SharePartitionKey, tuple[PartitionSummary, LogEnds]]
    fields: dict[SharePartitionKey, dict[str, Any]]
    log_ends: dict[SharePartitionKey, LogEnds]
    removed: set[SharePartitionKey]
    acknowledged: set[SharePartitionKey]
    paused: set[SharePartitionKey]
    stopping: bool
    is_loaded: bool
    now_ms: int
    most: int


changes = st.builds(
    Step,
    st.dictionaries(keys, places, max_size=2),
    st.dictionaries(keys, single_fields, max_size=2),
    st.dictionaries(keys, ends, max_size=2),
    st.sets(keys, max_size=1),
    st.sets(keys, max_size=1),
    st.sets(keys, max_size=1),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
    st.integers(0, 6),
)


def planned(
    step: Step,
    summaries: Mapping[SharePartitionKey, PartitionSummary],
    ends: Mapping[SharePartitionKey, LogEnds],
    targets: Mapping[SharePartitionKey, int] | None,
) -> Mapping[SharePartitionKey, PartitionInput]:
    inputs = PlanInputs(
        now_ms=step.now_ms,
        topics={"orders-id": "orders"},
        ends=ends,
        initial_offsets={},
        acknowledged=dict.fromkeys(sorted(step.acknowledged), ACCEPTED),
        paused=step.paused,
        targets=targets,
        stopping=step.stopping,
        suspects=Search().next_piece(summaries, ends),
    )
    return plan(inputs, summaries, max_records=step.most, max_record_locks=5)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys(KEYS, places)),
    st.none() | st.dictionaries(keys, st.integers(0, 6)),
    st.lists(changes, max_size=8),
)
def test_a_plan_of_the_busy_ones_is_the_plan_of_all(
    begin: dict[SharePartitionKey, tuple[PartitionSummary, LogEnds]],
    targets: dict[SharePartitionKey, int] | None,
    steps: list[Step],
) -> None:
    busy = BusyPartitions()
    summaries = {key: summary for key, (summary, _) in begin.items()}
    log_ends = {key: found for key, (_, found) in begin.items()}
    all_targets: Mapping[SharePartitionKey, int] | None = targets
    of_changed = all_targets
    for step in [Step({}, {}, {}, set(), set(), set(), False, False, 0, 3), *steps]:
        for key, (summary, found) in step.states.items():
            summaries[key] = summary
            log_ends = {**log_ends, key: found}
        summaries |= {key: summaries[key]._replace(**fields) for key, fields in step.fields.items()}
        log_ends = {key: found for key, found in {**log_ends, **step.log_ends}.items() if key not in step.removed}
        busy.loaded() if step.is_loaded else busy.decided([*step.states, *step.fields])

        all_targets = targets_within(all_targets, log_ends)
        of_changed = targets_within(of_changed, busy.read(log_ends))
        assert of_changed == all_targets

        looked_at = busy.ends(summaries, step.acknowledged)
        assert [key for key in log_ends if key in looked_at] == list(looked_at)
        rest = log_ends.keys() - looked_at.keys()
        assert all(may_rest(summaries[key], log_ends[key]) for key in rest)
        event(f"{len(rest)} at rest")

        of_all = planned(step, summaries, log_ends, all_targets)
        assert planned(step, summaries, looked_at, all_targets) == of_all
        assert lag_of(summaries, looked_at) == lag_of(summaries, log_ends)


def test_what_is_finished_rests_until_something_changes() -> None:
    done = PartitionSummary("orders", 5, 5, 0, None)
    summaries = dict.fromkeys(KEYS, done)
    log_ends = dict.fromkeys(KEYS, LogEnds(0, 5))
    busy = BusyPartitions()
    assert busy.read(log_ends) == log_ends
    assert busy.ends(summaries, ()) == {}
    moved = {**log_ends, KEYS[2]: LogEnds(0, 6)}
    assert busy.read(moved) == {KEYS[2]: LogEnds(0, 6)}
    assert busy.ends(summaries, ()) == {KEYS[2]: LogEnds(0, 6)}
    assert busy.read(dict(moved)) == {}
    assert list(busy.ends(summaries, [KEYS[0]])) == [KEYS[0], KEYS[2]]
    assert list(busy.ends(summaries, ())) == [KEYS[2]]
    added = KEYS[0]._replace(partition=9)
    assert busy.read({added: LogEnds(0, 0), **moved}) == {added: LogEnds(0, 0)}


def test_what_does_not_rest() -> None:
    assert may_rest(PartitionSummary("orders", 5, 5, 0, None), LogEnds(0, 5))
    assert not may_rest(PartitionSummary("orders", -1, -1, 0, None), LogEnds(-1, -1)), "it has no state"
    assert not may_rest(PartitionSummary("orders", 3, 5, 0, None), LogEnds(0, 5)), "two are not finished"
