"""The systems that are compared: what holds their records, and the programs that handle them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import DeltaTable, Schema

from tests.bench.workloads import create_topic, share_group_from_earliest
from tests.scoreboard.programs.surroundings import GROUP, TOPIC
from tests.scoreboard.records import AT_A_TIME, LIMIT, LOCK_MS
from tests.support.broker import Broker, die_with_parent, free_ports, running_broker

PARTITIONS = 4

SHARE_GROUPS = f"""
group.share.delivery.count.limit={LIMIT}
group.share.record.lock.duration.ms={LOCK_MS}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system that is ready. ``source``: the address of the broker, for the programs. ``commands``: one per program.
    ``feed``: adds the records with these numbers."""

    source: str
    commands: list[list[str]]
    feed: Callable[[Iterable[int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A system by its name. ``text``: what it is. ``open``: makes it ready in a directory. ``missing``: says what has
    to be installed first, if anything."""

    name: str
    text: str
    open: Callable[[Path], AbstractContextManager[System]]
    missing: Callable[[], str | None] = lambda: None


def numbers_in(table: Path) -> list[int]:
    """Return the numbers of the records in a table of rows or letters, each as often as it is there."""
    found = DeltaTable(table).to_pyarrow_table()
    column = found["number"] if "number" in found.column_names else found["value"].cast(pa.string())
    return [int(number) for number in column.to_pylist()]


# ---------------------------------------------------------------------------------------- records in Kafka


@contextmanager
def _with_share_spark(_place: Path) -> Iterator[System]:
    with _broker() as broker:
        yield _on_kafka(broker, "with_share_spark")


@contextmanager
def _with_foreach_batch(place: Path) -> Iterator[System]:
    _create_tables(place)
    with _broker() as broker:
        yield _on_kafka(broker, "with_foreach_batch")


@contextmanager
def _with_share_consumer(place: Path) -> Iterator[System]:
    _create_tables(place)
    with _broker() as broker:
        share_group_from_earliest(broker.bootstrap, GROUP)
        yield _on_kafka(broker, "with_share_consumer")


@contextmanager
def _at_the_gateway(place: Path) -> Iterator[System]:
    """The consumer's program is that for Kafka; the gateway is a second one, and killed with it."""
    _create_tables(place)
    with _broker() as broker:
        gateway = f"127.0.0.1:{free_ports(1)[0]}"
        command = [sys.executable, "-m", "share_spark.cli", "gateway", "--state", str(place / "state")]
        command += ["--bootstrap-server", broker.bootstrap, "--listen", gateway, "--starting", "earliest"]
        command += ["--option", f"share.record.lock.duration.ms={LOCK_MS}"]
        on_kafka = _on_kafka(broker, "with_share_consumer")
        yield System(source=gateway, commands=[command, *on_kafka.commands], feed=on_kafka.feed)


@contextmanager
def _broker() -> Iterator[Broker]:
    with running_broker(more_settings=SHARE_GROUPS) as broker:
        create_topic(broker.bootstrap, TOPIC, PARTITIONS)
        yield broker


def _on_kafka(broker: Broker, program: str) -> System:
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def feed(numbers: Iterable[int]) -> None:
        for number in numbers:
            producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        producer.flush(30)

    command = [sys.executable, "-m", f"tests.scoreboard.programs.{program}"]
    return System(source=broker.bootstrap, commands=[command], feed=feed)


def _create_tables(place: Path) -> None:
    for table in ("rows", "letters"):
        DeltaTable.create(place / table, Schema.from_arrow(pa.schema([("number", pa.int64())])))


# ----------------------------------------------------------------------------------------- records in Redis


@contextmanager
def _with_celery(place: Path) -> Iterator[System]:
    from celery import Celery

    _create_tables(place)
    with _redis(place) as address:
        app = Celery(broker=address)
        app.conf.task_default_queue = TOPIC

        def feed(numbers: Iterable[int]) -> None:
            for number in numbers:
                app.send_task("handle", (number,))

        worker = ["-A", "tests.scoreboard.programs.with_celery", "worker", "--concurrency", str(AT_A_TIME)]
        yield System(source=address, commands=[[sys.executable, "-m", "celery", *worker]], feed=feed)


@contextmanager
def _redis(place: Path) -> Iterator[str]:
    """Run a server, and yield its address."""
    port = free_ports(1)[0]
    command = [*die_with_parent(), "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(place)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


def _celery_missing() -> str | None:
    if importlib.util.find_spec("celery") is None:
        return "Celery: make scoreboard installs it"
    return None if shutil.which("redis-server") else "redis-server: make redis, on Debian"


CONTESTANTS = [
    Contestant(name="share_spark", text="share_spark, a handler in Spark", open=_with_share_spark),
    Contestant(name="gateway", text="`ShareConsumer` → Delta, at share_spark's gateway", open=_at_the_gateway),
    Contestant(name="kafka", text="`ShareConsumer` → Delta, Kafka 4.2's share group", open=_with_share_consumer),
    Contestant(name="spark", text="Spark's `foreachBatch` with `txnAppId`", open=_with_foreach_batch),
    Contestant(name="celery", text="Celery on Redis, `acks_late` → Delta", open=_with_celery, missing=_celery_missing),
]
