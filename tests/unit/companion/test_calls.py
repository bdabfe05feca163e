"""Calls on a loop of the test's own: what the whole program shows only after a long time, or on a broken disk."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from share_spark.companion.calls import Calls
from share_spark.companion.ledger import CompanionLedger
from share_spark.companion.messages import (
    LENGTH,
    Answered,
    Begin,
    FromCompanion,
    Limits,
    RecordAnswer,
    packed_message,
)
from share_spark.companion.reading import Handed, read_batches, record_schema
from share_spark.delivery.ledger import CallStatus, read_entries
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import HANDLER_COLUMNS, Record, as_handler
from share_spark.model.errors import StateError
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss
from tests.support.companion_process import DEADLINE_S, hand_over
from tests.support.small_disk import fill, small_disk


class Driver:
    """Calls, what they have sent, and the errors after which nothing can be called."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        self.sent: list[FromCompanion] = []
        self.faults: list[Exception] = []
        self.path = directory / "0"
        self.ledger = CompanionLedger(self.path)
        begin = Begin(b"", "handler", HANDLER_COLUMNS, str(self.path), limits, 1_000)
        self.calls = Calls(asyncio.get_running_loop(), begin, self.ledger, self.sent.append, self.faults.append)

    def hand_over(self, number: int, first: int, last: int) -> None:
        self.begin_hand_over(number, first, last)()

    def begin_hand_over(self, number: int, first: int, last: int) -> Callable[[], None]:
        """Hand over and read all records; the function returned ends the reading."""
        handed = Handed(message=hand_over(number, first, last))
        self.calls.expect(handed)
        for read in read_batches(handed, record_schema(HANDLER_COLUMNS), 1_000):
            self.calls.take(handed, read)
        return lambda: self.calls.end_of(handed)

    @property
    def answers(self) -> dict[int, int]:
        answers = [one for message in self.sent if isinstance(message, Answered) for one in message.answers]
        return {offset: one.answer for one in answers for offset in range(one.first_offset, one.last_offset + 1)}

    @property
    def throttled(self) -> list[int]:
        """The rounds in which throttled calls began."""
        return [one for message in self.sent if isinstance(message, Answered) for one in message.throttled]

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def driver(directory: Path, handler: Callable[..., Any], limits: Limits) -> AsyncIterator[Driver]:
    made = Driver(directory, limits)
    made.calls.handle_with(as_handler(handler))
    try:
        yield made
    finally:
        await made.calls.end(0.0)
        made.ledger.close()


async def forever(record: Record) -> None:
    await asyncio.sleep(3600 if record.offset else 0)


def test_calls_that_do_not_end_in_time_have_waited(tmp_path: Path) -> None:
    async def play() -> None:
        async with driver(tmp_path, forever, Limits(3, 60_000)) as made:
            made.hand_over(1, 0, 4)
            await made.until(lambda: 0 in made.answers)
            await made.calls.end(0.05)
            assert made.answers == {0: 1, 4: Loss.NOT_ENTERED}
            made.hand_over(2, 5, 6)
            made.calls.flush()
            assert made.answers == {0: 1, **dict.fromkeys((4, 5, 6), Loss.NOT_ENTERED)}

    asyncio.run(play())
    assert read_entries(tmp_path / "0").status.tolist() == [CallStatus.ACCEPTED, *[CallStatus.WAITED] * 3, 0]


def test_a_handler_is_judged_also_if_its_calls_end_before_the_reading_does(tmp_path: Path) -> None:
    async def handle(record: Record) -> Any:
        return 17

    async def play() -> None:
        async with driver(tmp_path, handle, Limits(5, 60_000)) as made:
            end_reading = made.begin_hand_over(1, 0, 19)
            await made.until(lambda: len(made.answers) == 20)
            assert not made.faults
            end_reading()
            await made.until(lambda: made.faults)
            assert "broke its contract on each record: answered 17" in str(made.faults[0])

    asyncio.run(play())


def test_the_first_answer_leaves_at_once_and_others_together(tmp_path: Path) -> None:
    """Each call ends in a turn of its own."""

    async def ends_later(record: Record) -> None:
        for _ in range(record.offset):
            await asyncio.sleep(0)

    async def play() -> None:
        async with driver(tmp_path, ends_later, Limits(300, 60_000)) as made:
            made.hand_over(1, 0, 299)
            await made.until(lambda: len(made.answers) == 300)
            messages = [len(one.answers) for one in made.sent if isinstance(one, Answered)]
            assert messages[0] < 10
            assert len(messages) < 100

    asyncio.run(play())


