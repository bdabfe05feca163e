"""Values that carry a little meaning of their own."""

from __future__ import annotations

import pickle

from share_spark.model.ids import OffsetRange, SharePartitionKey, TopicPartition
from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.model.requests import AcknowledgeType
from share_spark.partition.transitions import EVENTS, TRANSITIONS, Event


def test_r71_the_key_as_text() -> None:
    assert str(SharePartitionKey("g", "tid", 3)) == "g:tid:3"
    assert str(TopicPartition("orders", 3)) == "orders-3"


def test_r165_ranges_are_inclusive() -> None:
    assert OffsetRange(5, 9).size == 5
    assert OffsetRange(5, 5)
    assert not OffsetRange(5, 4)
    assert OffsetRange(5, 9)._replace(first=7) == (7, 9)


def test_r3_nothing_leads_out_of_a_final_state() -> None:
    assert [state for state in DeliveryState if state.is_final] == [
        DeliveryState.ACKNOWLEDGED,
        DeliveryState.ARCHIVED,
    ]
    assert not [state for state, _ in TRANSITIONS if state.is_final]


def test_r4_a_client_can_end_only_what_is_acquired() -> None:
    asked = {(state, event) for state, event in TRANSITIONS if event in EVENTS}
    assert {state for state, _ in asked} == {DeliveryState.ACQUIRED}
    assert [int(event) for event in EVENTS] == sorted(AcknowledgeType)
    assert (DeliveryState.AVAILABLE, Event.ACQUIRE) in TRANSITIONS


def test_states_survive_a_trip_to_an_executor() -> None:
    """The leader compares states by identity."""
    batch = InFlightBatch(0, 9, DeliveryState.ACQUIRED, 1, "m", 5)
    assert pickle.loads(pickle.dumps(batch)).delivery_state is DeliveryState.ACQUIRED
