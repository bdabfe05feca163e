"""The one SparkSession builder of the project: for our own jobs, tests and notebooks.

The engine never calls it: a session that is passed in is the user's, and is not changed. For the same reason settings
given to `spark-submit` win over the defaults here, and a session that is already there is returned as it is.

**The place of the jars, and the daemon.** A micro-batch is a few short Python stages, and most of the cost of a short
stage is the import path of its workers: before every task they re-read the directory of each jar and zip on it (see
worker_daemon.py). Measured with a trivial `mapInArrow` over 4 tasks on 2 cores, warm medians of 15, three rounds in
turn:

    jars by `spark.jars.packages`, as usual          1
    jars by `spark.jars` (stay off that path)        0.6
    and Spark's own zips dropped by the daemon       0.35
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from share_spark.spark.capabilities import SUBMITTED_SETTINGS, WORKER_DAEMON, is_allowed, use
from share_spark.spark.class_archive import archive_options
from share_spark.spark.installed import needing_spark
from share_spark.spark.jars import JarsError, jar_paths, require_java
from share_spark.spark.jvm_errors import Py4JJavaError
from share_spark.spark.schemas import ARROW_BYTES, NO_ARROW_LIMIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOG_SETTINGS = Path(__file__).with_name("log4j2.properties").resolve()

DEFAULTS: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Our log is small and read often: one task is enough for its snapshot, and it needs no checksum file.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    # Micro-batches are small: planning twice and many small tasks cost more than they save.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # With a limit in bytes Spark adds up all columns after every row: half the time of a Python stage. An engine sets
    # one when it meets large records (``delivery.large_records``).
    ARROW_BYTES: NO_ARROW_LIMIT,
    "spark.sql.session.timeZone": "UTC",
    # Spark's own pattern, and Kafka's secret options that it lacks. Names and values are matched.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|sasl[.]jaas|keystore[.]key|private.key",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}

LOCAL_DEFAULTS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
JAVA_OPTIONS = "SHARE_SPARK_JAVA_OPTIONS"
"""The environment variable with further options for the JVM of a local session."""

_END_S = 120

LOCAL_MASTER = "local[*,4]"
"""The master: all cores; a task may fail three times, as on a cluster (`local[*]` gives up at the first failure)."""

ENGINE_CLASSES = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",
)


def build_session(
    app_name: str, master: str | None = None, extra_conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with Delta and Spark's Kafka source.

    `master` is spark-submit's if it runs this, else LOCAL_MASTER. `extra_conf` wins over everything, but has no
    effect on a session that exists already. Raises JavaError and JarsError.
    """
    with needing_spark("a session"):
        from pyspark.sql import SparkSession

    if existing := SparkSession.getActiveSession():
        return existing
    if _is_submitted() and not is_allowed(SUBMITTED_SETTINGS):
        return _as_submitted(app_name, extra_conf or {})
    submitted = _submitted()
    master = master or _with_retries(submitted.get("spark.master", LOCAL_MASTER))
    settings = {**_defaults(master), **submitted, **_jars(submitted, master), **(extra_conf or {})}
    return _start(app_name, master, settings)


def end_session(spark: SparkSession) -> None:
    """Stop the session and wait for the end of its JVM, which pyspark leaves to the end of the process."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_S)


def _start(app_name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in {**settings, "spark.master": master}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


# -------------------------------------------------------------------------------------- local settings


def _defaults(master: str) -> dict[str, str]:
    """Return our settings for this master; on this machine, its Python too."""
    if not master.startswith("local"):
        return dict(DEFAULTS)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    daemon = {"spark.python.daemon.module": "share_spark.spark.worker_daemon"} if _uses_daemon() else {}
    # Beneath spark-submit the JVM runs already: set no options for it, and search for no jars that it may not need.
    java = {} if _is_submitted() else {"spark.driver.extraJavaOptions": java_options()}
    return {**DEFAULTS, **LOCAL_DEFAULTS, **java, **daemon}


def java_options(*more: str) -> str:
    """Return the JVM options of a local session: logs, class-data archive, the environment's, ``more``."""
    logs = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    return " ".join(filter(None, (logs, archive_options(), os.environ.get(JAVA_OPTIONS, ""), *more)))


