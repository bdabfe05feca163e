"""What must hold once everything is finished: of every record, of the output, and of the dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from share_spark.engine.ports import DeadLetter
from share_spark.model.ids import TopicPartition
from tests.simulation.describe import difference, needs_letter
from tests.simulation.facts import At, Fate, demand

if TYPE_CHECKING:
    from tests.simulation.play import SimulatedWorld


def check_end(world: SimulatedWorld) -> None:
    """Every record is finished, for a reason that its behaviour gives; output and dead letters fit, exactly."""
    for one, fate in world.ledger.fates.items():
        if one not in world.ledger.unseen:
            _check_fate(world, one, fate)
    for name in world.topic_names:
        for partition in world.topics.log_ends(name):
            _check_all_finished(world, TopicPartition(name, partition))
    _check_output(world)
    _check_letters(world)


def _check_all_finished(world: SimulatedWorld, at: TopicPartition) -> None:
    log_start, end, _ = world.topics.log_ends(at.topic)[at.partition]
    first = max(world.ledger.first.get(at, end), log_start)
    missing = [offset for offset in range(first, end) if (at, offset) not in world.ledger.fates]
    demand(not missing, at, "never finished:", missing)


def _check_fate(world: SimulatedWorld, one: At, fate: Fate) -> None:
    behaviour = world.behaviours.get(one)
    if fate.kind == "accepted":
        demand(behaviour is not None, one, "accepted, but it never was")
    elif fate.kind == "rejected":
        demand(behaviour is not None and behaviour.kind == "reject", one, behaviour, "ended as", fate)
    elif fate.kind == "delivery limit reached":
        attempts = world.ledger.entered[one] + world.ledger.overcharged[one]
        demand(fate.count == attempts >= world.lowest_limit, one, "ended as", fate, "after", attempts)
        failed, may_be_overdue = world.ledger.failed[one], attempts >= 2 * world.lowest_limit
        demand(failed >= world.lowest_limit or may_be_overdue, one, "ended as", fate, "after", failed, "failures")
    elif fate.kind == "gap":
        demand(world.record(one) is None, one, "is there, but ended as a gap")
    elif fate.kind == "log start":
        log_start = world.topics.log_ends(one[0].topic)[one[0].partition].log_start_offset
        demand(one[1] < log_start, one, "ended below a log start of", log_start)


def _check_output(world: SimulatedWorld) -> None:
    """Rows of records that were cut off stay where they are."""
    if not world.scenario.has_sink:
        return
    put_out = sorted((row.partition, row.offset) for row in world.output.rows)
    accepted = [one for one, fate in world.ledger.fates.items() if fate.kind == "accepted" and not fate.by_client]
    wanted = sorted([*accepted, *world.ledger.rows_of_the_gone.elements()])
    demand(put_out == wanted, "output", difference(put_out, wanted))


def _check_letters(world: SimulatedWorld) -> None:
    """One for each record that needs one, none where the engine had no target. Several records may have been at one
    offset, one after the other: what is written once a truncation is known belongs to the last of them. What the log
    has lost need not have one."""
    ledger = world.ledger
    lettered = {
        (letter.partition, offset)
        for letter in world.letters.letters
        for offset in range(letter.first_offset, letter.last_offset + 1)
    }
    for one in sorted(lettered | ledger.fates.keys() | ledger.fates_of_the_gone.keys()):
        now = [ledger.fates[one]] if one in ledger.fates and one not in ledger.unlettered else []
        letters, known = world.letters.of(*one), ledger.letters_of_the_gone[one]
        _check_letters_of(one, letters[:known], ledger.fates_of_the_gone.get(one, []), are_needed=False)
        _check_letters_of(one, letters[known:], now, are_needed=one not in ledger.unseen)


def _check_letters_of(one: At, letters: Sequence[DeadLetter], fates: Sequence[Fate], *, are_needed: bool) -> None:
    """Both in the order in which they came to be."""
    left = list(letters)
    for fate in fates:
        if not left or not _is_of(left[0], fate):
            demand(not are_needed or not needs_letter(fate), "no dead letter of", one, fate, "but", left)
            continue
        letter = left.pop(0)
        is_told = fate.error == letter.error if fate.by_client else fate.error in (None, letter.error)
        demand(is_told, one, letter, "does not say", fate.error)
    demand(not left, "dead letters too many:", one, left, "for", fates)


def _is_of(letter: DeadLetter, fate: Fate) -> bool:
    return fate.may_have_letter or (fate.kind, fate.count) == (letter.reason, letter.delivery_count)
