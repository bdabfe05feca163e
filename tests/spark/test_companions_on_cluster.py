"""Handlers that wait, on a cluster of two executors: each has a companion, and any of them may be killed, as may an
executor, or the driver.

The cluster and its driver are processes of their own. ``local-cluster`` starts another executor for one that is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from share_spark import ShareGroupAdmin
from tests.support.broker import die_with_parent

pytestmark = pytest.mark.long

WAIT_S = 300

PROGRAM = """
import sys
from pathlib import Path
from share_spark import Ack, EmbeddedTopicLog, ShareGroup
from share_spark.companion import executors
from share_spark.spark.session import build_session
from share_spark.topics.topic_producer import Message

directory, records, master, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
has_rows = sys.argv[5] == "rows"
executors.LOOK_EVERY_S = 2.0
conf = {"spark.executor.memory": "512m", "spark.local.dir": directory + "/scratch", "spark.sql.shuffle.partitions": "2"}
spark = build_session("companions", master, conf)

async def ask(record):
    import asyncio, os
    with open(directory + "/calls", "a") as file:
        file.write(f"{int(record.value)} {record.delivery_count} {os.getpid()}\\n")
    await asyncio.sleep(seconds)
    return (Ack.ACCEPT, {"number": int(record.value)}) if has_rows else Ack.ACCEPT

is_new = not Path(directory, "topics").exists()
log = EmbeddedTopicLog(spark, directory + "/topics")
if is_new:
    log.create_topic("orders", 2)
    log.append("orders", [Message(b"%d" % n, partition=n % 2) for n in range(records)])
group = ShareGroup("asking", spark=spark, state=directory + "/state").table(directory + "/topics").subscribe("orders")
if has_rows:
    group = group.process(ask, output="number bigint").to_delta(directory + "/sink")
else:
    group = group.process(ask)
group = group.option("share.auto.offset.reset", "earliest").option("delivery.max.in.flight", 40)
query = group.trigger(availableNow=True).start()
ended = query.awaitTermination(290)
print("\\nENDED", ended, flush=True)
spark.stop()
"""


class Call(NamedTuple):
    number: int
    delivery_count: int
    process: int


class Run:
    """A driver with a cluster of its own."""

    def __init__(self, directory: Path, records: int, master: str, seconds: float, kind: str) -> None:
        self.directory, self.records, self.rows = directory, records, range(records if kind == "rows" else 0)
        program = directory / "program.py"
        program.write_text(PROGRAM)
        arguments = [str(directory), str(records), master, str(seconds), kind]
        self.output = directory / "output"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*die_with_parent(), sys.executable, str(program), *arguments],
                cwd=directory,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )

    @property
    def calls(self) -> list[Call]:
        file = self.directory / "calls"
        return [Call(*map(int, line.split())) for line in file.read_text().splitlines()] if file.exists() else []

    def until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert self.process.poll() is None, self.output.read_text()[-3_000:]
            assert time.monotonic() < deadline, self.output.read_text()[-3_000:]
            time.sleep(0.05)

    def companions(self) -> list[int]:
        """Those that have made calls, in the order of their first one."""
        return list(dict.fromkeys(call.process for call in self.calls))

    def executors(self) -> list[int]:
        (jvm,) = children(self.process.pid, "java")
        return children(jvm, "CoarseGrainedExecutorBackend")

    def check(self) -> Counter[int]:
        """All is as it should be at the end; how often each record was called."""
        assert self.process.wait(WAIT_S) == 0, self.output.read_text()[-3_000:]
        assert "ENDED True" in self.output.read_text()
        rows = DeltaTable(self.directory / "sink").to_pyarrow_table()["number"].to_pylist() if self.rows else []
        assert sorted(rows) == list(self.rows), "each row once"
        parts = ShareGroupAdmin(str(self.directory / "state")).describe_offsets("asking")
        assert [part.start_offset for part in parts] == [self.records // 2] * 2
        assert set(Counter(call[:2] for call in self.calls).values()) == {1}, "a delivery calls once"
        return Counter(call.number for call in self.calls)


def children(process: int, name: str) -> list[int]:
    listing = subprocess.run(["pgrep", "-P", str(process), "-f", name], capture_output=True, text=True, check=False)
    return [int(pid) for pid in listing.stdout.split()]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    found: list[Run] = []

    def start(records: int, master: str = "local-cluster[2,1,1024]", seconds: float = 0.5, kind: str = "rows") -> Run:
        found.append(Run(tmp_path, records, master, seconds, kind))
        return found[-1]

    yield start
    for run in found:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait()


def test_each_executor_has_a_companion_and_one_that_is_killed_is_followed_by_another(
    runs: Callable[..., Run],
) -> None:
    run = runs(800)
    run.until(lambda: len(run.companions()) == 2 and len(run.calls) >= 200)
    killed = run.companions()[0]
    before = [call for call in run.calls if call.process == killed]
    os.kill(killed, signal.SIGKILL)
    run.until(lambda: len(run.companions()) == 3)
    calls = run.check()
    again = {number for number, times in calls.items() if times > 1}
    assert again <= {call.number for call in before}
    assert len(again) <= 40
    assert set(calls.values()) <= {1, 2}


def test_calls_on_an_executor_that_is_killed_come_to_their_end(runs: Callable[..., Run]) -> None:
    """None is repeated, and the executor that follows has a companion."""
    run = runs(1_200, seconds=1.0)
    run.until(lambda: len(run.companions()) == 2 and len(run.calls) >= 200)
    os.kill(run.executors()[0], signal.SIGKILL)
    run.until(lambda: len(run.companions()) == 3)
    assert set(run.check().values()) == {1}


def test_calls_go_on_after_the_end_of_the_driver_and_count(runs: Callable[..., Run]) -> None:
    """Their answers are in the ledgers, so no record is called twice, and no companion stays."""
    killed = runs(200, seconds=2.0, kind="none")
    killed.until(lambda: len(killed.companions()) == 2 and len(killed.calls) >= 60)
    killed.process.kill()
    killed.process.wait()
    last = runs(200, "local[2]", kind="none")
    assert set(last.check().values()) == {1}
    assert not any(is_alive(process) for process in killed.companions())


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
