"""What becomes of a record: accepted, released, rejected, poison, or not there at all. On the in-memory twins."""

from __future__ import annotations

import pytest

from share_spark.engine.ports import DeadLetter
from tests.support.engine_world import ACCEPT, REJECT, RELEASE, InMemoryGroup, at


def test_accepted_records_are_delivered_once_and_pass_the_start_offset() -> None:
    world = InMemoryGroup()
    world.produce(10)
    runs = world.engine(available_now=True).run_until_done()
    assert world.calls == [(0, offset, 1) for offset in range(10)]
    assert world.window() == "10-10"
    assert [(p.acquired, p.accepted, p.lag) for p in runs] == [(10, 0, 10), (0, 10, 0)]


def test_a_released_record_comes_back_with_the_next_count() -> None:
    world = InMemoryGroup(
        handler=lambda _topic, _partition, offset, count: RELEASE if offset % 2 and count < 3 else ACCEPT
    )
    world.produce(4)
    runs = world.engine(available_now=True).run_until_done()
    assert world.calls == [
        *((0, offset, 1) for offset in range(4)),
        *((0, offset, 2) for offset in (1, 3)),
        *((0, offset, 3) for offset in (1, 3)),
    ]
    assert [(p.acquired, p.redelivered, p.accepted, p.released) for p in runs] == [
        (4, 0, 0, 0),
        (2, 2, 2, 2),
        (2, 2, 0, 2),
        (0, 0, 2, 0),
    ]
    assert [dict(p.deliveries) for p in runs] == [{1: 4}, {2: 2}, {3: 2}, {}]


def test_a_release_holds_up_the_start_offset_but_not_its_neighbours() -> None:
    """R15."""
    world = InMemoryGroup(handler=lambda _topic, _partition, offset, _count: RELEASE if offset == 1 else ACCEPT)
    world.produce(4)
    engine = world.engine()
    engine.run()
    engine.run()
    assert world.window() == "1-4: 1-1 Q2, 2-3 D1"


def test_a_rejected_record_is_archived_at_once_and_becomes_a_dead_letter() -> None:
    world = InMemoryGroup(
        handler=lambda _topic, _partition, offset, _count: (REJECT, "no such account") if offset == 2 else ACCEPT
    )
    world.produce(4)
    runs = world.engine(available_now=True).run_until_done()
    assert world.deliveries[0, 2] == 1
    assert world.dead_letters.letters == [DeadLetter(at(), 2, 2, 1, "rejected", "no such account")]
    assert runs[-1].rejected == 1


@pytest.mark.parametrize("limit", [2, 5])
def test_poison_reaches_its_limit_after_exactly_so_many_deliveries(limit: int) -> None:
    """R6; the dead letter carries the last error."""

    def handler(_topic: str, _partition: int, offset: int, count: int) -> object:
        if offset == 3:
            raise ValueError(f"attempt {count}")
        return ACCEPT

    world = InMemoryGroup(handler=handler, share__delivery__count__limit=limit)  # type: ignore[arg-type]
    world.produce(6)
    runs = world.engine(available_now=True).run_until_done()
    assert [call for call in world.calls if call[1] == 3] == [(0, 3, n + 1) for n in range(limit)]
    assert world.dead_letters.letters == [
        DeadLetter(at(), 3, 3, limit, "delivery limit reached", f"ValueError: attempt {limit}")
    ]
    assert runs[-1].limit_reached == 1
    assert world.window() == "6-6"


def test_dead_letters_are_cut_where_the_error_changes() -> None:
    world = InMemoryGroup(handler=lambda _topic, _partition, offset, _count: (REJECT, "odd" if offset >= 2 else ""))
    world.produce(4)
    world.engine(available_now=True).run_until_done()
    assert [letter[1:] for letter in world.dead_letters.letters] == [
        (0, 1, 1, "rejected", None),
        (2, 3, 1, "rejected", "odd"),
    ]


def test_offsets_without_a_record_are_archived_and_hold_up_nothing() -> None:
    """R19, R21: compacted away, used up by a transaction marker, or at the very end of the log."""
    world = InMemoryGroup()
    world.produce(6)
    world.topics.compact(at(), [0, 3])
    world.topics.skip(at(), 2)
    runs = world.engine(available_now=True).run_until_done()
    assert [call[1] for call in world.calls] == [1, 2, 4, 5]
    assert world.window() == "8-8"
    assert runs[-1].gaps == 4
    assert world.dead_letters.letters == []


def test_a_record_compacted_away_between_two_deliveries_is_archived() -> None:
    """R19."""
    world = InMemoryGroup(handler=lambda *_: RELEASE)
    world.produce(3)
    engine = world.engine()
    engine.run()
    world.topics.compact(at(), [1])
    world.handler = lambda *_: ACCEPT
    engine.run()
    assert engine.run().gaps == 1
    assert world.window() == "3-3"
    assert world.deliveries[0, 1] == 1


def test_the_log_start_moves_under_a_slow_group() -> None:
    """R25: what is gone is archived without a dead letter, the rest goes on."""
    world = InMemoryGroup(handler=lambda *_: RELEASE)
    world.produce(10)
    engine = world.engine()
    engine.run()
    world.topics.move_log_start(at(), 6)
    world.handler = lambda *_: ACCEPT
    progress = engine.run()
    assert progress.below_log_start == 6
    assert [call for call in world.calls if call[2] == 2] == [(0, offset, 2) for offset in range(6, 10)]
    engine.run()
    assert world.window() == "10-10"
    assert world.dead_letters.letters == []


def test_the_whole_log_is_deleted_under_a_group() -> None:
    world = InMemoryGroup()
    world.produce(10)
    engine = world.engine(available_now=True)
    world.topics.move_log_start(at(), 10)
    engine.run_until_done()
    assert world.calls == []
    assert world.window() == "10-10"


def test_what_the_dead_hold_below_the_log_start_ends_with_its_lock() -> None:
    """R25: Acquired records below it stay until then, and are archived, not delivered."""
    world = InMemoryGroup()
    world.produce(4)
    world.engine().run()
    world.machine_is_lost()
    world.topics.move_log_start(at(), 2)
    engine = world.engine(available_now=True)
    engine.run()
    assert world.window() == "2-4: 0-3 Q1"
    world.clock.advance(30_000)
    engine.run_until_done()
    assert [call for call in world.calls if call[2] == 2] == [(0, 2, 2), (0, 3, 2)]
    assert world.window() == "4-4"


def test_a_log_start_that_moves_onto_finished_records_passes_them() -> None:
    """R15, R25: otherwise an available-now run would wait for an acknowledgement that no member can give any more."""
    world = InMemoryGroup(handler=lambda _topic, _partition, offset, _count: RELEASE if offset == 0 else ACCEPT)
    world.produce(3)
    engine = world.engine(available_now=True)
    engine.run()
    engine.run(stopping=True)
    assert world.window() == "0-3: 0-0 V1, 1-2 D1"
    world.topics.move_log_start(at(), 1)
    engine.run_until_done()
    assert world.window() == "3-3"