def test_a_call_that_fails_leaves_no_cycle(tmp_path: Path) -> None:
    """Its record may be large, and the garbage collector searches seldom."""
    seen: list[weakref.ref[Any]] = []

    class Reply:
        pass

    async def fails(record: Record) -> None:
        reply = Reply()
        seen.append(weakref.ref(reply))
        await asyncio.sleep(0)
        raise ValueError(record.offset)

    async def play() -> None:
        async with driver(tmp_path, fails, Limits(3, 60_000)) as made:
            made.hand_over(1, 0, 9)
            await made.until(lambda: len(made.answers) == 10)
            await asyncio.sleep(0)
            assert [one() for one in seen] == [None] * 10

    gc.disable()
    try:
        asyncio.run(play())
    finally:
        gc.enable()


def test_answers_survive_their_way_to_the_driver() -> None:
    at = TopicPartition("orders", 3)
    answers = (RecordAnswer(1, at, 5, 5, 1), RecordAnswer(2, at, 6, 9, 2, "busy", 70), RecordAnswer(2, at, 0, 0, 0))
    for message in (Answered(answers, b"rows", (0, 0), 1.5, (3, 4), 812.5), Answered(answers[:1]), Answered(())):
        found = pickle.loads(packed_message(message)[LENGTH.size :])
        assert found == message
        assert type(found) is Answered
        assert all(type(one) is RecordAnswer and type(one.at) is TopicPartition for one in found.answers)


@pytest.mark.parametrize("fills_first", [True, False])
def test_a_full_disk_is_no_fault_of_a_record(tmp_path: Path, fills_first: bool) -> None:
    async def play(disk: Path) -> None:
        async def handle(record: Record) -> None:
            fill(disk)
            raise ValueError("x" * 1_000)

        async with driver(disk, handle, Limits(3, 60_000)) as made:
            if fills_first:
                fill(disk)
            made.hand_over(1, 0, 200)
            await made.until(lambda: made.faults)
            assert isinstance(made.faults[0], StateError)
            assert "No space left on device" in str(made.faults[0])
            await made.calls.end(0.05)
            assert not fills_first or set(made.answers.values()) == {Loss.NOT_ENTERED}

    with small_disk(tmp_path / "disk") as disk:
        asyncio.run(play(disk))


def test_the_handler_may_come_after_the_first_records(tmp_path: Path) -> None:
    async def accept(record: Record) -> None: ...

    async def play() -> dict[int, int]:
        made = Driver(tmp_path, Limits(3, 60_000))
        made.hand_over(1, 0, 4)
        await asyncio.sleep(0.01)
        assert made.answers == {}
        made.calls.handle_with(as_handler(accept))
        await made.until(lambda: len(made.answers) == 5)
        await made.calls.end(0.0)
        made.ledger.close()
        return made.answers

    assert asyncio.run(play()) == dict.fromkeys(range(5), 1)


def test_the_place_of_a_throttled_call_is_held_until_new_limits_come(tmp_path: Path) -> None:
    entered: list[int] = []

    async def handle(record: Record) -> Any:
        entered.append(record.offset)
        await asyncio.sleep(0)
        return Ack.throttled("429") if record.offset < 3 else None

    async def play() -> None:
        async with driver(tmp_path, handle, Limits(3, 60_000, round_number=7)) as made:
            made.hand_over(1, 0, 9)
            await made.until(lambda: len(made.answers) == 3)
            await asyncio.sleep(0.05)
            assert entered == [0, 1, 2]
            made.calls.set_limits(Limits(2, 60_000, round_number=8))
            await made.until(lambda: len(made.answers) == 10)
            assert made.throttled == [7, 7, 7]

    asyncio.run(play())


def test_a_throttled_call_says_the_round_in_which_it_began(tmp_path: Path) -> None:
    async def play() -> None:
        gate = asyncio.Event()

        async def handle(record: Record) -> Any:
            if record.offset == 0:
                await gate.wait()
            return Ack.throttled()

        async with driver(tmp_path, handle, Limits(2, 60_000, round_number=1)) as made:
            made.hand_over(1, 0, 2)
            await made.until(lambda: made.throttled == [1])
            made.calls.set_limits(Limits(2, 60_000, round_number=2))
            await made.until(lambda: made.throttled == [1, 2])
            gate.set()
            await made.until(lambda: made.throttled == [1, 2, 1])

    asyncio.run(play())
