"""``make chaos``: kills at every point of the micro-batch, on the embedded log and on a real Kafka.

Records are produced, engines are killed one after the other, then one runs to its end: after that everything is judged.
Exit code 1, and a line to reproduce it, if anything is wrong.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from share_spark import build_session
from share_spark.audit.verify import verify, verify_lines
from tests.chaos.faults import DRIVER, EXECUTOR, IN_HANDLER, IN_OUTPUT, JVM, POINTS, PUT, SESSION, WORKER, Fault
from tests.chaos.job import GROUP
from tests.chaos.kafka import KafkaProducer
from tests.chaos.scenarios import CLUSTER, SCENARIOS, Scenario
from tests.chaos.script import ALWAYS_FAIL, mixed
from tests.chaos.world import ChaosRun, EmbeddedProducer, Producer
from tests.support.broker import running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = ("embedded", "kafka")
RECORDS, IN_A_ROW, TRIES = 30, 3, 4
LONGEST_DELAY_MS = 600
HANDLER = "handler"
"""The actor of a fault where no process is killed from outside."""

HALF_KILLS = [
    *(("after the append", who) for who in (JVM, DRIVER)),
    *(("during the append", who) for who in (JVM, DRIVER)),
    *(("after the output is journaled", who) for who in (JVM, DRIVER)),
    *(("during the append of the output", who) for who in (JVM, DRIVER)),
    *((PUT, who) for who in (JVM, DRIVER)),
    ("after dead letters are appended", JVM),
    ("during dead letters", DRIVER),
    ("during delivery", JVM),
    ("during delivery", DRIVER),
    ("while closing", JVM),
    ("after the micro-batch", JVM),
    *((IN_HANDLER, who) for who in (SESSION, WORKER, EXECUTOR)),
    *((IN_OUTPUT, who) for who in (SESSION, WORKER, EXECUTOR)),
]
"""Beside the whole session at every point: only the JVM, only the driver's Python, a worker, an executor."""


@dataclass(slots=True)
class Tally:
    """What became of the kills at one point on one log."""

    kills: int = 0
    restarts: int = 0
    wrong: list[str] = field(default_factory=list)


Tallies = dict[tuple[str, str, str], Tally]
"""By point, who was killed, and source."""


def planned(kills: int, only: Fault | None, sources: Sequence[str], rng: random.Random) -> Iterator[tuple[str, Fault]]:
    """(source, fault): every point and scenario once, on the sources in turn; then on the next source, and so on."""
    places = [(point, SESSION) for point in POINTS] + HALF_KILLS + [(name, HANDLER) for name in SCENARIOS]
    rng.shuffle(places)
    rounds = itertools.count() if only is None else itertools.repeat(0)
    endless = ((number, turn, place) for turn in rounds for number, place in enumerate(places))
    for number, turn, place in itertools.islice(endless, kills):
        yield sources[(number + turn) % len(sources)], only or _fault(*place, rng)


def _fault(point: str, who: str, rng: random.Random) -> Fault:
    if point in SCENARIOS:
        return Fault(point, who)
    once = point in (IN_HANDLER, IN_OUTPUT) or POINTS[point].once
    delayed = point.startswith(("during", "while"))
    return Fault(point, who, 1 if once else rng.choice((1, 1, 2)), rng.randrange(10, LONGEST_DELAY_MS) * delayed)


