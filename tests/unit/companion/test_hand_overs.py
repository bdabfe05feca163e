"""Which offsets a companion process has."""

from __future__ import annotations

import numpy as np

from share_spark.companion.hand_overs import HandOvers
from share_spark.companion.messages import RecordAnswer
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import AcknowledgeType

AT = TopicPartition("orders", 0)


def acquired(*ranges: tuple[int, int, int]) -> list[AcquiredSpan]:
    return [AcquiredSpan(AT, AcquiredRanges(np.array(ranges, np.int64)))]


def answer(number: int, first: int, last: int) -> RecordAnswer:
    return RecordAnswer(number, AT, first, last, AcknowledgeType.ACCEPT)


def test_answers_of_several_hand_overs_are_counted() -> None:
    found = HandOvers()
    found.add(1, acquired((0, 9, 1)))
    found.add(2, acquired((10, 11, 1), (20, 20, 3)))
    assert found.in_flight == 13
    assert len(found.note([answer(1, 0, 4), answer(2, 10, 11), answer(1, 7, 7)])) == 3
    assert found.in_flight == 5
    assert found.take_answered() == ()
    found.note([answer(2, 20, 20)])
    assert found.take_answered() == (2,)
    assert found.take_answered() == ()


def test_offsets_without_an_answer_are_found() -> None:
    found = HandOvers()
    found.add(1, acquired((0, 2, 1), (5, 5, 4)))
    found.note([answer(1, 1, 2)])
    assert [(one.number, one.offset) for one in found.unanswered()] == [(1, 0), (1, 5)]


def test_answers_behind_the_end_of_a_truncated_log_are_ignored() -> None:
    found = HandOvers()
    found.add(1, acquired((0, 2, 1)))
    found.add(2, acquired((3, 3, 1), (8, 9, 1)))
    found.note([answer(1, 0, 0)])
    found.forget({AT: 2})
    assert (found.in_flight, found.take_answered()) == (1, (2,))
    found.add(3, acquired((2, 3, 1)))
    assert found.note([answer(2, 3, 3), answer(1, 1, 2), answer(3, 2, 3)]) == [answer(1, 1, 1), answer(3, 2, 3)]
    assert (found.in_flight, found.take_answered()) == (0, (1, 3))


def test_what_was_forgotten_is_not_looked_for_when_a_process_has_died() -> None:
    found = HandOvers()
    found.add(1, acquired((0, 5, 1)))
    found.forget({AT: 4})
    found.forget({AT: 5})
    assert [one.offset for one in found.unanswered()] == [0, 1, 2, 3]
