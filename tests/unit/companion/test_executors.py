"""Delivery to companions on executors, which are real processes here, and their executors others. No JVM."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from share_spark.companion import executors as executors_module
from share_spark.companion.delivery import CompanionDelivery
from share_spark.companion.executors import has_executors
from share_spark.companion.process import CompanionProcess
from share_spark.engine.delivery_port import DeliveryLimits
from share_spark.handlers.acknowledgement import Ack
from share_spark.handlers.handler import Record
from share_spark.model.requests import AcknowledgeType, Loss
from tests.support.claims import claim_of
from tests.support.companions import AT, DEADLINE_S, CompanionPlace, Said
from tests.support.executors import Executors, blind, companion_pids, kill, mute

ACCEPT = Said(AcknowledgeType.ACCEPT)


@dataclass
class Noted:
    """Calls note their offset and process. They end once the file is there, those of even offsets at once."""

    directory: str

    async def __call__(self, record: Record) -> Any:
        with Path(self.directory, "calls").open("a") as file:
            file.write(f"{record.offset} {os.getpid()}\n")
        while record.offset % 2 and not Path(self.directory, "go").exists():
            await asyncio.sleep(0.01)
        return Ack.ACCEPT


@dataclass
class Cluster:
    """A delivery to companions on two executors."""

    executors: Executors
    directory: Path
    place: CompanionPlace

    def go(self) -> None:
        (self.directory / "go").touch()

    def called(self) -> dict[int, list[int]]:
        """The offsets that were called, by process."""
        found: dict[int, list[int]] = {}
        file = self.directory / "calls"
        for line in file.read_text().splitlines() if file.exists() else ():
            offset, process = map(int, line.split())
            found.setdefault(process, []).append(offset)
        return found

    def until_called(self, offsets: int) -> dict[int, list[int]]:
        self.place.until(lambda _: sum(map(len, self.called().values())) >= offsets)
        return self.called()

    def kill_between_steps(self, process: int) -> None:
        """Kill it while the code of no call runs: that call would be accused."""
        deadline = time.monotonic() + DEADLINE_S
        while not self._is_between_steps(process):
            os.kill(process, signal.SIGCONT)
            assert time.monotonic() < deadline
            time.sleep(0.003)
        kill(process)

    def _is_between_steps(self, process: int) -> bool:
        """Stop it, and look at the cells of all companions."""
        os.kill(process, signal.SIGSTOP)
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        cells = [cell.read_bytes() for cell in self.directory.rglob("*.cell")]
        return bool(cells) and not any(map(any, cells))

    @property
    def pids(self) -> list[int]:
        return companion_pids(tempfile.gettempdir())

    def until_pids(self, many: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(self.pids) != many:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executors]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = Executors(monkeypatch)
    found.add(2)
    yield found
    found.close()


@pytest.fixture
def made(tmp_path: Path, executors: Executors) -> Iterator[Callable[..., Cluster]]:
    places: list[CompanionPlace] = []

    def make(handler: Any = None, most_calls: int = 20) -> Cluster:
        limits = DeliveryLimits(60_000, 60_000, most_calls=most_calls)
        handler = handler or Noted(str(tmp_path))
        places.append(CompanionPlace(tmp_path, handler, spark=executors.spark, limits=limits))
        return Cluster(executors, tmp_path, places[-1])

    yield make
    for place in places:
        place.delivery.close()


@pytest.fixture
def cluster(made: Callable[..., Cluster]) -> Cluster:
    return made()


def odd(numbers: range) -> tuple[tuple[int, int, int], ...]:
    return tuple((number, number, 1) for number in numbers if number % 2)


def test_records_and_calls_are_divided_over_the_executors(cluster: Cluster) -> None:
    cluster.place.deliver(*odd(range(80)))
    called = cluster.until_called(20)
    time.sleep(0.3)
    assert [len(offsets) for offsets in cluster.called().values()] == [10, 10]
    assert called.keys() == set(cluster.pids)
    assert cluster.place.delivery.room(cluster.place.limits) == 0
    cluster.place.until(lambda _: cluster.place.delivery.calls.running == 20)
    assert (cluster.place.delivery.calls.waiting, cluster.place.delivery.calls.limit) == (20, 20)
    cluster.go()
    cluster.place.finish()
    assert cluster.place.said == {offset: ACCEPT for offset, _, _ in odd(range(80))}
    assert set(cluster.place.times.values()) == {1}
    assert sorted(map(len, cluster.called().values())) == [20, 20]


def test_suspects_are_with_one_companion(cluster: Cluster) -> None:
    cluster.place.deliver((0, 9, 1), in_turn=True)
    cluster.go()
    cluster.place.finish()
    assert list(cluster.called().values()) == [list(range(10))]


def test_fewer_calls_than_executors_are_with_some_of_them(cluster: Cluster) -> None:
    """What waits with another one comes back, for the time when it would wait for ever."""
    cluster.place.deliver(*odd(range(80)))
    cluster.until_called(20)
    cluster.place.limits = cluster.place.limits._replace(most_calls=1)
    cluster.place.until(lambda delivered: delivered.in_flight == 30)
    assert [said.answer for said in cluster.place.said.values()] == [Loss.NOT_ENTERED] * 10
    cluster.go()
    cluster.place.finish()
    assert sorted(map(len, cluster.called().values())) == [10, 20]


def test_a_companion_that_is_killed_is_answered_from_its_ledger_and_followed_by_another(cluster: Cluster) -> None:
    cluster.place.deliver(*odd(range(80)))
    called = cluster.until_called(20)
    killed, other = called
    cluster.kill_between_steps(killed)
    delivered = cluster.place.until(lambda delivered: delivered.in_flight == 20)
    assert delivered.is_explained
    found = {offset: said.answer for offset, said in cluster.place.said.items()}
    assert len(found) == 20
    assert {offset for offset, answer in found.items() if answer == Loss.FINISHED} == set(called[killed])
    assert sum(answer == Loss.NOT_ENTERED for answer in found.values()) == 10
    assert cluster.pids == [other]
    again = sorted(found)
    cluster.place.deliver(*((offset, offset, 2) for offset in again))
    cluster.until_pids(2)
    cluster.go()
    cluster.place.finish()
    assert {cluster.place.said[offset] for offset in again} == {ACCEPT}
    assert {cluster.place.times[offset] for offset in again} == {2}


def test_calls_of_an_executor_that_is_gone_end_and_no_others_begin_there(cluster: Cluster) -> None:
    cluster.place.deliver(*odd(range(80)))
    called = cluster.until_called(20)
    cluster.executors.end()
    cluster.place.until(lambda delivered: delivered.in_flight == 30)
    assert {said.answer for said in cluster.place.said.values()} == {Loss.NOT_ENTERED}
    assert cluster.place.delivery.room(cluster.place.limits) == 0
    cluster.go()
    cluster.place.finish()
    assert {cluster.place.said[offset] for offsets in called.values() for offset in offsets} == {ACCEPT}
    cluster.until_pids(1)
    assert len(cluster.called()) == 2
    cluster.place.until(lambda _: cluster.place.delivery.room(cluster.place.limits) == 40)


def test_the_limit_holds_while_calls_end_elsewhere(cluster: Cluster) -> None:
    cluster.place.deliver(*odd(range(80)))
    cluster.until_called(20)
    cluster.executors.end()
    cluster.place.until(lambda delivered: delivered.in_flight == 30)
    cluster.place.limits = cluster.place.limits._replace(most_calls=16)
    cluster.place.until(lambda _: True)
    (left,) = cluster.place.delivery._companions.taking
    assert left.limits.most_calls == 6


def test_an_executor_that_comes_later_gets_a_companion(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets calls as others end theirs, so that there are never too many."""
    cluster.place.deliver(*odd(range(40)))
    cluster.until_called(20)
    cluster.executors.add()
    monkeypatch.setattr(executors_module, "LOOK_EVERY_S", 0.0)
    cluster.place.deliver((2, 2, 1))
    cluster.until_pids(3)
    cluster.place.deliver((4, 4, 1))
    time.sleep(0.5)
    assert sum(map(len, cluster.called().values())) == 20
    cluster.go()
    cluster.place.until(lambda delivered: delivered.in_flight == 0)
    cluster.place.until(lambda _: cluster.place.delivery.calls.running == 0)
    cluster.place.deliver((100, 129, 1))
    cluster.place.finish()
    assert len(cluster.called()) == 3


