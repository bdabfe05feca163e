"""Attempts lost in a crash: which record was to blame, found without archiving its neighbours.

A worker or a whole engine that dies tells nothing: any of the records that it ran may have killed it, or none. So they
become *suspects*. Suspects are not acquired with other records; they come back in pieces that run by themselves, and
each time a piece is lost its own records come back in smaller pieces, so that the last attempt that the delivery limit
allows is one of a single record. At a limit of 5, a million records lost together come back 31,250 at a time, then
977, 31, 1.

Two rules follow for counts. A record that was lost while it ran alone has no neighbour to blame: for it the limit
counts as for a release (R6), unless its engine is known to have died before the handler had it or after it had
answered. One that was lost beside others at the limit, or so acquitted, gets another attempt, alone: a crash never
archives a record unless its last attempt ran alone. Acquittals end at twice the limit, for a record can bring its
engine down after the handler as well, say by the size of its output.

``InFlightBatch.lost_among`` holds it: while Available, how many records were lost together; while Acquired, how many
run together as a piece. An answer of any kind clears it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from share_spark.model.records import DeliveryState, InFlightBatch
from share_spark.partition.outcome import Outcome
from share_spark.partition.transitions import Event

_AVAILABLE = DeliveryState.AVAILABLE


def lose(outcome: Outcome, ended: list[InFlightBatch], in_handler: frozenset[str] | None = None) -> None:
    """End the attempts of ``ended``, which were lost together. Those of one count are suspects together.

    ``in_handler``: the members that died inside the handler of a record that ran alone; None: any may have.
    """
    together: Counter[int] = Counter()
    for run in ended:
        together[run.delivery_count] += run.last_offset - run.first_offset + 1
    for run in ended:
        guilty = in_handler is None or run.member_id in in_handler or outcome.is_overdue(run)
        if run.lost_among == 1 and guilty:
            outcome.end_attempt(run, Event.LOCK_EXPIRED)
        else:
            outcome.give_back(run, run.delivery_count, together[run.delivery_count])


def piece_size(lost_among: int, delivery_count: int, max_delivery_count: int) -> int:
    """How many of ``lost_among`` records that were lost with this count may run together next.

    The size shrinks by the same factor with each attempt that is left, to 1 for the last.

    >>> piece_size(1_000_000, 1, 5), piece_size(31_250, 2, 5), piece_size(977, 3, 5), piece_size(31, 4, 5)
    (31250, 977, 31, 1)
    """
    attempts_left = max_delivery_count - delivery_count
    if attempts_left <= 0:
        return 1
    factor = max(1, int(lost_among ** (1 / attempts_left)) - 1)
    while pow(factor, attempts_left) < lost_among:
        factor += 1
    return -(-lost_among // factor)


def next_piece(runs: list[InFlightBatch], max_delivery_count: int) -> Iterator[InFlightBatch]:
    """The suspects among ``runs`` (ascending) that run next: those with most attempts left first, so that crashes that
    no record caused are spread over all of them."""
    waiting = [run for run in runs if run.lost_among and run.delivery_state is _AVAILABLE]
    if not waiting:
        return
    chosen = min(waiting, key=lambda run: (run.delivery_count, run.first_offset))
    alike = [run for run in waiting if run[3] == chosen[3] and run[6] == chosen[6]]
    room = piece_size(chosen.lost_among, chosen.delivery_count, max_delivery_count)
    for run in alike:
        yield run._replace(last_offset=min(run.last_offset, run.first_offset + room - 1))
        room -= run.last_offset - run.first_offset + 1
        if room <= 0:
            return
