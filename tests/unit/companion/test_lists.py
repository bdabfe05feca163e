"""Handlers that take a list of records, in a companion process."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_spark.companion.lost_calls import LostCalls
from share_spark.companion.messages import Answered, Failed, Forget, GiveBack
from share_spark.delivery.ledger import CallStatus
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.requests import Loss
from tests.support.companion_process import DEADLINE_S, CompanionProcess, companion, hand_over


def notes(file: Path, answer: Any = Ack.ACCEPT) -> Any:
    """A handler that notes the offsets of each call."""

    async def handle(records: list[Record]) -> Any:
        with file.open("a") as opened:
            opened.write(" ".join(str(record.offset) for record in records) + "\n")
        return answer

    return handle


def noted(file: Path) -> list[list[int]]:
    return [[*map(int, line.split())] for line in file.read_text().splitlines()]


def by_offset(process: CompanionProcess, offsets: int) -> dict[int, tuple[int, str | None]]:
    return {
        offset: (one.answer, one.error)
        for one in process.answers(offsets)
        for offset in range(one.first_offset, one.last_offset + 1)
    }


def test_a_call_has_as_many_records_as_wait_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "noted"
    with companion(tmp_path / "ledger", notes(file), batch=4, linger=0.2) as process:
        process.send(hand_over(1, 0, 9))
        assert by_offset(process, 10) == dict.fromkeys(range(10), (1, None))
    assert noted(file) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_call_has_records_of_several_hand_overs(tmp_path: Path) -> None:
    file = tmp_path / "noted"
    with companion(tmp_path / "ledger", notes(file), batch=4, linger=60) as process:
        for number in range(8):
            process.send(hand_over(number, number, number))
        process.answers(8)
    assert noted(file) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_records_that_linger_are_given_back(tmp_path: Path) -> None:
    file = tmp_path / "noted"
    with companion(tmp_path / "ledger", notes(file), batch=4, linger=60) as process:
        process.send(hand_over(1, 0, 5))
        process.answers(4)
        process.send(GiveBack())
        assert by_offset(process, 6)[5] == (Loss.NOT_ENTERED, None)
        process.send(hand_over(2, 6, 9))
        process.answers(10)
    assert noted(file) == [[0, 1, 2, 3], [6, 7, 8, 9]]


def test_in_turn_a_call_has_one_record(tmp_path: Path) -> None:
    file = tmp_path / "noted"
    with companion(tmp_path / "ledger", notes(file), batch=4, linger=60) as process:
        process.send(hand_over(1, 0, 2, in_turn=True))
        process.send(hand_over(2, 3, 6))
        process.answers(7)
    assert noted(file) == [[0], [1], [2], [3, 4, 5, 6]]


def test_each_record_has_its_own_answer(tmp_path: Path) -> None:
    async def handle(records: list[Record]) -> list[Any]:
        rows = (Ack.ACCEPT, [{"id": 7}])
        return [None, Ack.release("busy", delay=60), Ack.reject("never"), 17, rows, Ack.throttled(retry_after=5)]

    with companion(tmp_path, handle, batch=6, linger=60, output=pa.schema([("id", pa.int64())])) as process:
        process.send(hand_over(1, 0, 5))
        assert by_offset(process, 6) == {
            0: (1, None),
            1: (2, "busy"),
            2: (3, "never"),
            3: (2, "answered 17, which is not Ack.ACCEPT, Ack.RELEASE or Ack.REJECT"),
            4: (1, None),
            5: (Loss.THROTTLED, None),
        }
        delays = {one.first_offset: one.delay_ms for one in process.answered if one.delay_ms is not None}
        assert delays == {1: 60_000, 5: 5_000}
        assert process.entries()[0].status.tolist() == [2, 3, 4, 3, 5, 9]
        (answered,) = (message for message in process.received if isinstance(message, Answered))
        assert pa.ipc.open_stream(answered.rows).read_all().to_pydict() == {"id": [7]}


class TooManyRequests(Exception):  # noqa: N818
    retry_after = 3


@pytest.mark.parametrize(
    ("raised", "answer"),
    [(ValueError("no"), (2, "ValueError: no")), (TooManyRequests(), (Loss.THROTTLED, "TooManyRequests"))],
)
def test_what_is_raised_is_the_answer_for_all(tmp_path: Path, raised: Exception, answer: Any) -> None:
    async def handle(records: list[Record]) -> None:
        raise raised

    with companion(tmp_path, handle, batch=3, linger=60) as process:
        process.send(hand_over(1, 0, 2))
        assert by_offset(process, 3) == dict.fromkeys(range(3), answer)


def test_the_time_of_a_call_counts_once(tmp_path: Path) -> None:
    async def handle(records: list[Record]) -> Ack:
        await asyncio.sleep(0.2)
        return Ack.ACCEPT

    with companion(tmp_path, handle, batch=50, linger=60) as process:
        process.send(hand_over(1, 0, 49))
        process.answers(50)
        assert 0.2 <= sum(one.busy_s for one in process.received if isinstance(one, Answered)) < 0.2 * 50


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([1, 1], "returned 2 answers for 4 records"),
        (None, "returned None, not a list with an answer for each record, or one Ack"),
        (1, "returned 1, not a list with"),
    ],
)
def test_another_length_ends_the_companion_and_charges_nothing(tmp_path: Path, answer: Any, text: str) -> None:
    with companion(tmp_path / "ledger", notes(tmp_path / "noted", answer), batch=4, linger=60) as process:
        process.send(hand_over(1, 0, 3))
        *_, failed = process.rest()
        assert isinstance(failed, Failed)
        assert failed.is_handler
        assert text in failed.text
        assert by_offset(process, 4) == dict.fromkeys(range(4), (Loss.NOT_ENTERED, None))
        assert process.wait() == 1
        assert set(process.statuses().values()) == {CallStatus.NOT_ENTERED}


def test_a_list_that_takes_too_long_is_released(tmp_path: Path) -> None:
    async def handle(records: list[Record]) -> Ack:
        await asyncio.sleep(3600)
        return Ack.ACCEPT

    with companion(tmp_path, handle, batch=3, linger=60, timeout_ms=200) as process:
        process.send(hand_over(1, 0, 2))
        text = "time limit of 200 ms exceeded by a batch of 3 records"
        assert by_offset(process, 3) == dict.fromkeys(range(3), (2, text))


@pytest.mark.parametrize("number", [1, 2])
def test_a_call_with_forgotten_records_answers_the_others(tmp_path: Path, number: int) -> None:
    gate = tmp_path / "gate"

    async def handle(records: list[Record]) -> list[Ack]:
        while not gate.exists():
            await asyncio.sleep(0.01)
        return [Ack.ACCEPT if record.offset < 2 else Ack.REJECT for record in records]

    with companion(tmp_path / "ledger", handle, batch=4, linger=60) as process:
        process.send(hand_over(1, 0, 1))
        process.send(hand_over(2, 2, 3))
        process.until_entered(range(4))
        process.send(Forget((number,)))
        process.send(hand_over(3, 4, 7))
        process.until_entered(range(8))
        gate.touch()
        rest = {0: (1, None), 1: (1, None)} if number == 2 else {2: (3, None), 3: (3, None)}
        assert by_offset(process, 6) == rest | dict.fromkeys(range(4, 8), (3, None))


def test_a_process_that_dies_in_a_list_accuses_all_of_it(tmp_path: Path) -> None:
    async def handle(records: list[Record]) -> Ack:
        await asyncio.sleep(0.3)
        if records[0].offset == 4:
            os._exit(9)
        await asyncio.sleep(3600)
        return Ack.ACCEPT

    with companion(tmp_path, handle, batch=4, linger=60) as process:
        process.send(hand_over(1, 0, 5))
        process.send(hand_over(2, 6, 11))
        assert process.wait() == 9
        waited = dict.fromkeys(range(12), CallStatus.WAITED)
        assert process.statuses() == waited | dict.fromkeys(range(4, 8), CallStatus.IN_HANDLER)
        assert not LostCalls.read(tmp_path / "0").killed_many


def test_a_list_that_blocks_the_loop_is_ended_with_the_process(tmp_path: Path) -> None:
    async def handle(records: list[Record]) -> Ack:
        while records[0].offset == 2:
            time.sleep(0.01)
        await asyncio.sleep(3600)
        return Ack.ACCEPT

    with companion(tmp_path, handle, batch=2, linger=60, timeout_ms=500) as process:
        process.send(hand_over(1, 0, 5))
        assert process.process.wait(DEADLINE_S) == 1
        assert [offset for offset, status in process.statuses().items() if status == CallStatus.IN_HANDLER] == [2, 3]
