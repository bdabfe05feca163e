"""From the start of the process to the first output row in a Delta table: `share-spark run` on Kafka, against a plain
Structured Streaming program with the same session, source and sink. What is on the disk may be in the machine's cache,
as it is for a job that was restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from share_spark import Ack
from share_spark.delta.commit_files import CommitFiles
from share_spark.spark.public_files import LocalFiles
from tests.bench.harness import compare, report, say, seconds_in_turn
from tests.bench.workloads import Scratch, create_topic, fill, plain_source

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
RECORDS, PARTITIONS = 1_000, 4
LONGEST_S = 180


def run(_spark: SparkSession, bootstrap: str) -> bool:
    """Measure and report; is the goal met? The session of the benchmarks idles meanwhile."""
    scratch, topic = Scratch(), f"cold-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, PARTITIONS)
    fill(bootstrap, topic, PARTITIONS, RECORDS, 100)
    say(f"cold start: {RECORDS:,} records wait in Kafka, {ROUNDS} rounds in turn")

    def ours() -> float:
        table = scratch.fresh("ours")
        return seconds_to_first_row(share_spark_command(bootstrap, topic, table, scratch.fresh("state")), table)

    def plain() -> float:
        table = scratch.fresh("plain")
        command = [sys.executable, "-m", __name__, bootstrap, topic, table, scratch.fresh("checkpoint")]
        return seconds_to_first_row(command, table)

    seconds = seconds_in_turn({"ours": ours, "plain": plain}, ROUNDS)
    scratch.close()
    measure = compare("start of the process to the first row, seconds", seconds["ours"], seconds["plain"], "<= 1.1")
    return report("cold_start", "Cold start", [measure])


def share_spark_command(bootstrap: str, topic: str, table: str, state: str) -> list[str]:
    """`share-spark run`."""
    options = {
        "--group": "cold",
        "--topic": topic,
        "--bootstrap-server": bootstrap,
        "--handler": f"{__name__}:handle",
        "--output-schema": "size bigint",
        "--to-delta": table,
        "--state": state,
        "--starting": "earliest",
    }
    return [sys.executable, "-m", "share_spark.cli", "run", *(text for pair in options.items() for text in pair)]


def handle(record: Any) -> Any:
    """The handler of both."""
    return Ack.ACCEPT, {"size": len(record.value)}


def seconds_to_first_row(command: Sequence[str], table: str) -> float:
    """Until a commit of the table adds data; then the process is killed."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not has_rows(table):
            assert process.poll() is None, f"ended with {process.returncode}"
            assert time.monotonic() - began < LONGEST_S, "no row"
            time.sleep(0.02)
        return time.monotonic() - began
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_rows(table: str) -> bool:
    """Does a commit of its log add data?"""
    files, version = CommitFiles(LocalFiles(), table), 0
    while Path(table).exists() and (commit := files.read(version)) is not None:
        if commit.adds_data:
            return True
        version += 1
    return False


def plain(bootstrap: str, topic: str, table: str, checkpoint: str) -> None:
    """Plain Structured Streaming, the handler called per row."""
    from collections import namedtuple

    from share_spark import build_session

    record = namedtuple("record", ["value"])

    def handled(frames: Any) -> Any:
        import pandas as pd

        for frame in frames:
            yield pd.DataFrame([handle(record(value))[1] for value in frame["value"]], columns=["size"])

    spark = build_session("cold start")
    rows = plain_source(spark, bootstrap, topic, None).select("value").mapInPandas(handled, "size bigint")
    writer = rows.writeStream.format("delta").option("checkpointLocation", checkpoint)
    writer.start(table).awaitTermination()


if __name__ == "__main__":
    plain(*sys.argv[1:])
