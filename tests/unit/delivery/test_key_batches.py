"""Order by key in a task: record by record, in batches, after a worker died, against a model of one line of records."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from share_spark.delivery import key_batches
from share_spark.delivery.key_batches import JOINED_ROWS
from share_spark.delivery.packed_handler import packed
from share_spark.delivery.result import DeliveryResult, decoded, read_once
from share_spark.delivery.runs import OUTPUT_COLUMN, RUN_SCHEMA
from share_spark.delivery.worker import HandlerTask, Terms
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, arrow_handler, as_handler, pandas_handler
from share_spark.model.errors import HandlerError, TopicUnreachableError
from share_spark.model.requests import Loss
from tests.support.handled import new_place
from tests.unit.delivery.test_calling import batch_of

Key = str
"""A letter; ``.`` is none."""


def records(keys: str, counts: Mapping[int, int] | None = None, *, size: int = 4) -> list[pa.RecordBatch]:
    """Offsets from 0 in batches. ``counts``: other delivery counts than 1."""
    given = [(counts or {}).get(offset, 1) for offset in range(len(keys))]
    columns = {
        "key": pa.array([None if key == "." else key.encode() for key in keys], pa.binary()),
        "delivery_count": pa.array(given, pa.int32()),
        "__task": pa.nulls(len(keys), pa.string()),
    }
    whole = batch_of(len(keys), **columns)
    return [whole.slice(at, size) for at in range(0, len(keys), size)]


def run(function: Callable[..., Any], batches: Iterable[pa.RecordBatch], **settings: Any) -> DeliveryResult:
    output, terms = settings.pop("output", None), settings.pop("terms", Terms())
    handler = as_handler(function, output=output)
    task = HandlerTask(
        name=handler.name,
        payload=packed(handler),
        output=handler.output,
        place=settings.pop("place", None) or new_place(),
        delivery="delivery",
        ordered=True,
        terms=terms,
    )
    sent = pa.Table.from_batches(list(task(iter(batches))))
    if OUTPUT_COLUMN in sent.schema.names:
        sent = sent.filter(pc.is_null(sent.column(OUTPUT_COLUMN)))
    return decoded(sent.select(RUN_SCHEMA.names), read_once)


def span(result: DeliveryResult) -> AcknowledgedSpan:
    assert result.fault is None
    (found,) = result.partitions.values()
    return found


def answers(result: DeliveryResult) -> dict[int, int]:
    ranges = span(result).ranges
    return {offset: answer for first, last, answer in ranges for offset in range(first, last + 1)}


def waits(result: DeliveryResult) -> dict[int, int]:
    delays = span(result).delays
    return {offset: wait for first, last, wait in delays for offset in range(first, last + 1)}


NOT_ENTERED = int(Loss.NOT_ENTERED)


class Handler:
    """Says of each offset what it is told to, and notes the calls."""

    def __init__(self, said: Mapping[int, Any] | None = None) -> None:
        self.said: Mapping[int, Any] = said or {}
        self.calls: list[list[int]] = []

    @property
    def entered(self) -> list[int]:
        return [offset for call in self.calls for offset in call]

    def by_record(self, record: Record) -> Any:
        self.calls.append([record.offset])
        return self.said.get(record.offset)

    def by_batch(self, batch: pa.RecordBatch) -> Any:
        offsets: list[int] = batch.column("offset").to_pylist()
        self.calls.append(offsets)
        return [self.said.get(offset, Ack.ACCEPT) for offset in offsets]


NOTED: dict[str, Handler] = {}


def noted(handler: Handler, kind: str) -> Callable[..., Any]:
    """A function that finds its handler again after it was pickled."""
    name = uuid.uuid4().hex
    NOTED[name] = handler
    module = __name__
    if kind == "record":
        return lambda record: __import__("sys").modules[module].NOTED[name].by_record(record)
    return arrow_handler(lambda batch: __import__("sys").modules[module].NOTED[name].by_batch(batch))


KINDS = ["record", "batch"]
SEEDS = 40


@pytest.mark.parametrize("kind", KINDS)
def test_a_released_record_holds_back_its_successors_and_no_others(kind: str) -> None:
    handler = Handler({1: Ack.RELEASE})
    result = run(noted(handler, kind), records("abab.bca"))
    assert answers(result) == {0: 1, 1: 2, 2: 1, 3: NOT_ENTERED, 4: 1, 5: NOT_ENTERED, 6: 1, 7: 1}
    assert sorted(handler.entered) == [0, 1, 2, 4, 6, 7]
    assert waits(result) == {}
    assert result.entered == 6


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_back_waits_as_long_as_what_it_waits_for(kind: str) -> None:
    result = run(noted(Handler({0: Ack.release(delay=5)}), kind), records("aaab", {3: -1 - 700}))
    assert answers(result) == {0: 2, 1: NOT_ENTERED, 2: NOT_ENTERED}
    assert waits(result) == {0: 5_000, 1: 5_000, 2: 5_000}


@pytest.mark.parametrize("kind", KINDS)
def test_a_throttled_record_holds_back_its_key_as_a_released_one_does(kind: str) -> None:
    result = run(noted(Handler({0: Ack.throttled(retry_after=5)}), kind), records("aab"))
    assert answers(result) == {0: Loss.THROTTLED, 1: NOT_ENTERED, 2: 1}
    assert waits(result) == {0: 5_000, 1: 5_000}
    assert (result.entered, result.throttled, result.not_entered, result.lost_records) == (2, 1, 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_not_acquired_holds_back_what_comes_after_it_only(kind: str) -> None:
    result = run(noted(Handler(), kind), records("aaabaabb", {1: -1 - 9_000, 3: -1}))
    assert answers(result) == {0: 1, 2: NOT_ENTERED, 4: NOT_ENTERED, 5: NOT_ENTERED, 6: NOT_ENTERED, 7: NOT_ENTERED}
    assert waits(result) == {2: 9_000, 4: 9_000, 5: 9_000}


@pytest.mark.parametrize("kind", KINDS)
def test_records_without_a_key_have_no_order(kind: str) -> None:
    result = run(noted(Handler({0: Ack.RELEASE}), kind), records("....", {1: -1}))
    assert answers(result) == {0: 2, 2: 1, 3: 1}


def test_a_batch_has_no_key_twice_and_successors_come_in_the_next_one() -> None:
    handler = Handler()
    run(noted(handler, "batch"), records("aab.ba.a", size=8))
    assert handler.calls == [[0, 2, 3, 6], [1, 4], [5], [7]]


def test_batches_are_joined_so_that_calls_are_few_and_no_call_has_more_records_than_a_batch() -> None:
    handler = Handler()
    run(noted(handler, "batch"), records("ab" * 4 + "cdefg", size=2))
    assert handler.calls == [[0, 1], [8, 9], [10, 11], [12], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_read_before_the_topic_could_not_be_reached_is_handled(kind: str) -> None:
    def read() -> Iterator[pa.RecordBatch]:
        yield from records("aab", size=1)
        raise TopicUnreachableError("gone")

    handler = Handler()
    run(noted(handler, kind), read())
    assert sorted(handler.entered) == [0, 1, 2]


def test_what_was_answered_before_the_contract_was_broken_is_valid() -> None:
    @arrow_handler
    def handle(batch: pa.RecordBatch) -> Any:
        return [1] * batch.num_rows if 0 in batch.column("offset").to_pylist() else [1] * 7

    result = run(handle, records("aab.ba"))
    assert isinstance(result.fault, HandlerError)
    (found,) = result.partitions.values()
    assert found.ranges == ((0, 0, 1), (1, 1, NOT_ENTERED), (2, 3, 1), (4, 5, NOT_ENTERED))


def test_a_pandas_frame_has_no_key_twice() -> None:
    seen = []

    def handle(frame: Any) -> list[int]:
        seen.append(frame["key"].is_unique)
        return [1] * len(frame) if frame["key"].is_unique else [3] * len(frame)

    assert answers(run(pandas_handler(handle), records("abaab"))) == dict.fromkeys(range(5), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_two_partitions_are_two(kind: str) -> None:
    one, other = records("aa")[0], records("aa")[0]
    other = other.set_column(1, "partition", pa.array([7, 7], pa.int32()))
    result = run(noted(Handler({0: Ack.RELEASE}), kind), [one, other])
    said = {at.partition: found.ranges for at, found in result.partitions.items()}
    assert said == {0: ((0, 0, 2), (1, 1, NOT_ENTERED)), 7: ((0, 0, 2), (1, 1, NOT_ENTERED))}
    later = other.set_column(2, "offset", pa.array([5, 6], pa.int64()))
    result = run(noted(Handler({0: Ack.RELEASE}), kind), [one, later])
    assert [found.ranges for at, found in sorted(result.partitions.items())][1] == ((5, 6, 1),)


def test_output_that_does_not_fit_holds_back_the_successor() -> None:
    def handle(record: Record) -> Any:
        return Ack.ACCEPT, [{"id": "no number" if record.offset == 0 else record.offset}]

    result = run(handle, records("aab"), output=pa.schema([("id", pa.int64())]))
    assert answers(result) == {0: 2, 1: NOT_ENTERED, 2: 1}


@pytest.mark.parametrize("kind", KINDS)
def test_without_time_nothing_is_entered(kind: str) -> None:
    result = run(noted(Handler(), kind), records("aab", {0: -1}), terms=Terms(budget_s=0.0))
    assert answers(result) == {1: NOT_ENTERED, 2: NOT_ENTERED}


# ------------------------------------------------------------------------------------------ repeats of the task


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeat_holds_back_behind_what_the_run_before_has_not_finished(kind: str) -> None:
    place = new_place()
    first = records("aab", size=3)
    run(noted(Handler({0: Ack.RELEASE}), kind), [first[0].slice(0, 1)], place=place)
    again = Handler()
    result = run(noted(again, kind), first, place=place)
    assert again.entered == [2]
    assert answers(result) == {0: 2, 1: NOT_ENTERED, 2: 1}


def test_a_repeat_holds_back_behind_the_record_that_killed_the_worker() -> None:
    def dies(record: Record) -> None:
        if record.offset == 1:
            raise KeyboardInterrupt

    place = new_place()
    whole = records("aaab")
    with pytest.raises(KeyboardInterrupt):
        run(dies, whole, place=place)
    again = Handler()
    assert answers(run(noted(again, "record"), whole, place=place)) == {0: 1, 1: 2, 2: NOT_ENTERED, 3: 1}
    assert again.entered == [3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeat_takes_a_batch_without_records(kind: str) -> None:
    place = new_place()
    whole = records("aab")[0]
    run(noted(Handler(), kind), [whole.slice(0, 1)], place=place)
    result = run(noted(Handler(), kind), [whole.slice(0, 0), whole], place=place)
    assert answers(result) == {0: 1, 1: 1, 2: 1}


def test_a_repeat_goes_on_behind_what_the_run_before_has_finished() -> None:
    place = new_place()
    whole = records("aab", size=3)
    run(noted(Handler(), "record"), [whole[0].slice(0, 1)], place=place)
    assert answers(run(noted(Handler(), "record"), whole, place=place)) == {0: 1, 1: 1, 2: 1}


# ------------------------------------------------------------------------------------------------------ the model


def model(keys: str, counts: Mapping[int, int], said: Mapping[int, int]) -> dict[int, int]:
    """What each record is answered with, one after another."""
    held: set[str] = set()
    found = {}
    for offset, key in enumerate(keys):
        if counts.get(offset, 1) < 0:
            held.add(key)
        elif key in held and key != ".":
            found[offset] = NOT_ENTERED
        else:
            found[offset] = said.get(offset, 1)
            held |= {key} if found[offset] == Ack.RELEASE else set()
    return found


def check_calls(keys: str, calls: Sequence[Sequence[int]], said: Mapping[int, int]) -> None:
    """In order by key, no key twice at a time, nothing after what was released."""
    last: dict[str, int] = {}
    for batch in calls:
        named = [keys[offset] for offset in batch if keys[offset] != "."]
        assert len(set(named)) == len(named), batch
        for offset in batch:
            before = last.get(keys[offset])
            if keys[offset] != "." and before is not None:
                assert before < offset
                assert said.get(before, 1) != Ack.RELEASE
            last[keys[offset]] = offset


def play(seed: int, kind: str) -> None:
    """Raises AssertionError if the task does not do as the model does."""
    rng = Random(seed)
    keys = "".join(rng.choices("abc.defgh"[: rng.randint(1, 9)], k=60))
    counts = {offset: -1 for offset in range(60) if rng.random() < 0.1}
    said = {offset: rng.choice([2, 2, 3]) for offset in range(60) if rng.random() < 0.2}
    handler = Handler(said)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_batches, "JOINED_ROWS", rng.choice([1, 20, JOINED_ROWS]))
        result = run(noted(handler, kind), records(keys, counts, size=rng.choice([1, 7, 60])))
    assert answers(result) == model(keys, counts, said)
    check_calls(keys, handler.calls, said)


def play_all(kind: str) -> None:
    for seed in range(SEEDS):
        play(seed, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_it_comes_to_the_same_as_one_record_after_another(kind: str, seed: int) -> None:
    play(seed, kind)


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        ("record", "KeyOrder.hold_back", lambda *_: None),
        ("batch", "KeyOrder.hold_back", lambda *_: None),
        ("record", "BatchOrder.note", lambda *_: None),
        ("batch", "BatchOrder.note", lambda *_: None),
        ("record", "BatchOrder.admitted", lambda _order, records, *_: records),
        ("batch", "_ranks", lambda numbers: np.zeros(len(numbers), np.intp)),
    ],
)
def test_a_wrong_task_is_convicted(kind: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"share_spark.delivery.key_batches.{name}", wrong)
    with pytest.raises(AssertionError):
        play_all(kind)
