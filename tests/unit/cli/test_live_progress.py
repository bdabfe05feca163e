"""The progress of a run in a terminal, and without one: a pseudo-terminal, a clock, and a feed of micro-batches."""

from __future__ import annotations

import logging
import os
import pty
import re
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from typing import TextIO

import pytest

from share_spark.cli.live_progress import LiveProgress, drawn, lines_of
from share_spark.cli.run_report import RunTotals
from share_spark.engine.delivery_port import CallsLook, RunningCall
from share_spark.engine.outage import Outage
from share_spark.engine.pauses import NOT_PAUSED
from tests.support.engine_world import ACCEPT, RELEASE, TOPIC, EngineLife, InMemoryGroup, at

CLEAR = "\r\x1b[J"


class Run:
    """An engine in memory, watched: each micro-batch takes as long as is said."""

    def __init__(self, stream: TextIO, **settings: object) -> None:
        def fails_at_three(_topic: str, _partition: int, offset: int, count: int) -> object:
            return (RELEASE, f"ValueError: no city {offset}") if offset % 10 == 3 and count == 1 else ACCEPT

        self.world = InMemoryGroup(handler=fails_at_three, **settings)  # type: ignore[arg-type]
        self.world.produce(100)
        self.engine: EngineLife = self.world.engine()
        self.now_s = 0.0
        self.live = LiveProgress(clock=lambda: self.now_s, stream=stream)
        self.live.begin(self.engine.engine.look)

    def micro_batch(self, seconds: float = 1.0) -> None:
        progress = self.engine.run()
        if not progress.idle:
            self.live.note(progress)
        self.now_s += seconds
        self.live.show()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    found = Terminal()
    yield found
    found.close()


class Terminal:
    """What is written to a pseudo-terminal of 80 columns."""

    def __init__(self) -> None:
        self.fd, child = pty.openpty()
        os.set_blocking(self.fd, False)
        self.stream = os.fdopen(child, "w", encoding="utf-8")

    def written(self) -> str:
        """Since the last call, with the line ends of a file."""
        found = b""
        try:
            while part := os.read(self.fd, 65_536):
                found += part
        except BlockingIOError:
            pass
        return found.decode().replace("\r\n", "\n")

    def close(self) -> None:
        self.stream.close()
        os.close(self.fd)


def plain(text: str) -> list[str]:
    """The lines of a drawing."""
    return re.sub(r"\x1b\[\d*[a-zA-Z]", "", text.rpartition(CLEAR)[2]).rstrip("\r").splitlines()


def test_a_table_that_is_drawn_again_in_its_place(terminal: Terminal) -> None:
    run = Run(terminal.stream)
    run.micro_batch()
    first = terminal.written()
    assert first.startswith(CLEAR)
    assert first.endswith("\r\x1b[3A"), "the cursor waits where the table begins"
    assert plain(first) == [
        "LAG FINISHED/S TO GO ACQUIRED ACCEPTED RELEASED REJECTED GIVEN UP",
        "100 0          -     100      0        0        0        0",
        "FAILED ERROR",
        "10     ValueError: no city #",
    ]
    run.micro_batch()
    assert plain(terminal.written())[1] == "10  45         0 s   110      90       10       0        0"
    run.micro_batch()
    assert plain(terminal.written())[1] == "0   33         0 s   110      100      10       0        0"
    run.live.finish()
    assert terminal.written().endswith("\x1b[3A\n\n\n\n"), "the last one stays"


def test_it_goes_on_while_nothing_happens(terminal: Terminal) -> None:
    """The rate is that of the last thirty seconds."""
    run = Run(terminal.stream)
    for _ in range(3):
        run.micro_batch()
    for _ in range(32):
        run.micro_batch()
    assert plain(terminal.written())[1].split()[:2] == ["0", "0"]


def test_not_more_often_than_each_second(terminal: Terminal) -> None:
    run = Run(terminal.stream)
    run.micro_batch(0.9)
    assert terminal.written() == ""
    run.micro_batch(0.1)
    assert terminal.written() != ""


def test_what_is_paused_and_an_open_breaker_are_said(terminal: Terminal) -> None:
    settings = {"delivery__breaker__failure__rate": 0.1}
    run = Run(terminal.stream, **settings)
    run.world.pauses = NOT_PAUSED.paused({"bills": [1]}, None)
    run.micro_batch()
    *_, paused, breaker = plain(terminal.written())
    assert paused == "paused: bills:1"
    assert breaker.startswith("the circuit breaker is open: 10 of 100 attempts have failed")
    assert len(breaker) == 79, "a line never goes on in the next row"


