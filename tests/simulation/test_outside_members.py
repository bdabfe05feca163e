"""Plays with outside members, beside handlers and alone; and proof that the judge would notice: engines and gateways
that are made wrong on purpose are convicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from share_spark.engine.client_asks import ClientAsks
from share_spark.engine.step import PartitionOutcome
from share_spark.gateway.group_clients import Fetch
from share_spark.gateway.share_service import ShareService
from share_spark.model.errors import ErrorCode
from share_spark.model.requests import ExpireLocks
from share_spark.partition import unacknowledged
from share_spark.partition.kafka_modes import AcquireReadAhead, acquire_batches
from share_spark.partition.kafka_modes.decide import HANDLERS
from share_spark.partition.kafka_modes.draft import KafkaDraft
from share_spark.partition.kafka_modes.requests import AcknowledgeOrRenew
from tests.simulation.play import SimulatedWorld, run_seed
from tests.simulation.seeds import BLOCK, blocks, is_convicted
from tests.twins.memory import InMemoryShareStateStore

IN_TEST, SEEDS = 40, 300
"""Seeds that `make test` plays; all."""
MOST_SEEDS = 600

Sabotage = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", blocks(SEEDS, IN_TEST))
def test_all_promises_hold(first: int) -> None:
    for seed in range(first, first + BLOCK):
        failure = run_seed(seed, has_clients=True)
        assert not failure, failure


@pytest.mark.parametrize("is_late", [False, True])
def test_a_seed_plays_the_same_twice(is_late: bool) -> None:
    one, other = (SimulatedWorld(7, is_late=is_late, has_clients=True) for _ in range(2))
    one.play()
    other.play()
    assert one.trace == other.trace


# ------------------------------------------------------------------------------------------------- the engine is wrong


def never_fenced(patch: pytest.MonkeyPatch) -> None:
    """A zombie goes on, and answers."""
    patch.setattr(InMemoryShareStateStore, "_refuse", lambda *_, **__: None)


def clients_are_answered_before_the_append(patch: pytest.MonkeyPatch) -> None:
    advance = InMemoryShareStateStore.advance

    def hasty(store: Any, *given: Any, **named: Any) -> Sequence[PartitionOutcome]:
        outcomes = advance(store, *given, **named)
        if store.of.gateway is not None:
            store.of.engine._asks.answer(outcomes, store.group)
        return outcomes

    patch.setattr(InMemoryShareStateStore, "advance", hasty)


def locks_of_clients_end_early(patch: pytest.MonkeyPatch) -> None:
    expire = HANDLERS[ExpireLocks]

    def early(draft: Any, request: ExpireLocks, limits: Any, now_ms: int) -> Any:
        return expire(draft, request, limits, now_ms if request.lost else now_ms + 1_000)

    patch.setitem(HANDLERS, ExpireLocks, early)


def locks_of_clients_are_taken_for_those_of_dead_engines(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unacknowledged, "is_client", lambda _: False)


def an_attempt_of_a_client_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    expire = HANDLERS[ExpireLocks]

    def lenient(draft: Any, request: ExpireLocks, limits: Any, now_ms: int) -> Any:
        if request.lost:
            return expire(draft, request, limits, now_ms)
        given_back = replace(limits, max_delivery_count=limits.max_delivery_count + 1)
        return expire(draft, request, given_back, now_ms)

    patch.setitem(HANDLERS, ExpireLocks, lenient)


def anybody_may_acknowledge(patch: pytest.MonkeyPatch) -> None:
    acknowledge = HANDLERS[AcknowledgeOrRenew]

    def gullible(draft: KafkaDraft, request: AcknowledgeOrRenew, limits: Any, now_ms: int) -> Any:
        first = request.batches[0].first_offset if request.batches else 0
        run = next((run for run in draft.runs if run.first_offset <= first <= run.last_offset), None)
        owner = run.member_id if run is not None and run.member_id is not None else request.member_id
        return acknowledge(draft, replace(request, member_id=owner), limits, now_ms)

    patch.setitem(HANDLERS, AcknowledgeOrRenew, gullible)


def acknowledgements_are_answered_and_not_kept(patch: pytest.MonkeyPatch) -> None:
    """Now and then."""
    answer = ClientAsks.answer

    def kind(asks: ClientAsks, outcomes: Any, group: Any) -> None:
        found = [
            one._replace(
                responses=[
                    replace(response, error=ErrorCode.NONE) if response.error else response
                    for response in one.responses
                ]
            )
            for one in outcomes
        ]
        answer(asks, found, group)

    patch.setattr(ClientAsks, "answer", kind)


def delays_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    acquire = HANDLERS[AcquireReadAhead]

    def hasty(draft: KafkaDraft, *given: Any) -> Any:
        draft.now_ms = math.inf
        return acquire(draft, *given)

    patch.setitem(HANDLERS, AcquireReadAhead, hasty)


def pauses_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    take = ClientAsks.take
    patch.setattr(ClientAsks, "take", lambda asks, known, _, config: take(asks, known, (), config))


def counts_begin_anew_with_a_client(patch: pytest.MonkeyPatch) -> None:
    take = acquire_batches._Acquisition._take

    def forgetful(work: Any, first: int, last: int, count: int, excused: int = 0) -> None:
        take(work, first, last, 1 if count > 2 else count, excused)

    patch.setattr(acquire_batches._Acquisition, "_take", forgetful)


def what_is_excused_is_forgotten_by_a_client(patch: pytest.MonkeyPatch) -> None:
    take = acquire_batches._Acquisition._take
    patch.setattr(
        acquire_batches._Acquisition, "_take", lambda work, first, last, count, _=0: take(work, first, last, count)
    )


def what_a_handler_holds_is_given_to_clients(patch: pytest.MonkeyPatch) -> None:
    """Once its lock is over, though the engine lives."""
    expire = HANDLERS[ExpireLocks]

    def all_of_them(draft: Any, request: ExpireLocks, limits: Any, now_ms: int) -> Any:
        return expire(draft, request if request.lost else replace(request, kept_by=None), limits, now_ms)

    patch.setitem(HANDLERS, ExpireLocks, all_of_them)


# ------------------------------------------------------------------------------------------------ the gateway is wrong


def what_an_unknown_session_says_is_dropped(patch: pytest.MonkeyPatch) -> None:
    async def drop(*_: object) -> None:
        return

    patch.setattr(ShareService, "_take_late", drop)


def an_answer_that_nobody_takes_releases_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "share_spark.gateway.share_service._without_takers",
        lambda owner, results: Fetch(owner, held=tuple(key for key, one in results.items() if one.acquired)),
    )


FIRST_SEEDS: dict[Sabotage, int] = {an_answer_that_nobody_takes_releases_all: 52}
"""Of what shows late, as in ``test_simulation``."""


@pytest.mark.parametrize(
    ("sabotage", "verdict"),
    [
        (never_fenced, "answers what is not in the log"),
        (clients_are_answered_before_the_append, "answers what is not in the log"),
        (locks_of_clients_end_early, "although it holds"),
        (locks_of_clients_are_taken_for_those_of_dead_engines, "should be Cell(state=<DeliveryState.AVAILABLE"),
        (an_attempt_of_a_client_is_not_charged, "should be Fate(kind='delivery limit reached'"),
        (anybody_may_acknowledge, "is acknowledged by"),
        (acknowledgements_are_answered_and_not_kept, "was taken as"),
        (delays_are_not_kept, "out of Cell(state=<DeliveryState.AVAILABLE"),
        (pauses_are_not_seen, "acquired for clients, and paused is"),
        (counts_begin_anew_with_a_client, "is given with count"),
        (what_is_excused_is_forgotten_by_a_client, "should be Cell(state=<DeliveryState.ACQUIRED"),
        (what_a_handler_holds_is_given_to_clients, "should be Cell(state=<DeliveryState.ACQUIRED"),
        (what_an_unknown_session_says_is_dropped, "holds what it has acknowledged"),
        (an_answer_that_nobody_takes_releases_all, "whose session goes on"),
    ],
)
def test_what_is_wrong_is_convicted(sabotage: Sabotage, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this; the first seeds that fail may do so for another of its consequences."""
    sabotage(monkeypatch)
    first = FIRST_SEEDS.get(sabotage, 0)
    assert is_convicted(partial(run_seed, has_clients=True), range(first, first + MOST_SEEDS), verdict)
