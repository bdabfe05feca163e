"""Which answers of an engine that has ended count: by offset and delivery count."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from share_spark.engine.attempts import AnsweredAttempt, ErrorRun, FinishedCalls
from share_spark.engine.takeover import Unabsorbed, unabsorbed
from share_spark.model.ids import SharePartitionKey, TopicPartition
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import AcknowledgeType, RetryDelay
from tests.support.window_forms import ALWAYS, NEVER, columns_from

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


def test_rows_count_together_with_all_other_answers() -> None:
    both = found(held((0, 4, 1)), ((1, 1, 1, RELEASE),), ((0, 0, 1, ACCEPT), (2, 3, 1, ACCEPT)))
    assert list(both.answers[KEY].ranges) == [(1, 1, RELEASE)]
    assert list(both.with_rows[KEY].ranges) == [(0, 0, ACCEPT), (1, 1, RELEASE), (2, 3, ACCEPT)]


@pytest.mark.parametrize("runs", [held((1, 3, 1)), held((0, 2, 1), (3, 3, 2)), {}])
def test_rows_of_which_one_record_is_settled_do_not_count(
    runs: Mapping[SharePartitionKey, tuple[InFlightBatch, ...]],
) -> None:
    """Which rows are of which record is not known."""
    assert found(runs, (), ((0, 3, 1, ACCEPT),)).with_rows == {}
