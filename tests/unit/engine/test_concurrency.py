"""The calls at a time to a service that throttles, tried on a simulated service, in virtual time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from share_spark.engine.concurrency import FIRST_CALLS, CallAnswers, Concurrency

CALL_S, REFUSAL_S, MICRO_BATCH_S, BURST_S = 0.2, 0.02, 0.1, 0.2


@dataclass
class Service:
    """A service of ``rate`` calls a second (a token bucket), and the companion that calls it: the place of a throttled
    call is held until the next limits. ``served`` and ``refused``: when."""

    rate: Callable[[float], float]
    rng: Random
    calls: Concurrency
    tokens: float = 0.0
    at: float = 0.0
    began: int = 0
    running: list[tuple[float, int, bool, int]] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def run(self, until: float) -> Service:
        begins = 0.0
        while begins < until:
            ends = begins + MICRO_BATCH_S * self.rng.uniform(0.5, 1.5)
            answers = self._micro_batch(begins, ends)
            self.calls = self.calls.after(answers, round(ends * 1_000))
            begins = ends
        return self

    def _micro_batch(self, begins: float, ends: float) -> CallAnswers:
        throttled, others, held = Counter[int](), 0, 0
        self._begin_calls(begins, held)
        while self.running and self.running[0][0] < ends:
            at, _, is_served, round_number = heapq.heappop(self.running)
            (self.served if is_served else self.refused).append(at)
            others += is_served
            held += not is_served
            throttled[round_number] += not is_served
            self._begin_calls(at, held)
        return CallAnswers(throttled[self.calls.round_number], others, is_used=True)

    def _begin_calls(self, at: float, held: int) -> None:
        while len(self.running) + held < self.calls.most_calls:
            self.tokens = min(BURST_S * self.rate(at), self.tokens + self.rate(at) * (at - self.at))
            self.at, self.began = at, self.began + 1
            is_served = self.tokens >= 1
            self.tokens -= is_served
            takes = (CALL_S if is_served else REFUSAL_S) * self.rng.uniform(0.8, 1.2)
            heapq.heappush(self.running, (at + takes, self.began, is_served, self.calls.round_number))

    def served_within(self, first: float, last: float) -> int:
        return sum(first <= at < last for at in self.served)

    def throttled_within(self, first: float, last: float) -> float:
        refused = sum(first <= at < last for at in self.refused)
        return refused / (refused + self.served_within(first, last))


def service(rate: Callable[[float], float], seed: int, most: int = 256) -> Service:
    return Service(rate, Random(seed), Concurrency().under(most), tokens=BURST_S * rate(0))


@pytest.mark.parametrize("seed", range(5))
def test_a_service_whose_rate_is_halved_is_used_well_and_seldom_throttles(seed: int) -> None:
    found = service(lambda at: 50 if at < 60 else 25, seed).run(120)
    assert len(found.served) >= 0.9 * (60 * 50 + 60 * 25)
    assert found.throttled_within(0, 120) < 0.02


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("before", "after"), [(50, 25), (25, 50), (400, 40)])
def test_within_half_a_minute_it_has_settled_at_a_new_rate(seed: int, before: int, after: int) -> None:
    found = service(lambda at: before if at < 60 else after, seed).run(120)
    assert found.served_within(90, 120) >= 0.88 * 30 * after
    assert found.throttled_within(90, 120) < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_a_service_that_never_throttles_gets_all_calls_within_seconds(seed: int) -> None:
    found = service(lambda _: 1e9, seed, most=1_000).run(15)
    assert len(found.served) >= 0.9 * 15 * 1_000 / CALL_S
    assert found.calls.most_calls == 1_000


def test_a_service_that_refuses_everything_gets_one_call_at_a_time() -> None:
    assert service(lambda _: 0.0, 0).run(10).calls.most_calls == 1


def test_an_engine_begins_with_few_calls_and_acquires_for_all() -> None:
    calls = Concurrency().under(256)
    assert (calls.most_calls, calls.most_soon) == (FIRST_CALLS, 256)


def test_an_engine_whose_service_throttles_acquires_for_the_calls_that_may_run() -> None:
    throttled = Concurrency().under(256).after(CallAnswers(9, 1, is_used=True), 0)
    assert (throttled.most_calls, throttled.most_soon) == (8, 8)


def test_no_more_calls_run_than_the_setting_allows() -> None:
    calls = Concurrency().under(256).after(CallAnswers(0, 1_000, is_used=True), 0)
    assert [calls.under(most).most_calls for most in (256, 300, 5, 1)] == [256, 256, 5, 1]


def test_a_setting_that_is_raised_is_reached_by_the_ramp() -> None:
    calls = Concurrency().under(20).after(CallAnswers(0, 100, is_used=True), 0).under(500)
    assert calls.after(CallAnswers(0, 100, is_used=True), 100).most_calls == 220


def test_calls_that_were_not_all_in_use_make_room_for_no_more() -> None:
    calls = Concurrency().under(256)
    assert calls.after(CallAnswers(0, 10, is_used=False), 1_000).most_calls == calls.most_calls


def test_a_decrease_begins_a_round_and_takes_as_much_as_was_throttled() -> None:
    ramped = Concurrency().under(100).after(CallAnswers(0, 100, is_used=True), 0)
    few, half, all_of_them = (
        ramped.after(CallAnswers(throttled, 0, is_used=True), 100) for throttled in (1, 43, 10_000)
    )
    assert (few.most_calls, half.most_calls, all_of_them.most_calls) == (90, 69, 50)
    assert few.round_number == ramped.round_number + 1


def test_after_a_throttle_the_number_rises_slowly_even_after_a_pause() -> None:
    calls = Concurrency().under(100).after(CallAnswers(1, 3, is_used=True), 0)
    before = calls.calls
    for now_ms in (500, 1_000, 3_600_000):
        calls = calls.after(CallAnswers(0, 50, is_used=True), now_ms)
    assert before + 0.4 <= calls.calls < before + 1
