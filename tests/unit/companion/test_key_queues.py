"""Calls in order of their keys, by a driver that acquires before it knows all answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from share_spark.companion.calls import Calls
from share_spark.companion.ledger import CompanionLedger
from share_spark.companion.messages import Answered, Begin, FromCompanion, HandOver, Limits, RecordAnswer
from share_spark.companion.reading import Handed, read_batches, record_schema
from share_spark.delivery.ledger import CallStatus, read_entries
from share_spark.delivery.marked_rows import marks_of
from share_spark.engine.delivery_port import AcquiredSpan
from share_spark.engine.ranges import AcquiredRanges
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, as_handler
from share_spark.model.requests import AcknowledgeType, Loss
from tests.support.companion_process import AT, DEADLINE_S, record_stream
from tests.support.small_disk import fill, small_disk


class Driver:
    """The records of orders-0, a letter of ``keys`` for each, ``.`` for none; and what has become of them.

    ``finished``: as the handler has said. ``done``: as the driver knows. ``known``: the messages with answers that it
    has taken. ``answers``: all that were taken. ``too_early``: records that were entered before their turn. ``sizes``:
    how many records each call had.
    """

    def __init__(self, directory: Path, keys: str, handler: Any, limits: Limits, **settings: Any) -> None:
        self.keys = keys
        self.sent: list[FromCompanion] = []
        self.faults: list[Exception] = []
        self.handed: dict[int, Handed] = {}
        self.held: set[int] = set()
        self.finished: set[int] = set()
        self.done: set[int] = set()
        self.entered: Counter[int] = Counter()
        self.running: list[int] = []
        self.sizes: list[int] = []
        self.too_early: list[int] = []
        self.answers: list[RecordAnswer] = []
        self.known = 0
        self.handler = handler
        ledger = directory / "0"
        self.ledger = CompanionLedger(ledger)
        begin = Begin(b"", "handler", ("value",), str(ledger), limits, 3, ordered=True)
        self.calls = Calls(asyncio.get_running_loop(), begin, self.ledger, self.sent.append, self.faults.append)
        self.calls.handle_with(as_handler(self.handle_all if "batch" in settings else self.handle, **settings))

    async def handle(self, record: Record) -> Any:
        (answer,) = await self.handle_all([record])
        return answer

    async def handle_all(self, records: list[Record]) -> list[Any]:
        for record in records:
            self.enter(record.offset)
        try:
            answers = [await self.handler(record) for record in records]
        finally:
            for record in records:
                self.running.remove(record.offset)
        self.sizes.append(len(records))
        self.finished |= {
            one.offset for one, answer in zip(records, answers, strict=True) if answer is None or answer is Ack.REJECT
        }
        return answers

    def enter(self, at: int) -> None:
        behind = [one for one in range(at) if self.is_same(one, at) and one not in self.finished]
        if behind or any(self.is_same(one, at) for one in self.running):
            self.too_early.append(at)
        self.entered[at] += 1
        self.running.append(at)

    def is_same(self, one: int, other: int) -> bool:
        return self.keys[one] == self.keys[other] != "."

    def acquire(self, *wanted: int, wait_ms: int = 0, reads: int = 1_000) -> None:
        """Hand these over, with what is not finished before them and was not handed over: it waits so long.
        ``reads``: so many batches can be read."""
        number = len(self.handed)
        earlier = [at for at in range(max(wanted)) if at not in self.held | self.done and at not in wanted]
        (mark,) = marks_of(np.array([wait_ms])).tolist()
        rows = sorted([*((at, 1) for at in wanted), *((at, mark) for at in earlier)])
        keys = [None if self.keys[at] == "." else self.keys[at].encode() for at, _ in rows]
        records = record_stream([at for at, _ in rows], [count for _, count in rows], keys)
        spans = [AcquiredSpan(AT, AcquiredRanges(np.array([[at, at, 1] for at in wanted])))]
        handed = Handed(message=HandOver(number, spans, None, records, answers_known=self.known))
        self.handed[number] = handed
        self.held |= {*wanted}
        self.calls.expect(handed)
        batches = read_batches(handed, record_schema(("value",), ordered=True), 3)
        for read, _ in zip(batches, range(reads), strict=False):
            self.calls.take(handed, read)
        self.calls.end_of(handed, AcknowledgeType.GAP if reads == 1_000 else Loss.NOT_ENTERED)

    def take(self, most: int = 1_000_000) -> list[RecordAnswer]:
        """Take in so many messages."""
        messages = [one for one in self.sent if isinstance(one, Answered)][self.known : self.known + most]
        self.known += len(messages)
        found = [answer for message in messages for answer in message.answers]
        for answer in found:
            offsets = {*range(answer.first_offset, answer.last_offset + 1)}
            assert offsets <= self.held, answer
            self.held -= offsets
            if answer.answer in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.GAP):
                self.done |= offsets
        self.answers += found
        return found

    async def until(self, count: int) -> list[tuple[int, int, int | None]]:
        """Wait until so many answers were taken. Return them all: offset, answer, delay."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.answers) < count:
                await asyncio.sleep(0.001)
                self.take()
        return [(one.first_offset, one.answer, one.delay_ms) for one in self.answers]

    async def close(self) -> None:
        await self.calls.end(0.0)
        self.ledger.close()
        assert (self.faults, self.too_early) == ([], [])


