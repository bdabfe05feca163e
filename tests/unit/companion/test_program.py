"""The companion as a real process; the test is its driver."""

from __future__ import annotations

import asyncio
import mmap
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_spark.companion.ledger import MOST_BYTES
from share_spark.companion.lost_calls import LostCalls, lost_error_of
from share_spark.companion.messages import (
    Answered,
    CallsNow,
    Failed,
    Forget,
    GiveBack,
    HandOver,
    Limits,
    SetLimits,
    Unreachable,
)
from share_spark.delivery.ledger import CallStatus
from share_spark.delivery.ledger_file import is_written
from share_spark.engine.record_reader import in_schema
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, record_handler
from share_spark.handlers.time_limit import overrun_text
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.model.requests import AcknowledgeType, Loss
from tests.support.companion_process import AT, DEADLINE_S, CompanionProcess, companion, hand_over, record_stream, spans


def by_offset(process: CompanionProcess, offsets: int) -> dict[int, tuple[int, str | None]]:
    return {
        offset: (one.answer, one.error)
        for one in process.answers(offsets)
        for offset in range(one.first_offset, one.last_offset + 1)
    }


async def accept(record: Record) -> None:
    await asyncio.sleep(0)


def waits_for(gate: Path) -> Any:
    """A handler whose calls end when the file is there."""

    async def wait(record: Record) -> None:
        while not gate.exists():
            await asyncio.sleep(0.01)

    return wait


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------ answers


def test_answers_of_all_kinds(tmp_path: Path) -> None:
    async def handle(record: Record) -> Any:
        await asyncio.sleep(0)
        if record.offset == 1:
            raise ValueError("not yet")
        if record.offset == 2:
            raise asyncio.CancelledError
        if record.offset == 3:
            raise KeyboardInterrupt
        return {4: Ack.release("busy", delay=60), 5: Ack.reject("never"), 6: True, 7: "accept"}.get(record.offset)

    with companion(tmp_path, handle) as process:
        process.send(hand_over(1, 0, 7))
        answers = {one.first_offset: one for one in process.answers(8)}
        assert {offset: (one.answer, one.error) for offset, one in answers.items()} == {
            0: (1, None),
            1: (2, "ValueError: not yet"),
            2: (2, "CancelledError"),
            3: (2, "KeyboardInterrupt"),
            4: (2, "busy"),
            5: (3, "never"),
            6: (2, "answered True, which is not Ack.ACCEPT, Ack.RELEASE or Ack.REJECT"),
            7: (1, None),
        }
        assert {offset: one.delay_ms for offset, one in answers.items() if one.delay_ms is not None} == {4: 60_000}
        (entries,) = process.entries()
        assert entries.status.tolist() == [2, 3, 3, 3, 3, 4, 3, 2]
        assert entries.errors == {offset: one.error for offset, one in answers.items() if one.error}
        assert entries.delays == {4: 60_000}


def test_an_exit_in_a_task_of_a_handler_releases_its_record(tmp_path: Path) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)
        if record.offset == 1:
            await asyncio.gather(leave())

    with companion(tmp_path, handle) as process:
        process.send(hand_over(1, 0, 2))
        assert by_offset(process, 3) == {0: (1, None), 1: (2, "SystemExit: 3"), 2: (1, None)}
        process.send(hand_over(2, 3, 4))
        assert by_offset(process, 5)[4] == (1, None)


def test_answers_come_as_calls_end(tmp_path: Path) -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.6 - 0.2 * record.offset)

    with companion(tmp_path, handle) as process:
        process.send(hand_over(1, 0, 2))
        assert [one.first_offset for one in process.answers(3)] == [2, 1, 0]
        busy_s = sum(message.busy_s for message in process.received if isinstance(message, Answered))
        assert busy_s >= 0.6 + 0.4 + 0.2


def test_output_rows_come_with_their_accepts(tmp_path: Path) -> None:
    async def handle(record: Record) -> Any:
        if record.offset == 2:
            return Ack.ACCEPT, {"id": "no number"}
        return Ack.RELEASE if record.offset == 3 else (Ack.ACCEPT, [{"id": record.offset}, {"id": 100}])

    with companion(tmp_path, handle, output=pa.schema([("id", pa.int64())])) as process:
        process.send(hand_over(1, 0, 3))
        answers = by_offset(process, 4)
        assert {offset: code for offset, (code, _) in answers.items()} == {0: 1, 1: 1, 2: 2, 3: 2}
        assert "column id" in (answers[2][1] or "")
        for message in process.received:
            rows = pa.ipc.open_stream(message.rows).read_all().column("id").to_pylist() if message.rows else []
            accepted = [one.first_offset for one in message.answers if one.answer == Ack.ACCEPT]
            assert sorted(rows) == sorted([*accepted, *[100] * len(accepted)])
        with_rows, released = CallStatus.ACCEPTED_WITH_ROWS, CallStatus.RELEASED
        assert process.statuses() == {0: with_rows, 1: with_rows, 2: released, 3: released}


