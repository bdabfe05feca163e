"""Acknowledgements as the payload of a sink's journal entry, and back."""

from __future__ import annotations

from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.ports import CommittedOutput
from share_spark.model.ids import BatchStamp, SharePartitionKey, TopicPartition
from share_spark.model.requests import Loss
from share_spark.output.payload import from_payload, to_payload
from tests.support.answers import answered


def test_answers_come_back_as_they_were() -> None:
    answers = {
        SharePartitionKey("billing", "tid", partition): AcknowledgedSpan(
            TopicPartition("orders", partition), answered(ranges), errors, delays
        )
        for partition, ranges, errors, delays in [
            (0, [(0, 9, 1), (10, 11, 2), (12, 2**40, Loss.AMONG_OTHERS)], [(10, 10, "no such city")], [(11, 11, 0)]),
            (7, [(5, 5, 3), (6, 6, Loss.NOT_ENTERED), (7, 7, Loss.FINISHED), (8, 9, 2)], [], [(8, 9, 2**31)]),
        ]
    }
    found = from_payload("billing", to_payload(CommittedOutput(BatchStamp(3, 41), "spark-abc", answers)))
    assert (found.stamp, found.member_id) == (BatchStamp(3, 41), "spark-abc")
    assert found.answers.keys() == answers.keys()
    for key, span in answers.items():
        assert found.answers[key].partition == span.partition
        assert found.answers[key].ranges == span.ranges
        assert list(found.answers[key].errors) == list(span.errors)
        assert list(found.answers[key].delays) == list(span.delays)


def test_a_hundred_thousand_ranges_are_small() -> None:
    ranges = answered((offset, offset, 1 + offset % 2) for offset in range(100_000))
    span = AcknowledgedSpan(TopicPartition("orders", 0), ranges, ())
    answers = {SharePartitionKey("billing", "tid", 0): span}
    assert len(to_payload(CommittedOutput(BatchStamp(1, 0), "m", answers))) < 8_000_000