LIMITS = Limits(10, 60_000)
ACCEPTED, RELEASED = int(AcknowledgeType.ACCEPT), int(AcknowledgeType.RELEASE)


async def slow(record: Record) -> Any:
    """Records whose delivery fails are those below 2."""
    await asyncio.sleep(0.02)
    return Ack.release(delay=7) if record.offset < 2 else None


def test_one_record_of_each_key_is_called_at_a_time(tmp_path: Path) -> None:
    async def accept(_: Record) -> None:
        await asyncio.sleep(0.02)

    async def play() -> None:
        driver = Driver(tmp_path, "aabb..", accept, LIMITS)
        driver.acquire(*range(6))
        await asyncio.sleep(0.01)
        assert driver.running == [0, 2, 4, 5]
        await driver.until(6)
        assert driver.finished == {*range(6)}
        await driver.close()

    asyncio.run(play())


def test_successors_of_what_was_released_come_back_and_wait_as_long(tmp_path: Path) -> None:
    async def play() -> None:
        driver = Driver(tmp_path, "ab" * 3, slow, LIMITS)
        driver.acquire(0, 2, 3, 4, wait_ms=50)  # 1 has the key of 3
        found = await driver.until(4)
        assert sorted(found) == [
            (0, RELEASED, 7_000),
            (2, Loss.NOT_ENTERED, 7_000),
            (3, Loss.NOT_ENTERED, 50),
            (4, Loss.NOT_ENTERED, 7_000),
        ]
        assert driver.entered == {0: 1}
        await driver.close()

    asyncio.run(play())


def test_what_was_acquired_without_knowing_of_a_release_is_held_back(tmp_path: Path) -> None:
    async def play() -> None:
        driver = Driver(tmp_path, "aaaa.", slow, LIMITS)
        driver.acquire(0, 1)
        await asyncio.sleep(0.1)
        driver.acquire(2, 4)  # the answers for 0 and 1 are there, and not taken
        assert sorted(await driver.until(4))[2:] == [(2, Loss.NOT_ENTERED, None), (4, ACCEPTED, None)]
        assert driver.entered == {0: 1, 4: 1}
        driver.finished |= {0, 1}
        driver.done |= {0, 1}
        driver.acquire(2, 3)
        assert sorted(await driver.until(6))[-2:] == [(3, ACCEPTED, None), (4, ACCEPTED, None)]
        await driver.close()

    asyncio.run(play())


def test_a_record_is_not_held_back_for_one_behind_it(tmp_path: Path) -> None:
    """Else two of a key that become free at different times are acquired in turns for ever: each one holds back the
    other, which is acquired before its own answer is known."""

    async def accept(_: Record) -> None: ...

    async def play() -> None:
        driver = Driver(tmp_path, "aaa", accept, LIMITS)
        driver.acquire(1, wait_ms=5)  # 0 is not free yet
        driver.acquire(0)  # the answer for 1 is not known
        await asyncio.sleep(0.01)
        driver.acquire(2)  # this one is behind 1
        assert sorted(await driver.until(3)) == [
            (0, ACCEPTED, None),
            (1, Loss.NOT_ENTERED, 5),
            (2, Loss.NOT_ENTERED, None),
        ]
        await driver.close()

    asyncio.run(play())


def test_a_row_that_does_not_fit_is_a_release_before_the_successor_is_called(tmp_path: Path) -> None:
    class Misfit(Driver):
        async def handle(self, record: Record) -> Any:
            await super().handle(record)
            self.finished.discard(0)
            return Ack.ACCEPT, [{"id": "none" if record.offset == 0 else 1}]

    async def accept(_: Record) -> None: ...

    async def play() -> None:
        driver = Misfit(tmp_path, "aab", accept, LIMITS, output=pa.schema({"id": pa.int64()}))
        driver.acquire(0, 1, 2)
        assert sorted(await driver.until(3)) == [
            (0, RELEASED, None),
            (1, Loss.NOT_ENTERED, None),
            (2, ACCEPTED, None),
        ]
        await driver.close()

    asyncio.run(play())


def test_what_cannot_be_read_holds_back_what_was_acquired_behind_it(tmp_path: Path) -> None:
    async def accept(_: Record) -> None: ...

    async def play() -> None:
        driver = Driver(tmp_path, "abcaabc", accept, LIMITS)
        driver.acquire(3, reads=0)
        driver.done |= {0, 1, 2}
        driver.finished |= {0, 1, 2}
        driver.acquire(4, 5)
        assert sorted(await driver.until(3)) == [(at, Loss.NOT_ENTERED, None) for at in (3, 4, 5)]
        driver.acquire(3, 4, 5)
        assert sorted((await driver.until(6))[3:]) == [(at, ACCEPTED, None) for at in (3, 4, 5)]
        await driver.close()

    asyncio.run(play())