def test_offsets_without_a_record_are_gaps(tmp_path: Path) -> None:
    with companion(tmp_path, accept) as process:
        process.send(HandOver(1, spans(0, 9), None, record_stream([0, 1, 5, 9])))
        gaps = {offset for offset, (code, _) in by_offset(process, 10).items() if code == AcknowledgeType.GAP}
        assert gaps == {2, 3, 4, 6, 7, 8}


def test_a_handler_that_breaks_its_contract_on_each_record_ends_the_companion(tmp_path: Path) -> None:
    async def handle(record: Record) -> Any:
        return 17

    with companion(tmp_path, handle, most_calls=5) as process:
        process.send(hand_over(1, 0, 19))
        process.send(hand_over(2, 20, 29))
        messages = process.rest()
        assert isinstance(messages[-1], Failed)
        assert messages[-1].is_handler
        assert "broke its contract on each record: answered 17" in messages[-1].text
        assert len(by_offset(process, 30)) == 30
        assert process.wait() == 1


@pytest.mark.parametrize("load", [int, sys.exit])
def test_a_handler_that_cannot_be_loaded_ends_the_companion(tmp_path: Path, load: Callable[[str], Any]) -> None:
    class Unloadable:
        def __reduce__(self) -> Any:
            return load, ("no number",)

        async def __call__(self, record: Record) -> None: ...

    with companion(tmp_path, Unloadable()) as process:
        process.send(hand_over(1, 0, 3))
        failed = process.rest()[-1]
        assert isinstance(failed, Failed)
        assert failed.is_handler
        assert "cannot be loaded" in failed.text
        assert all(code == Loss.NOT_ENTERED for code, _ in by_offset(process, 0).values())


# ------------------------------------------------------------------------------------- limits and hand-overs


