"""One engine, until it is done, in a process of its own: ``python -m tests.chaos.job ORDER`` with an Order as JSON.

Exit codes: 0 everything in the log is worked off, 1 a fault of the run (its last line names it), 3 stopped before.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from share_spark import ShareGroup, build_session
from share_spark.model.errors import ShareError
from share_spark.spark.session import java_options
from tests.chaos.asking import ask
from tests.chaos.broken import broken_handler
from tests.chaos.faults import CLOSING, Fault, arm, arm_worker
from tests.chaos.script import OUTPUT, Script, play

STOPPED = 3
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
GROUP = "chaos"
TIMEOUT_MS = 2_000
"""Of a call, where one of them hangs. Far more than the others need, on a busy machine, too."""


class Order(NamedTuple):
    """``directory``: has state, tables and files. ``broker``: empty for the embedded log. ``fault``: empty for none.
    ``broken``: which broken handler, empty for the one that plays the script. ``starts``: how often the group is
    started; only the last time counts. ``ordered``: by key. ``service``: its port; the handler asks it, and waits, 0:
    it does not. ``in_flight``: its calls at a time."""

    directory: str
    run: str
    topic: str = "orders"
    broker: str = ""
    master: str = "local[2]"
    fault: str = ""
    checkpoint: str = ""
    limit: int = 6
    max_records: int = 15
    timeout_ms: int = 300_000
    broken: str = ""
    starts: int = 1
    ordered: bool = False
    service: int = 0
    in_flight: int = 8

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


def handler(order: Order, fault: Fault | None) -> Callable[..., Any]:
    """What the group does with a record."""
    if order.broken:
        return broken_handler(order.broken, Path(order.directory))
    script = Script(order.calls, Path(order.place("order")), order.struck, fault)
    if order.service:

        async def handle_late(record):  # type: ignore[no-untyped-def]
            return await ask(script, order.service, record)

        return handle_late

    def handle(record):  # type: ignore[no-untyped-def]
        arm_worker(fault, order.struck)
        return play(script, record)

    return handle


def share_group(order: Order, spark: Any, fault: Fault | None) -> ShareGroup:
    """The group, to be started."""
    group = ShareGroup(GROUP, spark=spark, state=order.place("state"))
    group = group.kafka(order.broker) if order.broker else group.table(order.place("topics"))
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": 1_000,
        "share.delivery.count.limit": order.limit,
        "delivery.timeout.ms": order.timeout_ms,
        "delivery.max.in.flight": order.in_flight,
        "max.records.per.trigger": order.max_records,
        "share.coordinator.snapshot.update.records.per.snapshot": 4,
        "state.refresh": "1s",
        "history.retention": "7d",
        "delivery.order": "key" if order.ordered else "none",
    }
    if order.checkpoint:
        settings["checkpointLocation"] = order.checkpoint
    group = group.subscribe(order.topic).options(**settings).trigger(availableNow=True)
    return (
        group.process(handler(order, fault), output=OUTPUT)
        .to_delta(order.place("out"))
        .dead_letter(order.place("dead"))
    )


def session(order: Order) -> Any:
    """As small as it can be, and quick to start."""
    root = str(Path(__file__).parents[2])
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return build_session(
        "chaos",
        order.master,
        {
            JAVA_OPTIONS: java_options(quick),
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": root,
            "spark.local.dir": order.place("scratch"),
            "spark.sql.warehouse.dir": order.place("warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            # Each plan runs a few times: to compile it costs more than it does.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            # A process that is paused for a minute must not be declared lost by Spark.
            "spark.network.timeout": "1200s",
        },
    )


def run(order: Order) -> int:
    """The exit code."""
    fault = Fault.parse(order.fault) if order.fault else None
    if fault is not None:
        arm(fault, order.struck)
    group = share_group(order, session(order), fault)
    for _ in range(1, order.starts):
        with contextlib.suppress(ShareError):
            run_once(group, fault)
    return run_once(group, fault)


def run_once(group: ShareGroup, fault: Fault | None) -> int:
    """The exit code. Raises what the query has ended with."""
    began = threading.Event()
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
