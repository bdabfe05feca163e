"""Delivery to a real companion process: answers that come in parts, and processes that die. No JVM."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from share_spark.companion.delivery import CompanionDelivery
from share_spark.engine.delivery_port import Delivered, DeliveryLimits
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record, as_handler
from share_spark.model.errors import HandlerError, StateError, TopicUnreachableError
from share_spark.model.requests import AcknowledgeType, Loss
from tests.support.claims import claim_of
from tests.support.companions import AT, DEADLINE_S, LOCAL, CompanionPlace, MadeRecords, Said

ACCEPT, RELEASE, GAP = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.GAP
REJECT = AcknowledgeType.REJECT


@dataclass
class Odd:
    """Calls for odd offsets wait until the file is there, from 101 on for ever, without a step. The one for 13 ends the
    process, that for 17 hangs."""

    file: str

    async def __call__(self, record: Record) -> Any:
        if record.offset == 13 and record.delivery_count == 1:
            while not Path(f"{self.file}.{record.offset}").exists():
                await asyncio.sleep(0.01)
            os._exit(3)
        if record.offset == 17:
            time.sleep(60)
        if record.offset % 2 and record.offset > 100:
            await asyncio.Event().wait()
        while record.offset % 2 and not Path(self.file).exists():
            await asyncio.sleep(0.01)
        if record.offset == 8:
            raise ValueError("eight")
        return Ack.release("later", delay=2) if record.offset == 6 else None


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


@pytest.fixture
def place(tmp_path: Path, go: Path) -> Iterator[CompanionPlace]:
    found = CompanionPlace(tmp_path, Odd(str(go)))
    yield found
    found.delivery.close()


def test_answers_come_in_parts(place: CompanionPlace, go: Path) -> None:
    assert place.deliver((0, 9, 1)).in_flight == 10
    place.until(lambda delivered: delivered.in_flight == 5)
    assert place.said == {
        0: Said(ACCEPT),
        2: Said(ACCEPT),
        4: Said(ACCEPT),
        6: Said(RELEASE, "later", 2_000),
        8: Said(RELEASE, "ValueError: eight"),
    }
    assert place.delivery.room(place.limits) == 35
    place.deliver((20, 20, 1))
    place.until(lambda _: 20 in place.said)
    go.touch()
    place.finish()
    assert place.times == dict.fromkeys([*range(10), 20], 1)
    assert {place.said[offset] for offset in (1, 3, 5, 7, 9, 20)} == {Said(ACCEPT)}


def test_few_records_are_not_acquired_while_many_wait_ahead(place: CompanionPlace) -> None:
    place.deliver(*((offset, offset, 1) for offset in range(21, 91, 2)))
    assert place.delivery.room(place.limits) == 20 // 4
    place.deliver((91, 91, 1))
    assert place.delivery.room(place.limits) == 0


def test_a_delivery_tells_how_many_were_called_and_how_long(place: CompanionPlace) -> None:
    place.deliver((0, 0, 1), (2, 2, 1))
    found = [place.deliver()]
    while found[-1].in_flight:
        place.delivery.wait(1)
        found.append(place.deliver())
    assert sum(one.entered for one in found) == 2
    assert 0 < sum(one.busy_s for one in found) < 5


def test_offsets_without_a_record_are_gaps(tmp_path: Path, go: Path) -> None:
    place = CompanionPlace(tmp_path, Odd(str(go)), MadeRecords(frozenset({2, 3, 4, 10})))
    go.touch()
    place.deliver((0, 5, 1), (10, 12, 2))
    place.finish()
    place.delivery.close()
    assert {offset for offset, said in place.said.items() if said == Said(GAP)} == {2, 3, 4, 10}
    assert place.times == dict.fromkeys([*range(6), 10, 11, 12], 1)


def test_calls_are_as_many_at_a_time_as_the_limits_say(place: CompanionPlace) -> None:
    place.limits = place.limits._replace(most_calls=2)
    assert place.delivery.room(place.limits) == 4
    place.deliver((1, 1, 1), (3, 3, 1), (5, 5, 1), (4, 4, 1))
    assert place.delivery.room(place.limits) == 0
    place.until(lambda _: place.delivery.calls.running > 0)
    now = place.delivery.calls
    assert (now.running, now.waiting, now.limit) == (2, 2, 2)
    assert now.oldest is not None
    assert (now.oldest.at, now.oldest.offset) == (AT, 1)
    assert not place.said
    place.limits = place.limits._replace(most_calls=4)
    place.until(lambda _: 4 in place.said)


def test_a_drain_gives_back_what_did_not_begin_and_waits_for_the_rest(place: CompanionPlace, go: Path) -> None:
    place.limits = place.limits._replace(most_calls=2)
    place.deliver((1, 9, 1))
    place.until(lambda _: place.delivery.calls.running == 2)
    threading.Timer(0.2, go.touch).start()
    assert place.note(place.delivery.drain()).in_flight == 0
    assert place.times == dict.fromkeys(range(1, 10), 1)
    called = {offset for offset, said in place.said.items() if said.answer != Loss.NOT_ENTERED}
    assert called >= {1}
    assert place.said[9] == Said(Loss.NOT_ENTERED)
    place.deliver((9, 9, 1))
    place.finish()
    assert place.said[9] == Said(ACCEPT)


def test_the_record_that_ended_its_process_is_accused_and_no_other(place: CompanionPlace, go: Path) -> None:
    place.limits = place.limits._replace(most_calls=6)
    place.deliver((9, 15, 1), (18, 19, 1))
    place.until(lambda _: 10 in place.said and 12 in place.said)
    first = place.pid
    Path(f"{go}.13").touch()
    delivered = place.until(lambda delivered: delivered.in_flight == 0)
    assert delivered.is_explained
    assert place.times == dict.fromkeys([*range(9, 16), 18, 19], 1)
    assert place.said[13] == Said(Loss.IN_HANDLER, "worker lost")
    assert {place.said[offset] for offset in (9, 11, 15)} == {Said(Loss.FINISHED)}
    assert place.delivery.room(place.limits) == 12
    go.touch()
    place.deliver((9, 9, 2), (13, 13, 2))
    assert place.pid != first
    place.finish()
    assert (place.said[9], place.said[13]) == (Said(ACCEPT), Said(ACCEPT))


def test_a_process_killed_from_outside_accuses_nobody_and_fewer_calls_run(place: CompanionPlace) -> None:
    place.deliver((101, 101, 1), (103, 103, 1), (105, 106, 1))
    place.until(lambda _: 106 in place.said)
    os.kill(place.pid, signal.SIGKILL)
    place.finish()
    assert {place.said[offset] for offset in (101, 103, 105)} == {Said(Loss.FINISHED)}
    assert place.delivery.room(place.limits) == 20


def test_a_call_that_was_the_only_one_is_accused(place: CompanionPlace) -> None:
    place.deliver((101, 101, 1))
    place.until(lambda _: place.delivery.calls.running > 0)
    os.kill(place.pid, signal.SIGKILL)
    place.finish()
    assert place.said == {101: Said(Loss.IN_HANDLER, "worker lost")}
    assert place.delivery.room(place.limits) == 40


def test_records_that_no_call_was_made_for_are_given_back_when_the_process_dies(place: CompanionPlace) -> None:
    place.limits = place.limits._replace(most_calls=2)
    place.deliver((101, 101, 1), (103, 103, 1), (105, 106, 1))
    place.until(lambda _: place.delivery.calls.running > 0)
    os.kill(place.pid, signal.SIGKILL)
    place.finish()
    found = [place.said[offset].answer for offset in (101, 103, 105, 106)]
    assert sorted(found) == [Loss.FINISHED] * 2 + [Loss.NOT_ENTERED] * 2


def test_a_call_that_does_not_react_to_its_limit_ends_its_process(place: CompanionPlace) -> None:
    place.limits = place.limits._replace(timeout_ms=200)
    place.deliver((17, 17, 1))
    place.finish()
    answer, error, _ = place.said[17]
    assert answer == Loss.IN_HANDLER
    assert error is not None
    assert error.startswith("time limit of 200 ms exceeded and did not react: File ")


def test_ledgers_stay_until_the_state_has_the_answers(place: CompanionPlace) -> None:
    place.deliver((1, 1, 1))
    place.until(lambda _: place.delivery.calls.running > 0)
    assert place.ledgers() == ["0"]
    os.kill(place.pid, signal.SIGKILL)
    place.until(lambda delivered: delivered.in_flight == 0)
    assert place.ledgers() == ["0"]
    place.deliver((2, 2, 2))
    assert "0" not in place.ledgers()


def test_the_next_engine_finds_what_was_called(place: CompanionPlace) -> None:
    place.deliver((100, 103, 1))
    place.until(lambda delivered: delivered.in_flight == 2)
    os.kill(place.pid, signal.SIGKILL)
    place.delivery.wait(DEADLINE_S)
    successor = CompanionDelivery(spark=LOCAL, log=place.log, handler=place.delivery.handler)
    successor.start(claim_of("billing", place.claim.directory, epoch=2))
    (trace,) = successor.traces()
    assert [run.loss for run in trace.entered[AT]] == [Loss.AFTER_HANDLER, Loss.FINISHED] * 2
    (calls,) = successor.finished_calls()
    assert [(run.first_offset, run.answer) for run in calls.answered[AT]] == [(100, ACCEPT), (102, ACCEPT)]
    successor.forget_traces()
    assert place.ledgers() == []


def driver(directory: str) -> None:
    """A driver with a call that waits, until it is killed."""
    place = CompanionPlace(Path(directory), Odd(f"{directory}/go"))
    place.deliver((1, 2, 1))
    place.until(lambda _: 2 in place.said and place.delivery.calls.running > 0)
    print("ready", flush=True)
    time.sleep(600)


def test_the_next_engine_waits_for_the_last_calls_of_a_dead_one(tmp_path: Path, go: Path) -> None:
    code = f"from {driver.__module__} import driver; driver({str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as died:
        assert died.stdout is not None
        assert died.stdout.readline() == b"ready\n"
        died.kill()
    successor = CompanionPlace(tmp_path, Odd(str(go))).delivery
    threading.Timer(0.5, go.touch).start()
    (calls,) = successor.finished_calls()
    assert [tuple(run) for run in calls.answered[AT]] == [(1, 2, 1, ACCEPT)]


def test_an_answer_for_a_record_that_was_cut_off_is_not_one_for_its_successor(place: CompanionPlace) -> None:
    """Both have the same offset and count, whether the process dies or the engine."""
    place.deliver((1, 4, 1))
    place.until(lambda delivered: delivered.in_flight == 2)  # 1 and 3 wait, 2 and 4 are answered
    place.delivery.forget_last({AT: 3})
    place.said.clear()
    os.kill(place.pid, signal.SIGSTOP)
    place.deliver((3, 4, 1))
    os.kill(place.pid, signal.SIGKILL)
    place.finish()
    assert {place.said[offset].answer for offset in (3, 4)} == {Loss.NOT_ENTERED}
    successor = CompanionDelivery(spark=LOCAL, log=place.log, handler=place.delivery.handler)
    successor.start(claim_of("billing", place.claim.directory, epoch=2))
    (calls,) = successor.finished_calls()
    assert [tuple(run) for run in calls.answered[AT]] == [(2, 2, 1, ACCEPT)]
    (trace,) = successor.traces()
    assert [run[:2] for run in trace.entered[AT]] == [(1, 1), (2, 2)]


def test_a_truncation_that_cannot_be_noted_is_an_error(place: CompanionPlace) -> None:
    """New records with these offsets must not be acquired then."""
    place.deliver((2, 2, 1))
    place.finish()
    assert place.delivery._starts is not None
    (place.delivery._starts.directory / "truncated").mkdir()
    with pytest.raises(StateError, match=r"a truncation cannot be noted in .*: Is a directory"):
        place.delivery.forget_last({AT: 2})


def test_answers_of_what_was_forgotten_do_not_come(place: CompanionPlace, go: Path) -> None:
    place.deliver((1, 5, 1))
    place.until(lambda delivered: delivered.in_flight == 3)
    place.said.clear()
    place.delivery.forget_last({AT: 0})
    assert place.delivery.room(place.limits) == 40
    place.deliver((3, 4, 1))
    go.touch()
    place.finish()
    assert place.said == {3: Said(ACCEPT), 4: Said(ACCEPT)}


def test_records_that_cannot_be_read_are_given_back_and_the_query_goes_on(place: CompanionPlace) -> None:
    place.deliver((404, 404, 1))
    place.finish()
    place.until(lambda _: bool(place.faults))
    assert place.said == {404: Said(Loss.NOT_ENTERED)}
    (fault,) = place.faults
    assert type(fault) is TopicUnreachableError
    assert str(fault) == "the broker is away"
    place.deliver((2, 2, 1))
    place.finish()
    assert place.said[2] == Said(ACCEPT)


class Away(MadeRecords):
    def for_workers(self, *_: object, **__: object) -> NoReturn:
        raise TopicUnreachableError("no answer")


def test_records_of_a_log_that_does_not_answer_are_given_back(tmp_path: Path, go: Path) -> None:
    place = CompanionPlace(tmp_path, Odd(str(go)), Away())
    assert place.deliver((1, 3, 1)).in_flight == 0
    assert place.said == dict.fromkeys((1, 2, 3), Said(Loss.NOT_ENTERED))
    assert [str(fault) for fault in place.faults] == ["no answer"]


@dataclass
class Broken:
    """A handler that cannot be loaded: it raises, or ends the process."""

    ends: bool

    def __setstate__(self, state: dict[str, bool]) -> None:
        if state["ends"]:
            os.write(2, b"first line\nno such model\n")
            os._exit(7)
        raise ImportError("no such model")

    async def __call__(self, record: Record) -> None: ...


def test_a_handler_that_cannot_be_loaded_ends_the_query(tmp_path: Path) -> None:
    place = CompanionPlace(tmp_path, Broken(ends=False))
    place.deliver((1, 3, 1))
    place.finish()
    place.until(lambda _: bool(place.faults))
    place.delivery.close()
    assert place.said == dict.fromkeys((1, 2, 3), Said(Loss.NOT_ENTERED))
    (fault,) = place.faults
    assert isinstance(fault, HandlerError)
    assert str(fault).endswith("cannot be loaded on a worker: ImportError: no such model")


@pytest.mark.slow
def test_processes_that_always_die_end_the_query(tmp_path: Path) -> None:
    place = CompanionPlace(tmp_path, Broken(ends=True))
    for _ in range(10):
        assert not place.faults
        place.deliver((1, 3, 1))
        place.finish()
    assert set(place.said.values()) == {Said(Loss.NOT_ENTERED)}
    (fault,) = place.faults
    assert isinstance(fault, HandlerError)
    assert str(fault).endswith("ends again and again: exit code 7: no such model")


async def speaks(record: Record) -> None:
    print("said by", record.offset)


def test_prints_of_a_handler_are_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = CompanionPlace(tmp_path, speaks)
    place.deliver((7, 7, 1))
    place.finish()
    place.delivery.close()
    assert "said by 7\n" in capsys.readouterr().err


def test_waiting_ends_when_the_engine_stops(place: CompanionPlace) -> None:
    place.delivery.stop_waiting()
    place.deliver((1, 1, 1))
    place.until(lambda _: place.delivery.calls.running > 0)
    began = time.monotonic()
    threading.Timer(0.1, place.delivery.stop_waiting).start()
    place.delivery.wait(600)
    assert time.monotonic() - began < 600
    assert not place.said


def test_a_closed_delivery_leaves_no_process(place: CompanionPlace) -> None:
    place.deliver((1, 1, 1))
    place.until(lambda _: place.delivery.calls.running > 0)
    pid = place.pid
    place.delivery.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nothing_is_started_before_there_is_a_record(place: CompanionPlace) -> None:
    assert place.deliver() == Delivered([], in_flight=0)
    assert place.delivery.drain().in_flight == 0
    place.delivery.wait(600)
    assert not list(place.delivery._companions)
    assert place.delivery.room(DeliveryLimits(1, 1, most_calls=3)) == 6
    assert as_handler(Odd("nowhere")).waits


async def throttle_once(record: Record) -> Any:
    """Throttle all records of the first delivery."""
    return Ack.throttled("429", retry_after=0) if record.delivery_count == 1 else None


def test_throttled_calls_are_counted_in_the_round_in_which_they_began(tmp_path: Path) -> None:
    place = CompanionPlace(tmp_path, throttle_once)
    place.limits = DeliveryLimits(60_000, 60_000, most_calls=2, round_number=4)
    counted = place.deliver((0, 9, 1)).throttled
    while len(place.said) < 6:
        counted += place.until(lambda delivered: bool(delivered.answers)).throttled
    assert counted == len(place.said)
    place.limits = place.limits._replace(round_number=5)
    place.deliver((20, 21, 2))
    place.until(lambda _: {20, 21} <= place.said.keys())
    assert {place.said[offset].answer for offset in range(10)} == {Loss.THROTTLED}
    assert {place.said[offset].answer for offset in (20, 21)} == {ACCEPT}
    place.delivery.close()


async def costly(record: Record) -> Any:
    return Ack.accept(cost=record.offset) if record.offset else Ack.release("later")


def test_costs_are_part_of_what_is_delivered(tmp_path: Path) -> None:
    place = CompanionPlace(tmp_path, costly)
    cost = place.deliver((0, 4, 1)).cost
    while len(place.said) < 5:
        cost += place.until(lambda delivered: bool(delivered.answers)).cost
    assert cost == 10.0
    place.delivery.close()


def tokens(record: Record) -> float:
    if record.offset % 4 == 3:
        raise LookupError("no price")
    return 100.0


async def knows_some(record: Record) -> Any:
    assert record.offset % 4 != 3
    if record.offset == 0:
        raise ValueError("no")
    return Ack.throttled() if record.offset == 1 else Ack.accept(cost=1) if record.offset == 2 else None


async def knows_all(records: list[Record]) -> Any:
    return [await knows_some(record) if record.offset else Ack.reject("no") for record in records]


def blocks(record: Record) -> Any:
    return asyncio.run(knows_some(record))


FORMS = [
    (knows_some, {}, RELEASE),
    (knows_all, {"batch": 5, "linger": 60}, REJECT),
    (knows_all, {"batch": 1}, REJECT),
    (blocks, {"threads": 3}, RELEASE),
]


@pytest.mark.parametrize(("handler", "settings", "first"), FORMS)
def test_what_a_cost_function_says_before_the_call(
    tmp_path: Path, handler: Any, settings: dict[str, Any], first: AcknowledgeType
) -> None:
    place = CompanionPlace(tmp_path, handler, settings={**settings, "cost": tokens})
    cost = place.deliver((0, 9, 1)).cost
    while len(place.said) < 10:
        cost += place.until(lambda delivered: bool(delivered.answers)).cost
    failed = Said(RELEASE, "the cost function failed: LookupError: no price")
    assert place.said[3] == place.said[7] == failed
    answers = {0: first, 1: Loss.THROTTLED, 3: RELEASE, 7: RELEASE}
    assert {offset: one.answer for offset, one in place.said.items()} == dict.fromkeys(range(10), ACCEPT) | answers
    assert cost == 100.0 + 0.0 + 1.0 + 5 * 100.0
    place.delivery.close()


async def accept_all(records: list[Record]) -> Any:
    return Ack.accept(cost=30) if records[0].offset else Ack.ACCEPT


@pytest.mark.parametrize(("settings", "cost"), [({}, 30.0), ({"cost": lambda _: 7}, 51.0)])
def test_one_acceptance_says_what_a_list_has_cost(tmp_path: Path, settings: dict[str, Any], cost: float) -> None:
    place = CompanionPlace(tmp_path, accept_all, settings={"batch": 3, "linger": 60, **settings})
    found = place.deliver((0, 5, 1)).cost
    while len(place.said) < 6:
        found += place.until(lambda delivered: bool(delivered.answers)).cost
    assert found == pytest.approx(cost)
    place.delivery.close()


def test_a_cost_function_that_ends_the_process_is_charged_to_its_record(tmp_path: Path) -> None:
    def dies(record: Record) -> float:
        if record.offset == 3:
            os._exit(9)
        return 1.0

    async def waits(_: Record) -> None:
        await asyncio.sleep(60)

    place = CompanionPlace(tmp_path, waits, settings={"cost": dies})
    place.deliver((0, 3, 1))
    place.until(lambda _: len(place.said) == 4)
    assert place.said[3] == Said(Loss.IN_HANDLER, "worker lost")
    assert {place.said[offset].answer for offset in range(3)} == {Loss.FINISHED}
    place.delivery.close()
