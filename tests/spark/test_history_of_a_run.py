"""What ``share-spark history`` tells of real runs: a handler that fails in each way, takes its worker down, and its
engine. In processes of their own, as these die."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from share_spark import cli
from share_spark.engine.attempts import ENGINE_LOST

PROGRAM = """
import os, signal, sys, time
from share_spark import Ack, ShareGroup, build_session
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog

place, driver = sys.argv[1], os.getpid()

def handle(record):
    failure = record.offset, record.delivery_count
    if failure == (0, 1):
        raise ValueError("no price")
    if failure == (0, 2):
        return Ack.release("busy", delay="1s")
    if failure == (1, 1):
        return Ack.reject("cancelled")
    if failure == (2, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if failure == (3, 1):
        time.sleep(20)
    if failure == (4, 1):
        os.kill(driver, signal.SIGKILL)
        time.sleep(10)
    return Ack.ACCEPT, {"id": record.offset}

spark = build_session("history of a run")
log = EmbeddedTopicLog(spark, place + "/topics")

def work_off():
    group = ShareGroup("billing", spark=spark, state=place + "/state").table(place + "/topics").subscribe("orders")
    group = group.process(handle, output="id bigint").to_delta(place + "/bills").options(**{
        "share.auto.offset.reset": "earliest", "history.retention": "7d", "delivery.timeout.ms": "2s",
        "share.record.lock.duration.ms": "1s"})
    assert group.trigger(availableNow=True).start().awaitTermination(120)

if not os.path.exists(place + "/topics"):
    log.create_topic("orders", 1)
    log.append("orders", [Message(b"%d" % number) for number in range(4)])
    work_off()
    log.append("orders", [Message(b"4")])
work_off()
spark.stop()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of which the first ends with its engine."""
    place = tmp_path_factory.mktemp("history")
    codes = [subprocess.run([sys.executable, "-c", PROGRAM, str(place)], check=False).returncode for _ in range(2)]
    assert codes == [-9, 0]
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offset", "told"),
    [
        (0, [("released", "1", "ValueError: no price"), ("released", "2", "busy"), ("accepted", "3", "")]),
        (1, [("rejected", "1", "cancelled")]),
        (2, [("released", "1", "worker lost"), ("accepted", "2", "")]),
        (3, [("released", "1", "time limit of 2000 ms exceeded"), ("accepted", "2", "")]),
        (4, [("lost", "1", ENGINE_LOST), ("accepted", "2", "")]),
    ],
)
def test_each_failure_is_told(
    place: Path, offset: int, told: list[tuple[str, str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    record = ["--group", "billing", "--topic", "orders", "--partition", "0", "--offset", str(offset)]
    assert cli.main(["history", "--location", str(place / "state"), *record]) == 0
    head, *lines = capsys.readouterr().out.splitlines()[2:-2]
    begins = [head.index(name) for name in ("event", "count", "member", "error")]
    events = [(line[begins[0] : begins[1]], line[begins[1] : begins[2]], line[begins[3] :]) for line in lines]
    ended = [tuple(map(str.strip, event)) for event in events if not event[0].startswith("acquired")]
    assert [event[:2] for event in ended] == [event[:2] for event in told]
    for (*_, error), (*_, wanted) in zip(ended, told, strict=True):
        assert error.startswith(wanted) if wanted else not error
