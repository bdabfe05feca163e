"""Two hundred seeds, and proof that the judge would notice: engines made wrong on purpose are convicted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from share_spark.engine.memory import InMemoryShareStateStore, InMemoryStateLog
from share_spark.engine.memory_output import InMemoryDeadLetters, InMemoryOutputSink
from share_spark.engine.ports import CommittedOutput, Stamp
from share_spark.model.errors import FencedError
from share_spark.model.records import InFlightBatch
from share_spark.model.requests import ExpireLocks
from share_spark.partition import release
from share_spark.partition.decide import HANDLERS
from share_spark.partition.outcome import Outcome
from share_spark.partition.transitions import Event
from tests.simulation.play import World, run_seed

SEEDS = 200
BLOCK = 20
MOST_SEEDS = 1_500
MOST_CONVICTIONS = 20
"""What is wrong shows in several ways; the one that is asked for need not be the first."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Engines that are refused something say so."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_all_promises_hold(first: int) -> None:
    for seed in range(first, first + BLOCK):
        failure = run_seed(seed)
        assert not failure, failure


def test_a_seed_plays_the_same_twice() -> None:
    one, other = World(7), World(7)
    one.play()
    other.play()
    assert one.trace == other.trace


def never_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InMemoryShareStateStore, "_refuse", lambda *_, **__: None)


def zombies_count(patch: pytest.MonkeyPatch) -> None:
    def all_records(log: InMemoryStateLog, _group_id: str, version: int) -> list[Any]:
        return [commit for commit in log.commits[: version + 1] if commit.kind == "records"]

    patch.setattr(InMemoryStateLog, "that_count", all_records)


def locks_end_early(patch: pytest.MonkeyPatch) -> None:
    expire = HANDLERS[ExpireLocks]
    patch.setitem(HANDLERS, ExpireLocks, lambda draft, request, limits, _: expire(draft, request, limits, 2**62))


def failed_appends_are_taken_as_not_done(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InMemoryShareStateStore, "was_committed", lambda *_: False)


def crashes_archive_whoever_was_there(patch: pytest.MonkeyPatch) -> None:
    def end_all(outcome: Outcome, ended: list[InFlightBatch], in_handler: object = None) -> None:
        for run in ended:
            outcome.end_attempt(run, Event.LOCK_EXPIRED)

    patch.setattr(release, "lose", end_all)


def dead_letters_are_not_made_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InMemoryDeadLetters, "recover", lambda *_: None)


def output_is_not_taken_over(patch: pytest.MonkeyPatch) -> None:
    claim = InMemoryOutputSink.claim

    def forgetful(sink: InMemoryOutputSink, *given: Any) -> None:
        claim(sink, *given)

    patch.setattr(InMemoryOutputSink, "claim", forgetful)


def the_sink_is_not_claimed(patch: pytest.MonkeyPatch) -> None:
    claim = InMemoryOutputSink.claim

    def unfenced(sink: InMemoryOutputSink, *given: Any) -> CommittedOutput | None:
        before = sink.table.transaction
        left = claim(sink, *given)
        sink.table.transaction = before
        return left

    patch.setattr(InMemoryOutputSink, "claim", unfenced)


def what_may_be_in_the_sink_is_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("share_spark.engine.micro_batch.OutputUnknownError", FencedError)


def the_journal_is_listed_before_the_sink_is_claimed(patch: pytest.MonkeyPatch) -> None:
    def hasty(sink: InMemoryOutputSink, writer_epoch: int, _last_counted: Stamp) -> CommittedOutput | None:
        sink._own = Stamp(writer_epoch, -1).number
        left = sink._left()
        delivered = sink._claimed()
        sink._unabsorbed |= left.keys() & {delivered}
        return left.get(delivered)

    patch.setattr(InMemoryOutputSink, "claim", hasty)


@pytest.mark.parametrize(
    ("sabotage", "verdict"),
    [
        (never_fenced, "though it has seen that"),
        (zombies_count, "snapshot epoch goes back"),
        (locks_end_early, "should be Cell(state=<DeliveryState.ACQUIRED"),
        (failed_appends_are_taken_as_not_done, ""),
        (crashes_archive_whoever_was_there, "suspects"),
        (dead_letters_are_not_made_good, "no dead letter of"),
        (output_is_not_taken_over, "should be Fate(kind='accepted'"),
        (the_sink_is_not_claimed, "should be Fate(kind="),
        (what_may_be_in_the_sink_is_given_back, "should be Fate(kind='accepted'"),
        (the_journal_is_listed_before_the_sink_is_claimed, "should be Fate(kind='accepted'"),
    ],
)
def test_a_wrong_engine_is_convicted(
    sabotage: Callable[[pytest.MonkeyPatch], None], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    verdicts = (run_seed(seed) for seed in range(MOST_SEEDS))
    convictions = (found.splitlines()[-2] for found in verdicts if found)
    assert any(verdict in found for found in islice(convictions, MOST_CONVICTIONS))
