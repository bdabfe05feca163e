"""One engine, until it is done, in a process of its own: ``python -m tests.chaos.job ORDER`` with an Order as JSON.

Exit codes: 0 everything in the log is worked off, 1 a fault of the run (its last line names it), 3 stopped before.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from share_spark import ShareGroup, build_session
from share_spark.session import LOCAL_DEFAULTS
from tests.chaos.faults import CLOSING, Fault, arm
from tests.chaos.script import OUTPUT, Script, play

STOPPED = 3
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
GROUP = "chaos"


class Order(NamedTuple):
    """``directory``: has state, tables and files. ``broker``: empty for the embedded log. ``fault``: empty for none."""

    directory: str
    run: str
    topic: str = "orders"
    broker: str = ""
    master: str = "local[2]"
    fault: str = ""
    checkpoint: str = ""
    limit: int = 6
    max_records: int = 15

    @property
    def struck(self) -> Path:
        """There once the fault has come."""
        return Path(self.directory) / f"struck-{self.run}"

    @property
    def calls(self) -> Path:
        """Of all runs."""
        return Path(self.directory) / "calls"

    def place(self, name: str) -> str:
        """A table or directory."""
        return str(Path(self.directory) / name)


def share_group(order: Order, spark: Any, fault: Fault | None) -> ShareGroup:
    """The group, to be started."""
    script = Script(order.calls, order.struck, fault)

    def handle(record):  # type: ignore[no-untyped-def]
        return play(script, record)

    group = ShareGroup(GROUP, spark=spark, state=order.place("state"))
    group = group.kafka(order.broker) if order.broker else group.table(order.place("topics"))
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": 1_000,
        "share.delivery.count.limit": order.limit,
        "max.records.per.trigger": order.max_records,
        "share.coordinator.snapshot.update.records.per.snapshot": 4,
        "state.refresh": "1s",
        "history.retention": "7d",
    }
    if order.checkpoint:
        settings["checkpointLocation"] = order.checkpoint
    group = group.subscribe(order.topic).options(**settings).trigger(availableNow=True)
    return group.process(handle, output=OUTPUT).to_delta(order.place("out")).dead_letter(order.place("dead"))


def session(order: Order) -> Any:
    """As small as it can be, and quick to start."""
    root = str(Path(__file__).parents[2])
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return build_session(
        "chaos",
        order.master,
        {
            JAVA_OPTIONS: f"{LOCAL_DEFAULTS[JAVA_OPTIONS]} {quick}",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": root,
            "spark.local.dir": order.place("scratch"),
            "spark.sql.warehouse.dir": order.place("warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            # Who sleeps for a minute is not to be told by Spark that it is dead.
            "spark.network.timeout": "1200s",
        },
    )


def run(order: Order) -> int:
    """The exit code."""
    fault = Fault.parse(order.fault) if order.fault else None
    if fault is not None:
        arm(fault, order.struck)
    began = threading.Event()
    group = share_group(order, session(order), fault)
    query = group.listen(lambda _: began.set()).start()
    if fault is not None and fault.point in CLOSING:
        while query.isActive and not began.wait(0.1):
            pass
        query.stop()
    query.awaitTermination()
    return 0 if query.engine.done else STOPPED


def main() -> int:
    """The exit code; what went wrong is the last line."""
    try:
        return run(Order(**json.loads(sys.argv[1])))
    except Exception as fault:  # noqa: BLE001 - one line, as on the command line
        print(f"{type(fault).__name__}: {fault}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # no tidy end: it is one more thing that has to be survived