def test_no_more_calls_run_than_the_limit_which_may_change(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with companion(tmp_path / "ledger", waits_for(gate), most_calls=3) as process:
        process.send(hand_over(1, 0, 9))

        process.until_entered(range(3))
        process.send(SetLimits(Limits(5, 60_000)))
        process.until_entered(range(5))
        assert process.report().running == 5
        gate.touch()
        assert len(process.answers(10)) == 10


def test_in_turn_a_call_is_alone(tmp_path: Path) -> None:
    others: set[int] = set()

    async def handle(record: Record) -> Any:
        others.add(record.offset)
        await asyncio.sleep(0.02)
        seen = sorted(others)
        others.discard(record.offset)
        return Ack.release(",".join(map(str, seen)))

    with companion(tmp_path, handle) as process:
        process.send(hand_over(1, 0, 3))
        process.send(hand_over(2, 4, 6, in_turn=True))
        process.send(hand_over(3, 7, 9))
        answers = by_offset(process, 10)
        assert {offset: answers[offset][1] for offset in (4, 5, 6)} == {4: "4", 5: "5", 6: "6"}
        assert answers[0][1] == "0,1,2,3"
        assert answers[7][1] == "7,8,9"


def test_what_was_not_entered_is_given_back_at_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with companion(tmp_path / "ledger", waits_for(gate), most_calls=2) as process:
        process.send(hand_over(1, 0, 9))
        process.until_entered(range(2))
        process.send(GiveBack())
        given_back = by_offset(process, 8)
        assert given_back == dict.fromkeys(range(2, 10), (Loss.NOT_ENTERED, None))
        gate.touch()
        assert by_offset(process, 10) == given_back | {0: (1, None), 1: (1, None)}


def test_hand_overs_after_a_give_back_are_called_again(tmp_path: Path) -> None:
    with companion(tmp_path, accept) as process:
        process.send(GiveBack())
        process.send(hand_over(1, 0, 9))
        assert by_offset(process, 10) == dict.fromkeys(range(10), (1, None))


def test_forgotten_calls_are_cancelled_and_not_answered(tmp_path: Path) -> None:
    cancelled = tmp_path / "cancelled"

    async def handle(record: Record) -> None:
        try:
            await asyncio.sleep(3600 if record.offset < 5 else 0)
        finally:
            with cancelled.open("a") as file:
                file.write(f"{record.offset}\n")

    with companion(tmp_path / "ledger", handle, most_calls=5) as process:
        process.send(hand_over(1, 0, 7))
        process.until_entered(range(5))
        process.send(Forget((1,)))
        process.send(hand_over(2, 8, 9))
        assert by_offset(process, 2) == {8: (1, None), 9: (1, None)}
        assert sorted(map(int, cancelled.read_text().split())) == [0, 1, 2, 3, 4, 8, 9]
        assert process.statuses() == {8: CallStatus.ACCEPTED, 9: CallStatus.ACCEPTED}


def test_reports_name_the_oldest_calls(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with companion(tmp_path / "ledger", waits_for(gate), most_calls=12) as process:
        process.send(hand_over(1, 0, 19))
        report = process.report()
        assert (report.running, report.waiting) == (12, 8)
        assert [one[:3] for one in report.oldest] == [(*AT, offset) for offset in range(10)]
        gate.touch()
        while report.running:
            report = process.report()
        assert report == CallsNow(0, 0, ())


def test_a_full_ledger_is_followed_by_another_and_goes_once_it_is_forgotten(tmp_path: Path) -> None:
    full = MOST_BYTES // mmap.ALLOCATIONGRANULARITY  # hand-overs of one record each
    with companion(tmp_path, accept) as process:
        for number in range(full + 2):
            process.send(hand_over(number, number, number))
        process.answers(full + 2)
        assert [len(entries) for entries in process.entries()] == [full, 2]
        assert set(process.statuses().values()) == {CallStatus.ACCEPTED}
        process.send(Forget(tuple(range(full + 1))))
        until(lambda: not (tmp_path / "0.lock").exists())
        assert list(process.statuses()) == [full, full + 1]
        assert process.leave() == 0


# ------------------------------------------------------------------------------------------ parts of a log


class PartOfLog:
    """A RecordPart of the first few of ten records, which then raises."""

    def __init__(self, fault: Exception | None, records: int = 10) -> None:
        self.fault, self.records = fault, records

    def batches(self, schema: pa.Schema, _most_rows: int, is_stopping: Any) -> Any:
        batch = pa.ipc.open_stream(record_stream(range(self.records))).read_next_batch()
        yield in_schema(batch, None, schema)
        while self.fault is None and not is_stopping():
            time.sleep(0.01)
        raise self.fault or TopicUnreachableError("it was stopped")


def test_records_that_cannot_be_reached_are_given_back(tmp_path: Path) -> None:
    faults = [TopicUnreachableError("no broker"), TopicError("another topic")]
    with companion(tmp_path, accept) as process:
        for number, fault in enumerate(faults):
            process.send(HandOver(number, spans(0, 9), pickle.dumps(PartOfLog(fault, 4))))
            while not isinstance(unreachable := process.next(), Unreachable):
                assert unreachable is not None
            assert unreachable == Unreachable(str(fault), number == 1)
            given_back = [tuple(one) for one in process.answered if one.answer == Loss.NOT_ENTERED]
            assert given_back[number:] == [(number, AT, 4, 9, Loss.NOT_ENTERED, None, None)]
        assert len(process.answers(20)) == 10


def test_a_fault_of_reading_ends_the_companion_after_its_calls(tmp_path: Path) -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.3)

    with companion(tmp_path, handle) as process:
        process.send(HandOver(1, spans(0, 9), pickle.dumps(PartOfLog(OSError("no such file"), 4))))
        messages = process.rest()
        assert messages[-1] == Failed("OSError: no such file", is_handler=False)
        lost = (Loss.NOT_ENTERED, None)
        assert by_offset(process, 10) == {offset: (1, None) if offset < 4 else lost for offset in range(10)}


def test_reading_that_waits_is_stopped(tmp_path: Path) -> None:
    with companion(tmp_path, accept) as process:
        process.send(HandOver(1, spans(0, 9), pickle.dumps(PartOfLog(None, 4))))
        process.answers(4)
        process.send(GiveBack())
        assert by_offset(process, 10)[9] == (Loss.NOT_ENTERED, None)
        process.send(hand_over(2, 10, 12))
        assert by_offset(process, 13)[12] == (1, None)
        assert not any(isinstance(message, Unreachable) for message in process.received)


# --------------------------------------------------------------------------------------------- time limits


@pytest.mark.parametrize("own_limit", [False, True])
def test_a_call_that_takes_too_long_is_cancelled_and_released(tmp_path: Path, own_limit: bool) -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(3600 if record.offset == 2 else 0)

    handler = record_handler(timeout_ms=200)(handle) if own_limit else handle
    with companion(tmp_path, handler, timeout_ms=60_000 if own_limit else 200) as process:
        process.send(hand_over(1, 0, 4))
        assert by_offset(process, 5)[2] == (2, "time limit of 200 ms exceeded")
        assert process.statuses()[2] == CallStatus.RELEASED


def test_a_call_that_swallows_its_cancellation_is_ignored(tmp_path: Path) -> None:
    done = tmp_path / "done"

    async def handle(record: Record) -> Any:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
            done.touch()
        return Ack.reject("too late")

    with companion(tmp_path / "ledger", handle) as process:
        process.send(SetLimits(Limits(1, 200)))
        process.send(hand_over(1, 0, 1))
        overrun = (2, "time limit of 200 ms exceeded")
        assert by_offset(process, 2) == {0: overrun, 1: overrun}
        until(done.exists)
        assert process.leave() == 0
        assert set(process.statuses().values()) == {CallStatus.RELEASED}


def test_a_call_that_blocks_the_loop_is_ended_with_the_process(tmp_path: Path) -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.1)
        while record.offset == 7:
            time.sleep(0.01)
        await asyncio.sleep(3600)

    with companion(tmp_path, handle, timeout_ms=500) as process:
        process.send(hand_over(1, 0, 9))
        assert process.wait() == 1
        error = lost_error_of(LostCalls.read(tmp_path / "0").stuck, overrun_text(500))
        assert error.startswith("time limit of 500 ms exceeded and did not react: File ")
        assert error.endswith("in handle")
        assert [offset for offset, status in process.statuses().items() if status == CallStatus.IN_HANDLER] == [7]


