"""Plays in which calls outlast deliveries; and proof that the judge would notice: engines and companion processes that
are made wrong on purpose are convicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from share_spark.companion.hand_overs import HandOvers
from share_spark.companion.lost_calls import LostCalls
from share_spark.engine.delivery_port import DeliveryLimits
from share_spark.engine.handler_calls import Answered, HandlerCalls, Phase
from share_spark.engine.micro_batch import ShareGroupEngine
from share_spark.engine.pending import NOTHING_PENDING, PendingAcknowledgements
from share_spark.engine.takeover import TakenOver, taken_over
from share_spark.engine.world import Ports
from share_spark.model.records import Doubt, InFlightBatch
from share_spark.model.requests import ExpireLocks, Loss
from share_spark.partition.decide import HANDLERS
from share_spark.partition.request_effects import RequestEffects
from tests.simulation.late_delivery import SimulatedCompanion
from tests.simulation.play import run_seed
from tests.simulation.seeds import BLOCK, blocks, is_convicted
from tests.twins.late_calls import LateAnswer, LateCall, LateCalls, LateDriver

IN_TEST, SEEDS = 40, 200
"""Seeds that `make test` plays; all."""
MOST_SEEDS = 1_000

Sabotage = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", blocks(SEEDS, IN_TEST))
def test_all_promises_hold(first: int) -> None:
    for seed in range(first, first + BLOCK):
        failure = run_seed(seed, is_late=True)
        assert not failure, failure


# ------------------------------------------------------------------------------------------------- the engine is wrong


def locks_of_a_living_engine_end(patch: pytest.MonkeyPatch) -> None:
    expire = HANDLERS[ExpireLocks]

    def all_of_them(draft: Any, request: Any, *given: Any) -> Any:
        return expire(draft, replace(request, kept_by=None), *given)

    patch.setitem(HANDLERS, ExpireLocks, all_of_them)


def an_answer_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The last one of each delivery."""
    answered = HandlerCalls._answered

    def forgetful(calls: HandlerCalls, delivered: Any, *given: Any) -> Answered:
        return answered(calls, delivered._replace(answers=delivered.answers[:-1]), *given)

    patch.setattr(HandlerCalls, "_answered", forgetful)


def what_was_throttled_is_charged(patch: pytest.MonkeyPatch) -> None:
    def charged(outcome: RequestEffects, run: InFlightBatch, doubt: Doubt) -> None:
        outcome.excuse(run, doubt)

    patch.setattr(RequestEffects, "throttle", charged)


def the_room_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LateDriver, "room", lambda *_: 1_000)


def suspects_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    def most_records(calls: HandlerCalls, inputs: Any, config: Any) -> int:
        return calls.limits.most_records(config, inputs.now_ms)

    patch.setattr(HandlerCalls, "most_records", most_records)


def more_calls_are_allowed_than_the_setting(patch: pytest.MonkeyPatch) -> None:
    limits = HandlerCalls._limits

    def generous(calls: HandlerCalls, config: Any, most_calls: int) -> DeliveryLimits:
        return limits(calls, config, most_calls + 1)

    patch.setattr(HandlerCalls, "_limits", generous)


def who_stops_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    def run(engine: ShareGroupEngine, batch_id: int, *, stopping: bool = False) -> Any:
        return engine._run(batch_id, Phase.STOPS if stopping else Phase.RUNS)

    patch.setattr(ShareGroupEngine, "run", run)


def late_answers_are_taken_for_those_of_this_delivery(patch: pytest.MonkeyPatch) -> None:
    """Whether or not the member still holds their records."""
    answered = HandlerCalls._answered

    def of_now(*given: Any) -> Answered:
        found = answered(*given)
        return found._replace(pending=replace(found.pending, member_id=None))

    patch.setattr(HandlerCalls, "_answered", of_now)


def finished_calls_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def read_only(ports: Ports, *_: object, **__: object) -> TakenOver:
        next(iter(ports.delivery.finished_calls()), None)
        return TakenOver(NOTHING_PENDING, NOTHING_PENDING)

    patch.setattr("share_spark.engine.micro_batch.taken_over", read_only)