def test_nothing_is_known_where_the_ledger_cannot_be_read(cluster: Cluster) -> None:
    cluster.executors.change = blind
    cluster.place.deliver(*odd(range(80)))
    killed, other = cluster.until_called(20)
    kill(killed)
    delivered = cluster.place.until(lambda delivered: delivered.in_flight == 20)
    assert not delivered.is_explained
    assert set(cluster.place.said.values()) == {Said(Loss.UNKNOWN, "worker lost")}
    cluster.go()
    cluster.place.finish()
    assert cluster.pids == [other]


def test_executors_that_cannot_reach_the_driver_leave_it_to_the_driver(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.executors.change = mute
    cluster.place.deliver((0, 0, 1))
    cluster.place.finish()
    assert cluster.place.said == {0: ACCEPT}
    (one,) = cluster.place.delivery._companions
    assert isinstance(one.link, CompanionProcess)
    assert "with the driver at 127.0.0.1:1: ConnectionRefusedError" in caplog.text
    assert "so one runs beside the driver" in caplog.text
    assert str(cluster.place.delivery._starts.arrivals.secret) not in caplog.text


def test_records_are_given_back_if_the_engine_stops_before_a_companion_is_there(made: Callable[..., Cluster]) -> None:
    cluster = made()
    began = threading.Event()

    def waits(task: Any) -> Any:
        began.set()
        time.sleep(2)
        return task

    cluster.executors.change = waits

    def stop() -> None:
        began.wait()
        cluster.place.delivery.stop_waiting()

    threading.Thread(target=stop).start()
    cluster.place.deliver((0, 9, 1))
    assert cluster.place.said == dict.fromkeys(range(10), Said(Loss.NOT_ENTERED))


def test_dynamic_allocation_keeps_executors_while_there_are_calls(cluster: Cluster) -> None:
    cluster.executors.settings["spark.dynamicAllocation.enabled"] = "true"
    cluster.place.deliver((1, 1, 1))
    cluster.until_called(1)
    assert cluster.executors.kept == 1
    cluster.go()
    cluster.place.finish()
    assert cluster.executors.kept == 0


def test_a_closed_delivery_leaves_no_process_on_executors(cluster: Cluster) -> None:
    cluster.place.deliver((0, 1, 1))
    cluster.until_called(2)
    cluster.go()
    cluster.place.finish()
    cluster.place.delivery.close()
    cluster.until_pids(0)


def test_the_next_engine_finds_what_was_called_on_executors(cluster: Cluster) -> None:
    cluster.place.deliver((0, 3, 1))
    cluster.place.until(lambda delivered: delivered.in_flight == 2)
    cluster.until_called(4)
    for process in cluster.pids:
        kill(process)
    cluster.until_pids(0)
    handler = cluster.place.delivery.handler
    successor = CompanionDelivery(spark=cluster.place.spark, log=cluster.place.log, handler=handler)
    successor.start(claim_of("billing", cluster.place.claim.directory, epoch=2))
    (calls,) = successor.finished_calls()
    assert [run.first_offset for run in calls.answered[AT]] == [0, 2]


def test_companions_are_on_executors_where_the_network_may_have_the_records_in_clear(executors: Executors) -> None:
    assert has_executors(executors.spark)
    for master, is_so in [("local", False), ("local[*,4]", False), ("local-cluster[2,1,1024]", True), ("yarn", True)]:
        spark = executors.spark
        spark.sparkContext.master = master
        assert has_executors(spark) is is_so
    executors.settings["spark.network.crypto.enabled"] = "true"
    assert not has_executors(executors.spark)
