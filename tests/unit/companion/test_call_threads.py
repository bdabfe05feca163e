"""Handlers that block, whose calls have threads, in a companion process."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from share_spark.companion.lost_calls import LostCalls
from share_spark.companion.messages import Failed, Limits, SetLimits
from share_spark.delivery.ledger import CallStatus
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.requests import Loss
from tests.support.companion_process import DEADLINE_S, CompanionProcess, companion, hand_over

OVERRUN = (2, "time limit of 1000 ms exceeded")


def by_offset(process: CompanionProcess, offsets: int) -> dict[int, tuple[int, str | None]]:
    return {
        offset: (one.answer, one.error)
        for one in process.answers(offsets)
        for offset in range(one.first_offset, one.last_offset + 1)
    }


def waits_for(gate: Path) -> Any:
    """A handler whose calls end when the file is there."""

    def wait(record: Record) -> None:
        while not gate.exists():
            time.sleep(0.01)

    return wait


def hangs_at(*offsets: int) -> Any:
    """A handler that never comes back for some records, and takes its time for the others."""

    def hang(record: Record) -> None:
        time.sleep(3600 if record.offset in offsets else 0.1)

    return hang


def test_answers_of_all_kinds(tmp_path: Path) -> None:
    def handle(record: Record) -> Any:
        if record.offset < 3:
            raise [ValueError("not yet"), StopIteration("all"), SystemExit(3)][record.offset]
        return {3: Ack.release("busy"), 4: Ack.reject("never"), 5: True}.get(record.offset)

    with companion(tmp_path, handle, threads=4) as process:
        process.send(hand_over(1, 0, 6))
        assert by_offset(process, 7) == {
            0: (2, "ValueError: not yet"),
            1: (2, "StopIteration: all"),
            2: (2, "SystemExit: 3"),
            3: (2, "busy"),
            4: (3, "never"),
            5: (2, "answered True, which is not Ack.ACCEPT, Ack.RELEASE or Ack.REJECT"),
            6: (1, None),
        }


def test_as_many_calls_run_as_there_are_threads_or_as_the_limit_says(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with companion(tmp_path / "ledger", waits_for(gate), most_calls=2, threads=4) as process:
        process.send(hand_over(1, 0, 9))
        process.until_entered(range(2))
        process.send(SetLimits(Limits(100, 60_000)))
        process.until_entered(range(4))
        assert process.report().running == 4
        gate.touch()
        assert len(process.answers(10)) == 10


def test_an_object_is_opened_once_for_all_threads(tmp_path: Path) -> None:
    noted = tmp_path / "noted"

    class Ask:
        def open(self) -> None:
            self.together = threading.Barrier(3)

        def __call__(self, record: Record) -> None:  # noqa: ARG002
            self.together.wait(DEADLINE_S)

        def close(self) -> None:
            noted.write_text("closed")

    with companion(tmp_path / "ledger", Ask, threads=3) as process:
        process.send(hand_over(1, 0, 5))
        assert by_offset(process, 6) == dict.fromkeys(range(6), (1, None))
        assert process.leave() == 0
    assert noted.read_text() == "closed"


def test_a_call_that_takes_too_long_is_released_and_its_thread_is_missing(tmp_path: Path) -> None:
    with companion(tmp_path, hangs_at(1), timeout_ms=1_000, threads=2) as process:
        process.send(hand_over(1, 0, 9))
        assert by_offset(process, 10) == dict.fromkeys(range(10), (1, None)) | {1: OVERRUN}
        assert process.process.poll() is None


def test_a_thread_that_comes_back_late_has_calls_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def handle(record: Record) -> Ack:
        while record.offset < 2 and not gate.exists():
            time.sleep(0.01)
        return Ack.reject("too late" if record.offset < 2 else "in time")

    with companion(tmp_path / "ledger", handle, timeout_ms=1_000, threads=4) as process:
        process.send(hand_over(1, 0, 1))
        assert by_offset(process, 2) == {0: OVERRUN, 1: OVERRUN}
        gate.touch()
        process.send(hand_over(2, 2, 9))
        assert by_offset(process, 10) == dict.fromkeys(range(2, 10), (3, "in time")) | {0: OVERRUN, 1: OVERRUN}


def test_with_most_threads_stuck_the_process_ends_after_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def handle(record: Record) -> None:
        time.sleep(3600 if record.offset < 3 else 0.3)

    with companion(tmp_path, handle, timeout_ms=1_000, threads=4) as process:
        process.send(hand_over(1, 0, 99))
        messages = process.rest()
        assert process.wait() == 1
        answers = by_offset(process, 100)
    assert not any(isinstance(message, Failed) for message in messages)
    assert {offset for offset, answer in answers.items() if answer == OVERRUN} == {0, 1, 2}
    others = {answer for offset, answer in answers.items() if offset > 2}
    assert others == {(1, None), (Loss.NOT_ENTERED, None)}
    entered = (CallStatus.IN_HANDLER, CallStatus.WAITED)
    assert not any(status in entered for status in process.statuses().values())
    assert "3 of 4 threads are over the time limit of their calls and do not come back: File " in capfd.readouterr().err


@pytest.mark.parametrize("calls", [1, 3])
def test_a_death_accuses_all_that_ran(tmp_path: Path, calls: int) -> None:
    gate = tmp_path / "gate"

    def handle(record: Record) -> None:
        while not gate.exists():
            time.sleep(0.01)
        if record.offset == 0:
            os._exit(9)
        time.sleep(3600)

    with companion(tmp_path / "ledger", handle, threads=3) as process:
        process.send(hand_over(1, 0, calls - 1))
        process.until_entered(range(calls))
        gate.touch()
        assert process.wait() == 9
        assert process.statuses() == dict.fromkeys(range(calls), CallStatus.IN_HANDLER)
        assert not LostCalls.read(tmp_path / "ledger" / "0").killed_many