def what_ended_after_the_last_output_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def alone(ports: Ports, summaries: Any, in_sink: PendingAcknowledgements, *, decides: bool) -> TakenOver:
        return (
            TakenOver(in_sink, NOTHING_PENDING) if in_sink else taken_over(ports, summaries, in_sink, decides=decides)
        )

    patch.setattr("share_spark.engine.micro_batch.taken_over", alone)


# ------------------------------------------------------------------------------------------ the calls, or their books


def a_cancelled_call_is_answered(patch: pytest.MonkeyPatch) -> None:
    def end_cancelled(companion: SimulatedCompanion, call: LateCall) -> None:
        companion.calls._answer(call.number, call[1:3], LateAnswer(Loss.FINISHED))

    patch.setattr(SimulatedCompanion, "end_cancelled", end_cancelled)
    patch.setattr(HandOvers, "note", lambda _, answers: list(answers))


def answers_for_what_was_truncated_are_not_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HandOvers, "forget", lambda *_: None)


def whoever_waited_is_accused(patch: pytest.MonkeyPatch) -> None:
    answers = LostCalls.answers

    def hasty(calls: LostCalls, *given: Any) -> Iterator[Any]:
        for answer in answers(calls, *given):
            yield answer._replace(answer=Loss.AMONG_OTHERS) if answer.answer is Loss.FINISHED else answer

    patch.setattr(LostCalls, "answers", hasty)


def answers_that_are_on_their_way_hold_back_no_key(patch: pytest.MonkeyPatch) -> None:
    held_back = LateCalls._held_back
    patch.setattr(LateCalls, "_held_back", lambda calls, acquired, _unknown: held_back(calls, acquired, ()))


def keys_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LateCalls, "_place", lambda *_: None)


def hand_overs_are_forgotten_before_the_state_has_them(patch: pytest.MonkeyPatch) -> None:
    delivered = LateDriver._delivered

    def early(driver: LateDriver, *given: Any) -> Any:
        found = delivered(driver, *given)
        driver._forget_returned()
        return found

    patch.setattr(LateDriver, "_delivered", early)


def a_companion_goes_on_without_its_driver(patch: pytest.MonkeyPatch) -> None:
    """It begins more calls."""
    patch.setattr(LateCalls, "close", lambda *_: None)


FIRST_SEEDS: dict[Sabotage, int] = {late_answers_are_taken_for_those_of_this_delivery: 292}
"""Of what shows late, as in ``test_simulation``."""


@pytest.mark.parametrize(
    ("sabotage", "verdict"),
    [
        (locks_of_a_living_engine_end, "should be Cell(state=<DeliveryState.ACQUIRED"),
        (an_answer_is_forgotten, "is Cell(state=<DeliveryState.ACQUIRED"),
        (what_was_throttled_is_charged, "should be Cell(state=<DeliveryState.AVAILABLE"),
        (the_room_is_not_looked_at, "records in flight, there is room for"),
        (suspects_are_not_waited_for, "suspects are in flight beside others"),
        (more_calls_are_allowed_than_the_setting, "calls run at a time, and at most"),
        (who_stops_does_not_wait, "should be Cell(state=<DeliveryState.ACQUIRED"),
        (
            late_answers_are_taken_for_those_of_this_delivery,
            "has vanished, should be Cell(state=<DeliveryState.ACQUIRED",
        ),
        (finished_calls_are_forgotten, "should be"),
        (what_ended_after_the_last_output_is_forgotten, "which the next engine has not taken over"),
        (a_cancelled_call_is_answered, "should be"),
        (answers_for_what_was_truncated_are_not_dropped, "is put out, although the log was truncated"),
        (whoever_waited_is_accused, "is accused, and only waited"),
        (answers_that_are_on_their_way_hold_back_no_key, "is entered before the end of"),
        (keys_are_not_looked_at, "is entered before the end of"),
        (hand_overs_are_forgotten_before_the_state_has_them, "which the next engine has not taken over"),
        (a_companion_goes_on_without_its_driver, "after it was replaced"),
    ],
)
def test_what_is_wrong_is_convicted(sabotage: Sabotage, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this; the first seeds that fail may do so for another of its consequences."""
    sabotage(monkeypatch)
    first = FIRST_SEEDS.get(sabotage, 0)
    assert is_convicted(partial(run_seed, is_late=True), range(first, first + MOST_SEEDS), verdict)
