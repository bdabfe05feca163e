"""The world of a group under attack, as its supervisor sees it: producing, starting engines, judging.

What is checked is what any user could see: the tables, the log's ends, the file of calls, exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from share_spark import EmbeddedTopicLog, read_state
from share_spark.delta.location import Location
from share_spark.topics.topic_producer import Message
from tests.chaos.faults import Fault
from tests.chaos.job import GROUP, Order
from tests.chaos.judgement import Calls, Evidence, Offset, faults_in
from tests.chaos.script import OUTPUT, OrderEvent
from tests.chaos.sessions import living, send_to_session
from tests.support.late_service import LateService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
KEYS = 3
"""Of a partition."""


KeyAndValue = tuple[bytes | None, str]
"""Of a record."""


class Producer(Protocol):
    """The supervisor's side of a topic log. ``broker``: empty for the embedded log."""

    broker: str

    def create(self, topic: str, partitions: int) -> None: ...
    def put(self, topic: str, records: Mapping[int, Sequence[KeyAndValue]]) -> None: ...
    def ends(self, topic: str) -> Mapping[int, int]: ...


class EmbeddedProducer:
    """Producer to a topic table."""

    broker = ""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._log = EmbeddedTopicLog(spark, str(directory / "topics"))

    def create(self, topic: str, partitions: int) -> None:
        self._log.create_topic(topic, partitions)

    def put(self, topic: str, records: Mapping[int, Sequence[KeyAndValue]]) -> None:
        messages = [Message(value.encode(), key, at) for at, some in records.items() for key, value in some]
        self._log.append(topic, messages)

    def ends(self, topic: str) -> Mapping[int, int]:
        return {at: end.end_offset for at, end in self._log.log_ends(topic).items()}


