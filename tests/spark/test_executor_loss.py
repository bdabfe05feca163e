"""An executor is killed while a share group runs: the job goes on by itself, and every record is finished.

On a cluster of two executors in a process of its own. The live state is cached on the executors, so one of them takes
half of it along; what its handler was doing is released and delivered again with a higher count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

RECORDS = 200

PROGRAM = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from share_spark.state.state_view import read_state
from share_spark.topics.topic_producer import Message
from share_spark.topics.topic_table import EmbeddedTopicLog
from share_spark.api.share_group import ShareGroup
from share_spark.spark.session import build_session

directory, records = sys.argv[1], int(sys.argv[2])
conf = {"spark.executor.memory": "512m", "spark.local.dir": directory + "/scratch", "spark.sql.shuffle.partitions": "2"}
spark = build_session("executor loss", "local-cluster[2,1,1024]", conf)

def executors():
    driver = spark._jvm.java.lang.ProcessHandle.current().pid()
    command = ["pgrep", "-P", str(driver), "-f", "CoarseGrainedExecutorBackend"]
    listing = subprocess.run(command, capture_output=True, text=True)
    return [int(pid) for pid in listing.stdout.split()]

def slow(record):
    with open(directory + "/calls", "a") as file:
        print(record.offset, record.delivery_count, file=file, flush=True)
    time.sleep(0.01)

killed = []
def kill_one(progress):
    if not killed and progress.accepted:
        killed.append(executors()[0])
        os.kill(killed[0], signal.SIGKILL)

log = EmbeddedTopicLog(spark, directory + "/topics")
log.create_topic("orders", 1)
log.append("orders", [Message(b"x")] * records)
group = ShareGroup("billing", spark=spark, state=directory + "/state").table(directory + "/topics").subscribe("orders")
options = {"share.auto.offset.reset": "earliest", "max.records.per.trigger": records // 4}
query = group.process(slow).options(**options).listen(kill_one).trigger(availableNow=True).start()
ended = query.awaitTermination(150)
row = read_state(spark, directory + "/state", "billing").collect()[0]
print("RESULT", json.dumps([ended, len(killed), row.start_offset, row.end_offset, row.acquired]))
spark.stop()
"""


@pytest.mark.long
def test_an_executor_is_killed_and_the_job_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path), str(RECORDS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    assert line is not None, done.stderr[-3000:]
    assert json.loads(line.removeprefix("RESULT ")) == [True, 1, RECORDS, RECORDS, 0]
    calls = Counter(tuple(map(int, call.split())) for call in (tmp_path / "calls").read_text().splitlines())
    assert set(calls.values()) == {1}, "one acquisition calls at most once"
    assert {offset for offset, _ in calls} == set(range(RECORDS))