def test_colours_unless_they_are_not_wanted(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(terminal.stream)
    run.micro_batch()
    assert "\x1b[31m10     ValueError: no city #\x1b[0m" in terminal.written()
    monkeypatch.setenv("NO_COLOR", "1")
    run.micro_batch()
    assert re.search(r"\x1b\[\d*m", terminal.written()) is None


def test_log_lines_take_the_place_of_the_table(terminal: Terminal) -> None:
    run = Run(terminal.stream)
    handler = logging.StreamHandler(terminal.stream)
    logging.getLogger().addHandler(handler)
    try:
        with run.live.beside_logs():
            run.micro_batch()
            terminal.written()
            logging.getLogger("share_spark").warning("something")
            assert terminal.written() == f"{CLEAR}something\n"
            run.live.say("stopping")
            assert terminal.written() == f"{CLEAR}share-spark: stopping\n"
        logging.getLogger("share_spark").warning("after it")
        assert terminal.written() == "after it\n"
    finally:
        logging.getLogger().removeHandler(handler)


def test_without_a_terminal_a_line_if_anything_has_happened() -> None:
    stream = StringIO()
    run = Run(stream)
    for _ in range(6):
        run.micro_batch()
    run.live.say("stopping")
    run.live.finish()
    first, second, third, said = stream.getvalue().splitlines()
    assert first.split()[:6] == ["100", "records/s", "acquired", "100", "accepted", "0"]
    assert (second.split()[-1], third.split()[-1]) == ("10", "0")
    assert said == "share-spark: stopping"
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_that_knows_no_commands_gets_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    run = Run(terminal.stream)
    run.micro_batch()
    assert "\x1b" not in terminal.written()


def test_the_most_frequent_errors_are_shown() -> None:
    world = InMemoryGroup()
    totals = RunTotals(errors={f"error {letter}": number for number, letter in enumerate("abcdefgh", 1)})
    lines = [line.text.split() for line in lines_of(totals, 0.0, world.engine().engine.look(), world.clock())]
    assert [line[-1] for line in lines[3:]] == ["h", "g", "f", "e", "d"]
    assert drawn([], 80, colours=True) == ""


def test_an_outage_is_shown_and_no_time_to_go() -> None:
    world = InMemoryGroup()
    world.produce(5)
    look = world.engine().engine.look()
    out = Outage(since_ms=world.clock() - 30_000, what="broker", reason="Kafka at b:9092 gave no answer")
    lines = [line.text for line in lines_of(RunTotals(), 2.0, replace(look, outage=out), world.clock())]
    assert lines[1].split()[:3] == ["-", "2", "-"]
    assert lines[-1] == "broker unreachable for 30 s: Kafka at b:9092 gave no answer"


def test_calls_that_wait_are_shown_with_the_oldest() -> None:
    look = InMemoryGroup().engine().engine.look()
    calls = CallsLook(8, 1_200, 10, RunningCall(at(), 812, 4.2), throttled=3)
    lines = [line.text for line in lines_of(RunTotals(), 0.0, replace(look, calls=calls), 0)]
    assert lines[-1] == "8 calls running (at most 10), 1,200 waiting, 3 throttled, oldest orders-0@812 for 4 s"
    idle = lines_of(RunTotals(), 0.0, replace(look, calls=CallsLook(0, 0, 0)), 0)
    assert idle[-1].text == "0 calls running, 0 waiting"


def test_there_is_no_time_to_go_while_all_that_waits_is_paused() -> None:
    world = InMemoryGroup(partitions=2, max__records__per__trigger=2)
    for partition in range(2):
        world.produce(5, partition)
    engine = world.engine()
    engine.run()

    def to_go() -> str:
        engine.run()
        return lines_of(RunTotals(), 2.0, engine.engine.look(), world.clock())[1].text.split()[2]

    assert to_go() != "-"
    world.pauses = NOT_PAUSED.paused({TOPIC: [0]}, None)
    assert to_go() != "-"
    world.pauses = NOT_PAUSED.paused({TOPIC: []}, None)
    assert to_go() == "-"