@dataclass(frozen=True, slots=True)
class Engine:
    """One process of the group."""

    process: subprocess.Popen[bytes]
    output: Path
    order: Order

    @classmethod
    def start(cls, order: Order) -> Engine:
        """In a session of its own."""
        output = Path(order.directory) / f"output-{order.run}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-m", "tests.chaos.job", json.dumps(order._asdict())]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=order.directory, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        return cls(process, output, order)

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        return (self.text.strip().splitlines() or [""])[-1]

    @property
    def struck(self) -> bool:
        """Its fault has come."""
        return self.order.struck.exists()

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs. It is not reaped here, so that its pid remains the name of its session."""
        if self.process.returncode is not None:
            return self.process.returncode
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def end(self) -> int:
        """The exit code. Raises TimeoutError if it hangs."""
        deadline = time.monotonic() + TIMEOUT_S
        while (code := self.code) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {self.order.run} hangs after {self.order.fault!r}: {self.last_line}")
            time.sleep(0.05)
        return code

    def wait_until_paused(self) -> None:
        """Until all of it has stopped."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.struck or any(one.state != "T" for one in living(self.process.pid)):
            assert self.code is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def resume(self) -> None:
        send_to_session(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Whatever is left of it, workers and executors included. Afterwards its pid may belong to another process."""
        if self.process.returncode is None:
            send_to_session(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass(slots=True)
class ChaosRun:
    """``values``: what every record says. ``paused_in_handler``: see ``Evidence``. ``ordered``: records that come have
    keys, and engines deliver in order of these; while others are unfinished it must not change. ``service``: which the
    handler asks, if it is one that waits."""

    spark: SparkSession
    directory: Path
    producer: Producer
    topic: str = "orders"
    partitions: int = 2
    limit: int = 6
    values: dict[Offset, str] = field(default_factory=dict)
    paused_in_handler: bool = False
    ordered: bool = False
    keys: dict[Offset, bytes] = field(default_factory=dict)
    engines: list[Engine] = field(default_factory=list)
    service: LateService | None = None

    @classmethod
    @contextmanager
    def opened(cls, spark: SparkSession, directory: Path, producer: Producer, **more: Any) -> Iterator[ChaosRun]:
        """With its topic; nothing of it runs any more afterwards."""
        directory.mkdir(parents=True, exist_ok=True)
        world = cls(spark, directory, producer, **more)
        producer.create(world.topic, world.partitions)
        Location.parse(str(directory / "out")).create(spark, OUTPUT, partitioned_by=["part"])
        try:
            yield world
        finally:
            world.clear()

    def produce(self, values: Sequence[str]) -> None:
        """In turn to the partitions."""
        ends = self.producer.ends(self.topic)
        new = {
            (number % self.partitions, ends[number % self.partitions] + number // self.partitions): value
            for number, value in enumerate(values)
        }
        self.values |= new
        self.keys |= {(at, offset): b"%d" % (offset % KEYS) for at, offset in new} if self.ordered else {}
        records = {
            at: [(self.keys.get(place), value) for place, value in new.items() if place[0] == at]
            for at in range(self.partitions)
        }
        self.producer.put(self.topic, records)

    def start(self, fault: Fault | None = None, **more: Any) -> Engine:
        """One engine more."""
        order = Order(
            directory=str(self.directory),
            run=str(len(self.engines)),
            topic=self.topic,
            broker=self.producer.broker,
            fault=str(fault) if fault is not None else "",
            limit=self.limit,
            ordered=self.ordered,
            service=self.service.port if self.service is not None else 0,
        )._replace(**more)
        engine = Engine.start(order)
        self.engines.append(engine)
        return engine

    def run(self, fault: Fault | None = None, **more: Any) -> Engine:
        """Start it and wait for its end."""
        engine = self.start(fault, **more)
        engine.end()
        return engine

    def supervise(self, restarts: int, **more: Any) -> int:
        """Run until an engine ends well; how many did not."""
        for count in range(restarts):
            if self.run(**more).end() == 0:
                return count
        raise AssertionError(f"no end after {restarts} runs: {self.engines[-1].text}")

    def clear(self) -> None:
        """End all processes."""
        for engine in self.engines:
            engine.kill()

    def shares(self) -> list[Any]:
        """The state, exact, from the log."""
        return sorted(read_state(self.spark, str(self.directory / "state"), GROUP).drop("updated_at").collect())

    def outputs(self) -> list[tuple[int, int, int]]:
        """partition, offset, delivery count of each row of the sink."""
        return sorted(tuple(row) for row in self._table("out").select("part", "off", "cnt").collect())

    def calls(self, file_name: str = "calls") -> Calls:
        """Of the handler, by whatever engine."""
        file = self.directory / file_name
        lines = file.read_text().splitlines() if file.exists() else []
        calls = [tuple(map(int, line.split())) for line in lines]
        return calls if self.service is None else list(_charged(calls, self.service.throttled))  # type: ignore[arg-type]

    def _order_events(self) -> list[OrderEvent]:
        file = self.directory / "order"
        return [OrderEvent.parse(line) for line in file.read_text().splitlines()] if file.exists() else []

    def faults(self) -> list[str]:
        """What is wrong, now that a run has ended well; empty if nothing is."""
        letters = self._table("dead").select("partition", "offset", "delivery_count", "reason", "error").collect()
        status = self._table("state/share_partition_state").select("partition", "start_offset").collect()
        journal = self.directory / "state" / "share_state_log" / "_share_spark" / "dead letters" / GROUP
        evidence = Evidence(
            values=self.values,
            ends=dict(self.producer.ends(self.topic)),
            windows={row.partition: (row.start_offset, row.end_offset) for row in self.shares()},
            status={row.partition: row.start_offset for row in status},
            calls=self.calls(),
            keys=self.keys,
            order=self._order_events(),
            outputs=self.outputs(),
            letters=[tuple(row) for row in letters],
            announced=[file.name for file in journal.glob("[0-9]*")],
            kills=sum(engine.struck and engine.order.fault != "" for engine in self.engines),
            refusals=sum(engine.last_line.startswith("SinkError") for engine in self.engines),
            limit=self.limit,
            paused_in_handler=self.paused_in_handler,
        )
        return faults_in(evidence)

    def _table(self, name: str) -> Any:
        return self.spark.read.format("delta").load(str(self.directory / name))


def _charged(
    calls: Sequence[tuple[int, int, int]], throttled: Mapping[tuple[int, int, int], int]
) -> Iterator[tuple[int, int, int]]:
    """Leave out calls that the service has throttled, but one of those that have no other: its caller may not have
    heard of that."""
    left = {call: max(1, number - throttled.get(call, 0)) for call, number in Counter(calls).items()}
    for call in calls:
        if left[call]:
            left[call] -= 1
            yield call