def _uses_daemon() -> bool:
    return is_allowed(WORKER_DAEMON) and _is_installed()


def _is_installed() -> bool:
    """Return whether a fresh Python finds this package: the workers' parent is one."""
    try:
        return distribution("share_spark") is not None
    except PackageNotFoundError:
        return False


def _with_retries(master: str) -> str:
    """Return the master with retries: spark-submit's default `local[*]` ends at the first failed task."""
    return LOCAL_MASTER if master == "local[*]" else master


# ------------------------------------------------------------------------------- beneath spark-submit


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _as_submitted(app_name: str, extra_conf: Mapping[str, str]) -> SparkSession:
    """Return a session as submitted: its settings cannot be read before. Raises JarsError if Delta is not in it."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in extra_conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if ENGINE_CLASSES[0] not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise JarsError(f"submit with --packages for Delta and Kafka and spark.sql.extensions={ENGINE_CLASSES[0]}")
    return spark


def _submitted() -> dict[str, str]:
    """Return settings given to spark-submit; nothing if this process is to start the JVM itself."""
    if not _is_submitted():
        require_java()
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _jars(submitted: Mapping[str, str], master: str) -> dict[str, str]:
    """Return `spark.jars` with ours added, unless the submitted ones have these classes. Where driver and executor are
    the JVM that we start, return the class path: only its classes come from the class-data archive."""
    if not submitted and master.startswith("local") and not master.startswith("local-cluster"):
        return {"spark.driver.extraClassPath": os.pathsep.join(jar_paths())}
    if submitted and _brings_engine(submitted):
        return {}
    ours = jar_paths()
    if submitted:
        _add_to_driver(ours)
    theirs = [path for path in submitted.get("spark.jars", "").split(",") if path]
    return {"spark.jars": ",".join([*theirs, *ours])}


def _brings_engine(submitted: Mapping[str, str]) -> bool:
    return use(
        SUBMITTED_SETTINGS,
        lambda: all(is_loadable(name) for name in ENGINE_CLASSES),
        lambda: _names_engine(submitted),
    )


def is_loadable(class_name: str) -> bool:
    """Return whether the JVM can find the class."""
    try:
        _jvm().org.apache.spark.util.Utils.classForName(class_name, False, False)
    except Py4JJavaError:  # wraps ClassNotFoundException and LinkageError alike
        return False
    return True


def _names_engine(submitted: Mapping[str, str]) -> bool:
    """Return whether the settings name Delta's and Kafka's jars."""
    named = submitted.get("spark.jars", "") + submitted.get("spark.jars.packages", "")
    return "delta-spark" in named and "spark-sql-kafka" in named


def _add_to_driver(paths: list[str]) -> None:
    """Put jars on a running driver's class path: `spark.jars` is read before our code runs."""
    loader = _jvm().java.lang.Thread.currentThread().getContextClassLoader()
    for path in paths:
        loader.addURL(_jvm().java.io.File(path).toURI().toURL())


def _jvm() -> Any:
    from pyspark import SparkContext

    return SparkContext._jvm


_log = logging.getLogger(__name__)

QUERY_LOGGER = "org.apache.spark.sql.execution.streaming.MicroBatchExecution"
"""The logger of the reason why a query has ended, with two stack traces: Spark's own and py4j's."""


def mute_query_faults(spark: SparkSession) -> None:
    """Turn off the logger, for a caller that reports faults in one line. Our own sessions do so
    (``log4j2.properties``); beneath spark-submit others started the JVM. If its log is not Log4j's, nothing happens."""
    try:
        log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        log4j.core.config.Configurator.setLevel(QUERY_LOGGER, log4j.Level.OFF)
    except Exception as fault:  # noqa: BLE001 - whatever py4j makes of a class that is not there
        _log.debug("the JVM's log goes on as it was: %s", fault)
