"""Handlers with ``open`` and ``close`` in a companion process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from share_spark.companion.messages import Failed
from share_spark.handlers.handler import Record
from share_spark.model.requests import Loss
from tests.support.companion_process import companion, hand_over


class Noting:
    """One that notes in a file what happens to it, and when calls run."""

    file: Path

    def note(self, what: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{what}\n")

    async def open(self) -> None:
        await asyncio.sleep(0.05)
        self.loop = asyncio.get_running_loop()
        self.note("open")

    async def __call__(self, record: Record) -> None:  # noqa: ARG002
        assert self.loop is asyncio.get_running_loop()
        await asyncio.sleep(0.2)
        self.note("call")

    async def close(self) -> None:
        await asyncio.sleep(0.05)
        self.note("close")


def noting(file: Path, **methods: Any) -> type:
    return type("Ask", (Noting,), {"file": file, **methods})


@pytest.mark.parametrize("is_class", [True, False])
def test_it_is_opened_before_the_first_call_and_closed_after_the_last(tmp_path: Path, is_class: bool) -> None:
    made = noting(tmp_path / "noted")
    with companion(tmp_path / "ledger", made if is_class else made()) as process:
        process.send(hand_over(1, 0, 4))
        process.answers(5)
        process.send(hand_over(2, 5, 6))
        process.until_entered([5, 6])
        assert process.leave() == 0
    assert (tmp_path / "noted").read_text().split() == ["open", *["call"] * 7, "close"]


def test_one_that_is_killed_is_not_closed(tmp_path: Path) -> None:
    with companion(tmp_path / "ledger", noting(tmp_path / "noted")) as process:
        process.send(hand_over(1, 0, 0))
        process.answers(1)
        os.kill(process.process.pid, signal.SIGKILL)
        process.wait()
    assert (tmp_path / "noted").read_text().split() == ["open", "call"]


def test_an_open_that_fails_charges_no_record(tmp_path: Path) -> None:
    async def fails(self: Any) -> None:
        raise ConnectionError("no model")

    with companion(tmp_path / "ledger", noting(tmp_path / "noted", open=fails)) as process:
        process.send(hand_over(1, 0, 4))
        *_, failed = process.rest()
        assert isinstance(failed, Failed)
        assert failed.is_handler
        assert failed.text.endswith("Ask: open() failed: ConnectionError: no model")
        assert {one.answer for one in process.answered} <= {Loss.NOT_ENTERED}
        assert set(process.statuses().values()) <= {0}
    assert not (tmp_path / "noted").exists()


def test_one_whose_calls_have_failed_is_closed(tmp_path: Path) -> None:
    async def answers_wrongly(self: Any, record: Record) -> int:
        return 17

    with companion(tmp_path / "ledger", noting(tmp_path / "noted", __call__=answers_wrongly)) as process:
        process.send(hand_over(1, 0, 19))
        assert isinstance(process.rest()[-1], Failed)
    assert (tmp_path / "noted").read_text().split() == ["open", "close"]
