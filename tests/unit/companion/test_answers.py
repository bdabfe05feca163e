"""Answers of single records as the engine takes them."""

from __future__ import annotations

from share_spark.companion.answers import entered_in, spans_of
from share_spark.companion.messages import RecordAnswer
from share_spark.engine.attempts import ErrorRun
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType, AnsweredRange, Loss, RetryDelay
from share_spark.partition.columns import is_columns

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


def one(offset: int, answer: int = ACCEPT, *more: object, at: TopicPartition = AT, number: int = 1) -> RecordAnswer:
    return RecordAnswer(number, at, offset, offset, answer, *more)


def test_answers_in_any_order_become_runs_of_each_topic_partition() -> None:
    found = spans_of([one(3), one(1, number=2), one(7, at=OTHER), one(2), one(5), one(4, RELEASE)])
    assert found == [
        AcknowledgedSpan(
            AT, (AnsweredRange(1, 3, ACCEPT), AnsweredRange(4, 4, RELEASE), AnsweredRange(5, 5, ACCEPT)), ()
        ),
        AcknowledgedSpan(OTHER, (AnsweredRange(7, 7, ACCEPT),), ()),
    ]


def test_errors_and_delays_are_runs_of_their_own() -> None:
    (found,) = spans_of(
        [one(1, RELEASE, "no", 50), one(2, RELEASE, "no"), one(3, RELEASE, "why"), one(4, RELEASE, None, 0)]
    )
    assert found.ranges == (AnsweredRange(1, 4, RELEASE),)
    assert found.errors == (ErrorRun(1, 2, "no"), ErrorRun(3, 3, "why"))
    assert found.delays == (RetryDelay(1, 1, 50), RetryDelay(4, 4, 0))


def test_delays_of_different_answers_are_not_joined() -> None:
    """They do not begin at the same time: the one that was asked for begins with its commit."""
    (found,) = spans_of(
        [one(1, Loss.THROTTLED, "429", 50), one(2, Loss.NOT_ENTERED, None, 50), one(3, RELEASE, None, 50)]
    )
    assert found.delays == (RetryDelay(1, 1, 50), RetryDelay(2, 2, 50), RetryDelay(3, 3, 50))


def test_numbers_of_the_wire_become_the_engines_names() -> None:
    (found,) = spans_of([one(1, 0), one(2, 1), one(3, 104)])
    assert [type(answer) for _, _, answer in found.ranges] == [AcknowledgeType, AcknowledgeType, Loss]


def test_a_gap_of_many_offsets_is_one_run() -> None:
    (found,) = spans_of([RecordAnswer(1, AT, 1, 9_999, AcknowledgeType.GAP), one(10_000)])
    assert found.ranges == (AnsweredRange(1, 9_999, AcknowledgeType.GAP), AnsweredRange(10_000, 10_000, ACCEPT))


def test_many_runs_are_columns() -> None:
    (found,) = spans_of([one(offset) for offset in range(0, 2_000, 2)])
    assert is_columns(found.ranges)
    assert len(found.ranges) == 1_000


def test_gaps_and_records_given_back_were_not_entered() -> None:
    gap = RecordAnswer(1, AT, 1, 100, AcknowledgeType.GAP)
    assert entered_in([gap, one(101), one(102, Loss.NOT_ENTERED), one(103, Loss.FINISHED), one(104, RELEASE)]) == 3