@dataclass(slots=True)
class Campaign:
    """All kills on one log. ``pending``: what is still to be done. ``producer``: to the topics of a directory."""

    source: str
    world: ChaosRun
    producer: Callable[[Path], Producer]
    tallies: Tallies
    pending: list[Fault]
    rounds: int = 0

    def run(self) -> None:
        """Until nothing is pending."""
        scenarios = [fault for fault in self.pending if fault.point in SCENARIOS]
        self.pending = [fault for fault in self.pending if fault.point not in SCENARIOS]
        for number, fault in enumerate(scenarios):
            self._scenario(fault, f"scenario-{number}")
        while self.pending:
            faults, self.pending = self.pending[:IN_A_ROW], self.pending[IN_A_ROW:]
            self._round(faults)
        if self.rounds:
            self._verify(self.world)

    def _verify(self, world: ChaosRun) -> None:
        report = verify(world.spark, str(world.directory / "state"), GROUP)
        if not report.agrees:
            self._blame("verify", ["\n".join(verify_lines(report))])

    def _scenario(self, fault: Fault, name: str) -> None:
        """In a world of its own, for nothing else may happen there."""
        began, place = time.monotonic(), self.world.directory / name
        topic = f"{self.world.topic}-{name}"
        with ChaosRun.opened(self.world.spark, place, self.producer(place), topic=topic) as world:
            wrong = _outcome(SCENARIOS[fault.point], world)
            tally = self._tally(fault)
            tally.kills += 1
            tally.restarts += len(world.engines) - 1
            if not wrong:
                self._verify(world)
        tally.wrong += wrong
        self._print(wrong, began, fault.point)

    def _print(self, wrong: Sequence[str], began: float, names: str) -> None:
        for text in wrong:
            print(f"  WRONG {text}", flush=True)
        print(f"{self.source:9} {'WRONG' if wrong else 'ok':5} {time.monotonic() - began:5.0f} s  {names}", flush=True)

    def _round(self, faults: Sequence[Fault]) -> None:
        began = time.monotonic()
        self.world.ordered = self.rounds % 2 == 1  # what was there before is finished
        self.world.produce([*mixed(RECORDS), *[ALWAYS_FAIL] * (self.rounds % 3 == 0)])
        self.rounds += 1
        struck = self._hit(faults)
        wrong = [*self._to_the_end(struck), *self.world.faults()]
        for fault in struck:
            self._tally(fault).wrong += wrong
        self._print(wrong, began, ", ".join(f"{fault.point} ({fault.who})" for fault in struck))

    def _hit(self, faults: Sequence[Fault]) -> list[Fault]:
        """Those that came; the others are tried again in a later round, the first time that an engine comes there, or
        as the first of their round, before others have worked off the records that they need."""
        struck = []
        for position, fault in enumerate(faults):
            master = {"master": CLUSTER} if fault.who == EXECUTOR else {}
            engine = self.world.run(fault, **master)
            if engine.struck:
                struck.append(fault)
                self._tally(fault).kills += 1
            elif fault.nth > 1 or fault.delay_ms > 1:
                self.pending.append(fault._replace(nth=1, delay_ms=fault.delay_ms // 4))
            elif position > 0:
                self.pending.insert(0, fault)
            else:
                self._blame(fault.point, [f"{fault} was not reached: {engine.last_line}"])
            for earlier in struck[:-1]:
                self._tally(earlier).restarts += 1
            if engine.end() == 0:
                self.pending.extend(faults[position + 1 :])
                break
        return struck

    def _to_the_end(self, struck: Sequence[Fault]) -> Iterator[str]:
        """Runs without a fault."""
        for _ in range(TRIES):
            engine = self.world.run()
            for fault in struck:
                self._tally(fault).restarts += 1
            if engine.end() == 0:
                return
            yield f"a run without a fault ended with {engine.end()}: {engine.last_line}"
        yield f"no end after {TRIES} runs"

    def _tally(self, fault: Fault) -> Tally:
        return self.tallies.setdefault((fault.point, fault.who, self.source), Tally())

    def _blame(self, point: str, wrong: Sequence[str]) -> None:
        self.tallies.setdefault((point, "", self.source), Tally()).wrong += wrong
        print(*wrong, sep="\n", flush=True)


def _outcome(scenario: Scenario, world: ChaosRun) -> list[str]:
    try:
        return scenario(world)
    except (AssertionError, TimeoutError) as fault:
        return [str(fault)]


def summary(tallies: Tallies, seed: int) -> Iterator[str]:
    """A line for each point, and for what went wrong how to see it again."""
    yield f"\n{'point':36} {'killed':9} {'source':9} {'kills':>5} {'restarts':>8}  ok"
    order = [*POINTS, IN_HANDLER, IN_OUTPUT, *SCENARIOS, "verify"]
    for place, tally in sorted(tallies.items(), key=lambda entry: (order.index(entry[0][0]), *entry[0][1:])):
        point, who, source = place
        verdict = "WRONG" if tally.wrong else "ok"
        yield f"{point:36} {who:9} {source:9} {tally.kills:5} {tally.restarts:8}  {verdict}"
    kills = sum(tally.kills for tally in tallies.values())
    faulty = {place: tally for place, tally in tallies.items() if tally.wrong}
    yield f"\n{kills} kills, {len(faulty)} points with something wrong"
    for (point, who, source), tally in faulty.items():
        command = f"python -m tests.chaos --kills 3 --source {source} --only '{point}/{who}' --seed {seed}"
        yield f"  {tally.wrong[0]}\n    {command}"


def session(directory: Path) -> SparkSession:
    """The supervisor's own."""
    conf = {"spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.sql.shuffle.partitions": "2"}
    return build_session("chaos supervisor", "local[2]", {**conf, "spark.driver.memory": "1g"})


def producer_to(source: str, spark: SparkSession, stack: ExitStack) -> Callable[[Path], Producer]:
    """To the topics of a directory; of the broker, which has them all."""
    if source == "embedded":
        return functools.partial(EmbeddedProducer, spark)
    producer = KafkaProducer(stack.enter_context(running_broker()).bootstrap)
    return lambda _: producer


def options() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="kill engines and see what comes of it")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--source", choices=SOURCES, action="append", help="default: both")
    parser.add_argument("--only", type=Fault.parse, metavar="POINT[/WHO[/NTH[/DELAY_MS]]] or SCENARIO")
    return parser.parse_args()


def main() -> int:
    """0 if nothing is wrong."""
    given: Any = options()
    rng, tallies = random.Random(given.seed), Tallies()
    sources = given.source or list(SOURCES)
    plan = list(planned(given.kills, given.only, sources, rng))
    directory = Path(tempfile.mkdtemp(prefix="share_spark-chaos-"))
    with ExitStack() as stack:
        spark = session(directory)
        stack.callback(spark.stop)
        for source in sources:
            place = directory / source
            producer = producer_to(source, spark, stack)
            world = stack.enter_context(ChaosRun.opened(spark, place, producer(place)))
            Campaign(source, world, producer, tallies, [fault for where, fault in plan if where == source]).run()
    print(*summary(tallies, given.seed), sep="\n", flush=True)
    wrong = any(tally.wrong for tally in tallies.values())
    if wrong:
        print(f"everything stays in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