def test_the_successor_of_a_call_that_is_of_no_interest_any_more_is_called(tmp_path: Path) -> None:
    async def first_hangs(record: Record) -> None:
        await asyncio.sleep(3_600 if record.offset == 0 else 0)

    async def play() -> None:
        driver = Driver(tmp_path, "aa", first_hangs, LIMITS)
        driver.acquire(0)
        driver.acquire(1)
        await asyncio.sleep(0.01)
        driver.finished.add(0)
        driver.calls.forget([0])
        driver.running.clear()
        await driver.until(1)
        assert driver.entered == {0: 1, 1: 1}
        driver.running.append(0)
        await driver.close()

    asyncio.run(play())


def test_a_list_has_one_record_of_each_key_and_successors_wait_for_others(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def first_fails(record: Record) -> Any:
        await gate.wait()
        return Ack.RELEASE if record.offset == 0 else None

    async def play() -> None:
        driver = Driver(tmp_path, "aabbbcc..", first_fails, LIMITS, batch=4, linger=0.3)
        driver.acquire(*range(9))
        while not driver.running:
            await asyncio.sleep(0.001)
        assert driver.running == [0, 2, 5, 7]
        gate.set()
        found = {offset: answer for offset, answer, _ in await driver.until(9)}
        assert driver.sizes == [4, 3, 1], "8, 3 and 6; then 4"
        assert found == dict.fromkeys(range(9), ACCEPTED) | {0: RELEASED, 1: Loss.NOT_ENTERED}
        await driver.close()

    asyncio.run(play())


def test_the_cell_names_exactly_the_records_of_the_list_that_runs(tmp_path: Path) -> None:
    found: list[list[int]] = []
    entered = [CallStatus.IN_HANDLER, CallStatus.WAITED, CallStatus.ACCEPTED]

    async def play() -> None:
        async def look(record: Record) -> None:
            entries = read_entries(tmp_path / "0")
            found.append(entries.offset[entries.status == CallStatus.IN_HANDLER].tolist())
            assert driver.entered == Counter(entries.offset[np.isin(entries.status, entered)].tolist())
            await asyncio.sleep(0.001)

        driver = Driver(tmp_path, "aabbccdd", look, LIMITS, batch=2, linger=60)
        driver.acquire(0, 1, 2, 3)
        driver.acquire(4, 5, 6, 7)
        await driver.until(8)
        await driver.close()

    asyncio.run(play())
    assert sorted(found) == sorted(2 * [[0, 2], [4, 6], [1, 3], [5, 7]])


def test_a_full_disk_is_no_fault_of_the_records_of_a_list(tmp_path: Path) -> None:
    async def not_called(record: Record) -> None:
        raise AssertionError

    async def play(disk: Path) -> None:
        driver = Driver(disk, "abc", not_called, LIMITS, batch=3, linger=0.1)
        driver.acquire(0, 1)
        fill(disk)
        await driver.until(2)
        assert {one.answer for one in driver.answers} == {Loss.NOT_ENTERED}
        (fault,) = driver.faults
        assert "No space left on device" in str(fault)
        driver.faults.clear()
        await driver.close()

    with small_disk(tmp_path / "disk") as disk:
        asyncio.run(play(disk))


@pytest.mark.parametrize("batch", [None, 2, 5])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_in_between(tmp_path: Path, seed: int, batch: int | None) -> None:
    rng = Random(seed)
    settings = {} if batch is None else {"batch": batch, "linger": rng.choice([0, 0.003])}

    async def handle(_: Record) -> Any:
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.004]))
        if rng.random() < 0.1:
            raise ValueError("no")
        return rng.choices([None, Ack.REJECT, Ack.RELEASE, Ack.release(delay=1)], [7, 1, 1, 1])[0]

    async def play() -> None:
        keys = "".join(rng.choice("abcdef"[: rng.randint(1, 6)] + ".") for _ in range(60))
        driver = Driver(tmp_path, keys, handle, Limits(rng.randint(1, 12), 60_000), **settings)
        async with asyncio.timeout(DEADLINE_S):
            while len(driver.done) < len(keys):
                what = rng.random()
                free = [at for at in range(len(keys)) if at not in driver.held | driver.done]
                wanted = [at for at in free[: rng.randint(1, 15)] if rng.random() < 0.9]
                if wanted and what < 0.4:
                    driver.acquire(*wanted, wait_ms=rng.choice([0, 5]), reads=rng.choice([1_000] * 9 + [1]))
                elif what < 0.43:
                    driver.calls.give_back()
                elif what < 0.7:
                    driver.take(rng.randint(1, 3))
                    driver.calls.forget(number for number, one in driver.handed.items() if is_known(driver, one))
                await asyncio.sleep(rng.choice([0, 0, 0.002]))
        await driver.close()

    asyncio.run(play())


def is_known(driver: Driver, handed: Handed) -> bool:
    """All its answers were taken."""
    return handed.is_read and driver.held.isdisjoint(offsets_of(handed.message.acquired))


def offsets_of(acquired: Sequence[AcquiredSpan]) -> list[int]:
    return [at for span in acquired for first, last, _ in span.ranges.tolist() for at in range(first, last + 1)]
