"""Which answers of an engine that has ended count: by offset and delivery count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from share_spark.engine.attempts import AnsweredAttempt, ErrorRun, FinishedCalls
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.pending import NOTHING_PENDING, PendingAcknowledgements
from share_spark.engine.takeover import TakenOver, Unabsorbed, taken_over, unabsorbed
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import AcknowledgeType, AnsweredRange, RetryDelay
from tests.support.engine_world import InMemoryGroup
from tests.support.window_forms import ALWAYS, NEVER, columns_from
from tests.twins.late_delivery import LateDelivery
from tests.twins.memory import InMemoryTopicLog
from tests.twins.memory_delivery import InMemoryDelivery

KEY = SharePartitionKey("billing", "id", 0)
AT = TopicPartition("orders", 0)
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT

Attempts = tuple[tuple[int, int, int, AcknowledgeType], ...]


def held(*runs: tuple[int, int, int]) -> Mapping[SharePartitionKey, tuple[InFlightBatch, ...]]:
    return {KEY: tuple(InFlightBatch(*run[:2], DeliveryState.ACQUIRED, run[2], "dead", 1_000) for run in runs)}


def found(
    runs: Mapping[SharePartitionKey, tuple[InFlightBatch, ...]], answered: Attempts = (), put_out: Attempts = ()
) -> Unabsorbed:
    calls = FinishedCalls(
        member_id="dead",
        answered={AT: tuple(AnsweredAttempt(*one) for one in answered)},
        put_out={AT: tuple(AnsweredAttempt(*one) for one in put_out)} if put_out else {},
        errors={AT: [ErrorRun(3, 5, "busy"), ErrorRun(8, 8, "never")]},
        delays={AT: [RetryDelay(4, 9, 500)]},
    )
    return unabsorbed(calls, runs, {KEY: "orders"})


@pytest.mark.parametrize("columns_at", [ALWAYS, NEVER])
def test_answers_are_cut_to_what_is_held_with_the_same_count(columns_at: int) -> None:
    with columns_from(columns_at):
        answers = found(held((2, 4, 1), (5, 8, 2)), ((0, 3, 1, ACCEPT), (4, 5, 1, RELEASE), (6, 8, 2, REJECT))).answers
    (span,) = answers.values()
    assert list(span.ranges) == [(2, 3, ACCEPT), (4, 4, RELEASE), (6, 8, REJECT)]
    assert list(span.errors) == [(3, 3, "busy"), (4, 4, "busy"), (8, 8, "never")]
    assert list(span.delays) == [(4, 4, 500), (6, 8, 500)]


def test_what_the_member_does_not_hold_any_more_has_been_absorbed() -> None:
    assert found({}, ((0, 9, 1, ACCEPT),)) == ({}, {})
    assert found(held((0, 9, 2)), ((0, 9, 1, ACCEPT),)) == ({}, {})


def test_answers_with_rows_are_cut_in_the_same_way() -> None:
    """They count for as many records as are held, whatever the state has of the others."""
    both = found(held((0, 4, 1), (6, 6, 3)), ((1, 1, 1, RELEASE),), ((0, 0, 1, ACCEPT), (2, 6, 1, ACCEPT)))
    assert list(both.answers[KEY].ranges) == [(1, 1, RELEASE)]
    assert list(both.put_out[KEY].ranges) == [(0, 0, ACCEPT), (2, 4, ACCEPT)]


class Left(InMemoryDelivery):
    """What a dead engine has left: ``calls``. ``wanted``: the records whose rows the next one wants."""

    def __init__(self, *calls: FinishedCalls) -> None:
        super().__init__(InMemoryTopicLog(), lambda *_: ACCEPT, has_output=True)
        self.calls_left = calls

    def finished_calls(self) -> Sequence[FinishedCalls]:
        return self.calls_left


def taken(in_sink: PendingAcknowledgements, *calls: FinishedCalls) -> tuple[TakenOver, set[int] | None]:
    """What is taken over of an engine that held offsets 0 to 9, and the offsets whose rows are held."""
    delivery = Left(*calls)
    store = SimpleNamespace(held_by=lambda _: held((0, 9, 1)))
    summaries: Any = {KEY: SimpleNamespace(topic="orders")}
    ports: Any = SimpleNamespace(delivery=delivery, store=store)
    wanted = taken_over(ports, summaries, in_sink, decides=True)
    return wanted, None if delivery.held is None else {offset for _, offset in delivery.held}


def finished(member_id: str, answered: Attempts, put_out: Attempts = ()) -> FinishedCalls:
    attempts = [{AT: tuple(AnsweredAttempt(*one) for one in some)} if some else {} for some in (answered, put_out)]
    return FinishedCalls(member_id, *attempts, errors={AT: [ErrorRun(6, 6, "busy")]}, delays={})


def in_the_sink(member_id: str, *ranges: tuple[int, int, AcknowledgeType]) -> PendingAcknowledgements:
    span = AcknowledgedSpan(AT, tuple(AnsweredRange(*one) for one in ranges), [ErrorRun(3, 3, "no")])
    return PendingAcknowledgements(spans={KEY: span}, member_id=member_id)


def test_what_the_sink_has_is_said_again_with_the_answers_that_came_later() -> None:
    """Its rows are not committed twice: they are in the ledgers until the state has their answers."""
    in_sink = in_the_sink("dead", (0, 2, ACCEPT), (3, 3, REJECT))
    found, rows = taken(in_sink, finished("dead", ((3, 3, 1, REJECT), (6, 6, 1, RELEASE)), ((0, 5, 1, ACCEPT),)))
    (span,) = found.pending.spans.values()
    assert list(span.ranges) == [(0, 2, ACCEPT), (3, 3, REJECT), (6, 6, RELEASE)]
    assert list(span.errors) == [(3, 3, "no"), (6, 6, "busy")]
    (span,) = found.with_rows.spans.values()
    assert list(span.ranges) == [(0, 2, ACCEPT), (3, 3, REJECT), (4, 5, ACCEPT), (6, 6, RELEASE)]
    assert rows == {4, 5}
    assert found.with_rows.member_id == "dead"


def test_what_the_sink_has_counts_alone_if_there_is_nothing_else() -> None:
    in_sink = in_the_sink("dead", (0, 5, ACCEPT))
    assert taken(in_sink, finished("dead", (), ((0, 5, 1, ACCEPT),))) == ((in_sink, NOTHING_PENDING), None)
    assert taken(in_sink) == ((in_sink, NOTHING_PENDING), None)


def test_calls_of_another_engine_than_the_one_in_the_sink_do_not_count_with_it() -> None:
    in_sink = in_the_sink("dead", (0, 5, ACCEPT))
    older = finished("older", ((6, 6, 1, RELEASE),))
    assert taken(in_sink, older) == ((in_sink, NOTHING_PENDING), None)
    found, _ = taken(NOTHING_PENDING, older)
    assert (found.pending.member_id, list(found.pending.spans[KEY].ranges)) == ("older", [(6, 6, RELEASE)])


def test_what_ends_after_the_last_commit_of_the_output_is_taken_over_beside_it() -> None:
    """Calls outlast micro-batches: an engine dies with output in the sink that no state row has, and later answers in
    its ledger."""
    world = InMemoryGroup(
        handler=lambda _topic, _partition, offset, _count: REJECT if offset % 2 else ACCEPT,
        output=True,
        loses_rows=True,
        late=Random(1),
    )
    world.produce(40)
    assert world.output is not None
    dead, rejected = world.engine(), set[int]()
    while not (world.output.journal and rejected):
        dead.run()
        assert isinstance(dead.delivery, LateDelivery)
        calls = dead.delivery.driver.calls
        rejected = {one.answer.first_offset for one in calls.ended if one.answer.answer is REJECT} if calls else set()
    next_one = world.engine(available_now=True)
    world.clock.advance(60_000)
    next_one.run_until_done(step_ms=10)
    assert [world.deliveries[0, offset] for offset in rejected] == [1] * len(rejected)
    assert sorted(row.offset for row in world.output.rows) == list(range(0, 40, 2))