# ------------------------------------------------------------------------------------------------- deaths


@pytest.mark.parametrize("in_own_task", [False, True])
def test_the_call_that_ends_the_process_is_the_one_in_the_ledger(tmp_path: Path, in_own_task: bool) -> None:
    async def end(record: Record) -> None:
        await asyncio.sleep(0.2)
        if record.offset == 33:
            os._exit(9)
        await asyncio.sleep(3600)

    async def handle(record: Record) -> None:
        await (asyncio.gather(end(record)) if in_own_task else end(record))

    with companion(tmp_path, handle) as process:
        process.send(hand_over(1, 0, 49))
        assert process.wait() == 9
        waited = dict.fromkeys(range(50), CallStatus.WAITED)
        assert process.statuses() == waited | {33: CallStatus.IN_HANDLER}


def test_a_process_that_is_killed_while_all_wait_is_no_records_fault(tmp_path: Path) -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.05 * record.offset if record.offset < 10 else 3600)

    with companion(tmp_path, handle) as process:
        process.send(hand_over(1, 0, 19))
        process.answers(10)
        os.kill(process.process.pid, signal.SIGKILL)
        process.rest()
        process.wait()
        statuses = process.statuses()
        assert set(statuses.values()) == {CallStatus.WAITED, CallStatus.ACCEPTED}
        assert {one.first_offset for one in process.answered} <= {
            offset for offset, status in statuses.items() if status == CallStatus.ACCEPTED
        }


def test_calls_outlive_the_driver_and_are_in_the_ledger(tmp_path: Path) -> None:
    async def handle(record: Record) -> Any:
        await asyncio.sleep(0.5)
        return Ack.release("later") if record.offset == 1 else None

    with companion(tmp_path, handle, most_calls=4) as process:
        process.send(hand_over(1, 0, 7))
        process.until_entered(range(4))
        assert is_written(tmp_path / "0")
        assert process.leave() == 0
        accepted, none = CallStatus.ACCEPTED, CallStatus.NOT_ENTERED
        assert process.statuses() == {offset: accepted if offset < 4 else none for offset in range(8)} | {
            1: CallStatus.RELEASED
        }
        assert process.entries()[0].errors == {1: "later"}
        assert not is_written(tmp_path / "0")


def test_it_ends_at_once_by_sigterm_and_not_by_sigint(tmp_path: Path) -> None:
    with companion(tmp_path, waits_for(tmp_path / "gate")) as process:
        process.send(hand_over(1, 0, 3))
        process.until_entered(range(4))
        process.process.send_signal(signal.SIGINT)
        assert process.report().running == 4
        process.process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_a_driver_that_says_nothing_is_no_fault(tmp_path: Path) -> None:
    with companion(tmp_path, accept) as process:
        assert process.leave() == 0
