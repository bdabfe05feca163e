"""Probes that try each capability once, for real, in a temporary directory of this machine: for `share-spark doctor`,
and for the canary tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from share_spark.spark import capabilities as known
from share_spark.spark import functions as F
from share_spark.spark.capabilities import ALL, Capability, Verdict, give_up, is_allowed, own_line, verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Place(NamedTuple):
    """A session and an empty directory with a Delta table ``table`` of one row."""

    spark: SparkSession
    directory: str

    @property
    def table(self) -> str:
        """The directory of the table."""
        return f"{self.directory}/table"


class ProbeError(Exception):
    """Raised if the private API is there and behaves differently from before."""


Probe = Callable[[Place], None]


def verdicts(spark: SparkSession) -> list[Verdict]:
    """Try every capability; return the verdicts. This process gives up those that fail. Takes a few seconds."""
    directory = tempfile.mkdtemp(prefix="share-spark-")
    try:
        place = prepared(spark, directory)
        for capability in ALL:
            if is_allowed(capability):
                _try(capability, place)
        return [verdict(capability) for capability in ALL]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def prepared(spark: SparkSession, directory: str) -> Place:
    """Make the table of the probes."""
    place = Place(spark, f"file://{directory}")
    spark.range(0, 1, 1, 1).write.format("delta").save(place.table)
    return place


def probe(capability: Capability, place: Place) -> None:
    """Try one capability. Raises whatever the private API raises, and ProbeError if it behaves differently."""
    PROBES[capability.name](place)


def _try(capability: Capability, place: Place) -> None:
    try:
        probe(capability, place)
    except Exception as fault:  # noqa: BLE001 - whatever a release that is not known makes of it
        give_up(capability, own_line(fault))


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise ProbeError(f"found {found!r} instead of {wanted!r}")


# --------------------------------------------------------------------------------------------------- the probes


def _files(place: Place) -> None:
    from share_spark.spark.hadoop_files import HadoopFiles

    files = HadoopFiles(place.spark, place.directory)
    at = f"{place.directory}/files/one"
    _expect(files.create(at, b"first"), True)
    _expect(files.create(at, b"second"), False)
    files.write(f"{place.directory}/files/.aside", b"third")
    files.rename(f"{place.directory}/files/.aside", at)
    _expect((files.read(at), files.names(f"{place.directory}/files")), (b"third", ["one"]))
    _expect(files.total_size(f"{place.directory}/files").bytes, 5)
    _expect(files.modified_at_ms(at) is not None, True)
    files.delete(at)
    _expect((files.exists(at), files.read(at)), (False, None))


def _partial_writes(place: Place) -> None:
    from share_spark.spark.hadoop_files import HadoopFiles

    _expect(HadoopFiles(place.spark, place.directory).ask_delta(f"{place.directory}/files/one"), True)


def _log_store(place: Place) -> None:
    from share_spark.spark.hadoop_files import HadoopFiles

    files, at = HadoopFiles(place.spark, place.directory), f"{place.directory}/files/{0:020d}.json"
    files.write(f"{place.directory}/files/beside", b"")
    _expect((files.commit_by_delta(at, b"first\n"), files.commit_by_delta(at, b"second\n")), (True, False))
    _expect(files.read(at), b"first\n")


def _snapshot(place: Place) -> None:
    from share_spark.spark.delta_log import newest

    found = newest(place.spark, place.table)
    _expect((int(found.version()) >= 0, bool(str(found.metadata().id()))), (True, True))
    _expect(int(newest(place.spark, f"{place.directory}/nothing").version()), -1)


def _transactions(place: Place) -> None:
    from share_spark.spark.delta_log import NONE, transaction_number

    _expect(transaction_number(place.spark, place.table, "nobody"), NONE)
    rows = place.spark.range(0, 1, 1, 1).write.format("delta").mode("append")
    rows.option("txnAppId", "probe").option("txnVersion", "7").save(place.table)
    _expect(transaction_number(place.spark, place.table, "probe"), 7)


def _checkpoints(place: Place) -> None:
    from share_spark.spark.delta_log import delta_log, newest

    found = newest(place.spark, place.table)
    delta_log(place.spark, place.table).checkpoint(found, place.spark._jvm.scala.Option.empty())  # type: ignore[union-attr]
    _expect(int(newest(place.spark, place.table).version()) >= 0, True)


def _table_files(place: Place) -> None:
    from share_spark.spark.delta_log import newest

    columns = newest(place.spark, place.table).allFiles().toDF().columns()
    _expect({"partitionValues", "size"} <= set(columns), True)


def _log_cleanup(place: Place) -> None:
    from share_spark.spark.delta_log import clean_log_privately

    clean_log_privately(place.spark, place.table, has_checkpoint=False, retention_ms=3_600_000)
    log = f"{place.table}/_delta_log".removeprefix("file://")
    _expect(any(".checkpoint" in path.name for path in Path(log).iterdir()), True)
    clean_log_privately(place.spark, place.table, has_checkpoint=True, retention_ms=None)


def _cloned(place: Place) -> None:
    from share_spark.spark.frames import clone

    before = place.spark.conf.get("spark.sql.shuffle.partitions")
    session = clone(place.spark)
    _expect(session.conf.get("spark.sql.shuffle.partitions"), before)
    session.conf.set("spark.sql.shuffle.partitions", "77")
    _expect(place.spark.conf.get("spark.sql.shuffle.partitions"), before)


def _freed(place: Place) -> None:
    from share_spark.spark.frames import checkpointed_rdd

    frame = place.spark.range(0, 3, 1, 1).localCheckpoint()
    checkpointed_rdd(frame).unpersist(True)
    _expect(_failure_of(frame.count) != "", True)


def _held(place: Place) -> None:
    from share_spark.spark.frames import checkpoint_without_check, checkpointed_rdd

    frame = checkpoint_without_check(place.spark.range(0, 3, 1, 1))
    _expect(frame.count(), 3)
    _expect(bool(checkpointed_rdd(frame).isCheckpointed()), False)


def _task_thread(place: Place) -> None:
    from share_spark.spark.threads import named_thread, stage_attempt

    rows = named_thread(place.spark.range(0, 4, 1, 2), ["id"], "thread").collect()
    names = [row["thread"] for row in rows if row["thread"] is not None]
    if len(names) != 2 or any(stage_attempt(name) != 0 for name in names):
        raise ProbeError(f"Spark calls the threads of tasks {names}")


def _lost_worker(place: Place) -> None:
    from share_spark.spark.errors import LOST_WORKER

    said = _failure_of(place.spark.range(0, 1, 1, 1).mapInArrow(_dies, "id bigint").collect)
    _expect(any(sign in said for sign in LOST_WORKER) or said.splitlines()[:1], True)


def _dies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """End the worker, so that no attempt of the task succeeds."""
    list(batches)
    os._exit(1)


def _query_id(place: Place) -> None:
    from share_spark.spark.threads import running_query_id

    found: list[str | None] = []
    ticks = place.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = ticks.writeStream.foreachBatch(lambda _frame, _batch: found.append(running_query_id(place.spark)))
    query = (
        writer.option("checkpointLocation", f"{place.directory}/checkpoint").trigger(processingTime="0 seconds").start()
    )
    try:
        while query.isActive and not found:
            query.awaitTermination(1)
        _expect(found[:1], [str(query.id)])
    finally:
        query.stop()


def _key_placement(place: Place) -> None:
    from share_spark.spark.frames import keys_of_tasks, murmur3

    keys = keys_of_tasks(4)
    rows = place.spark.createDataFrame([(key,) for key in keys], "key int").repartition(4, "key")
    found = rows.select("key", F.spark_partition_id().alias("at"), F.hash("key").alias("hash")).collect()
    _expect({row["key"]: row["at"] for row in found}, {key: task for task, key in enumerate(keys)})
    _expect([row["hash"] for row in found], [murmur3(row["key"]) for row in found])


def _submitted(_place: Place) -> None:
    from share_spark.spark.session import is_loadable

    _expect((is_loadable("java.lang.String"), is_loadable("no.such.Class")), (True, False))


def _signals(place: Place) -> None:
    from share_spark.spark.jvm_signals import JvmSignals

    signals = JvmSignals(lambda _number: None)
    try:
        signals.take_privately(place.spark, ["USR2"])
    finally:
        signals.release()


def _daemon(place: Place) -> None:
    import runpy  # noqa: F401
    from importlib.util import find_spec

    _expect(find_spec("pyspark.daemon") is not None, True)
    module = place.spark.conf.get("spark.python.daemon.module", None)
    _expect(module in (None, "share_spark.spark.worker_daemon"), True)


def _causes(place: Place) -> None:
    from share_spark.spark.errors import root_cause

    def read() -> None:
        jvm: Any = place.spark._jvm
        jvm.java.util.concurrent.CompletableFuture.failedFuture(jvm.java.io.IOException("the first cause")).get()

    try:
        read()
    except Exception as fault:  # noqa: BLE001 - py4j's
        _expect(root_cause(fault), "the first cause")
    else:
        raise ProbeError("no error")


def _failure_of(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as fault:  # noqa: BLE001 - its text is what is asked for
        return str(fault)
    return ""


PROBES: Mapping[str, Probe] = {
    known.HADOOP_FILES.name: _files,
    known.PARTIAL_WRITES.name: _partial_writes,
    known.LOG_STORE.name: _log_store,
    known.DELTA_SNAPSHOT.name: _snapshot,
    known.DELTA_TRANSACTIONS.name: _transactions,
    known.CHECKPOINTS.name: _checkpoints,
    known.DELTA_FILES.name: _table_files,
    known.LOG_CLEANUP.name: _log_cleanup,
    known.CLONED_SESSION.name: _cloned,
    known.FREED_FRAMES.name: _freed,
    known.HELD_OUTPUT.name: _held,
    known.TASK_THREAD.name: _task_thread,
    known.LOST_WORKER_TEXT.name: _lost_worker,
    known.QUERY_ID.name: _query_id,
    known.KEY_PLACEMENT.name: _key_placement,
    known.SUBMITTED_SETTINGS.name: _submitted,
    known.JVM_SIGNALS.name: _signals,
    known.WORKER_DAEMON.name: _daemon,
    known.ERROR_CAUSES.name: _causes,
}
