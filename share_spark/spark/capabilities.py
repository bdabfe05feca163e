"""The private API of Spark, Delta, Hadoop and the JVM that this project uses, its purpose, and its fallbacks.

Each use is a ``Capability``. ``use`` tries the private call; where it is missing (another release, a cluster that
forbids it) it is given up for the rest of the process, and the fallback is used. A fallback may be slower or omit
something; the promise that it weakens is logged once, to the logger ``share_spark.spark.capabilities``.

The environment variable ``SHARE_SPARK_PUBLIC_API_ONLY=1`` refuses every private call. It is read here, at each use, and
nowhere else.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from share_spark.spark.jvm_errors import Py4JError, Py4JJavaError, PythonException

_log = logging.getLogger(__name__)

PUBLIC_API_ONLY = "SHARE_SPARK_PUBLIC_API_ONLY"

_T = TypeVar("_T")

_MISSING = re.compile(r"does not exist|Trying to call a package|Py4JSecurityException")
_MISSING_IN_JAVA = re.compile(
    r"java\.lang\.(?:NoSuch(?:Method|Field)\w*|NoClassDefFoundError|ClassNotFoundException|AbstractMethodError"
    r"|IncompatibleClassChangeError|IllegalAccessError)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """A use of private API. ``fallback``: what is done without it. ``weakens``: the promise that is weaker then; None:
    the fallback only takes longer or more memory."""

    name: str
    purpose: str
    fallback: str
    weakens: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The availability of a capability. ``reason``: why the fallback is used; None: the private API is used."""

    capability: Capability
    reason: str | None = None

    @property
    def available(self) -> bool:
        """Whether the private API is used."""
        return self.reason is None


HADOOP_FILES = Capability(
    name="files through Hadoop",
    purpose="journals, heartbeats, notes and commit files on whatever storage Spark can reach",
    fallback="local paths by Python, others by pyarrow, with the credentials that pyarrow finds",
)
PARTIAL_WRITES = Capability(
    name="visibility of partial writes",
    purpose="ask Delta's log store whether readers see a file before it is complete",
    fallback="judged by the scheme of the path",
)
LOG_STORE = Capability(
    name="Delta's log store",
    purpose="commit to a Delta table without a Spark job on storage that is no local disk",
    fallback="each commit is an append by Spark",
)
DELTA_SNAPSHOT = Capability(
    name="Delta's snapshot",
    purpose="id, version and properties of a table without a query",
    fallback="DESCRIBE DETAIL and SHOW TBLPROPERTIES",
)
DELTA_TRANSACTIONS = Capability(
    name="Delta's application transactions",
    purpose="the number of the last delivery in a sink",
    fallback="the files of the table's log are read",
)
DELTA_FILES = Capability(
    name="files of a Delta snapshot",
    purpose="find partitions with many small files",
    fallback="the table is scanned for the names of its files",
)
LOG_CLEANUP = Capability(
    name="Delta's log clean-up",
    purpose="a compaction writes a checkpoint and removes old commits",
    fallback="left to Delta's own checkpoints",
    weakens="commits stay in a table's log until delta.logRetentionDuration is over, not as long as compaction says",
)
CHECKPOINTS = Capability(
    name="Delta's checkpoints",
    purpose="write a checkpoint of a table that is appended to without Spark",
    fallback="left to commits that Spark makes: pruning, OPTIMIZE, another job",
    weakens="readers of a table that only this engine writes take longer, the more it has written since Spark did",
)
CLONED_SESSION = Capability(
    name="cloned sessions",
    purpose="work with settings of its own beside the user's session",
    fallback="a new session with the user's settings copied; temporary views are not there",
)
FREED_FRAMES = Capability(
    name="freeing checkpointed frames",
    purpose="free the blocks of output rows at once",
    fallback="left to Spark's ContextCleaner, which frees them when Python and the JVM have collected the frame",
)
HELD_OUTPUT = Capability(
    name="output rows on the executors",
    purpose="output rows stay on the executors, uncomputed again, until the sink has read them",
    fallback="output rows of a micro-batch pass through the driver's memory",
)
TASK_THREAD = Capability(
    name="the stage attempt of a task",
    purpose="a stage that Spark repeats does not call a handler again",
    fallback="the repeat of a stage is not seen",
    weakens="on several machines, a stage that Spark repeats may call a handler twice for one acquisition of a record",
)
LOST_WORKER_TEXT = Capability(
    name="Spark's text for a lost worker",
    purpose="run a delivery again when its job died with a worker",
    fallback="a failed delivery job is run again as long as the ledgers of its tasks show that it got on",
)
QUERY_ID = Capability(
    name="the running query's id",
    purpose="rows of the state log name the streaming query that wrote them",
    fallback="their column query_id stays null",
    weakens="rows of the state log do not name the streaming query that wrote them",
)
KEY_PLACEMENT = Capability(
    name="Spark's hash partitioning",
    purpose="an even share of records for each task",
    fallback="placed by the hash as it comes; some tasks may get more than others",
)
SUBMITTED_SETTINGS = Capability(
    name="the JVM beneath spark-submit",
    purpose="see what was submitted, and add Delta's and Kafka's jars where they are missing",
    fallback="what was submitted is used as it is: --packages and Delta's settings are to be given",
)
JVM_SIGNALS = Capability(
    name="signals of the JVM",
    purpose="a signal to the JVM ends the job between micro-batches",
    fallback="only signals to the Python process do",
    weakens="a signal to the JVM stops Spark in the middle of a micro-batch; the next run recovers it",
)
WORKER_DAEMON = Capability(
    name="a daemon for Python workers",
    purpose="workers without archives on their import path, which cost each task some time",
    fallback="Spark's own daemon",
)
ERROR_CAUSES = Capability(
    name="causes of Java exceptions",
    purpose="messages name the first cause of a failure",
    fallback="messages are what Spark says",
)

ALL: tuple[Capability, ...] = (
    HADOOP_FILES,
    PARTIAL_WRITES,
    LOG_STORE,
    DELTA_SNAPSHOT,
    DELTA_TRANSACTIONS,
    DELTA_FILES,
    LOG_CLEANUP,
    CHECKPOINTS,
    CLONED_SESSION,
    FREED_FRAMES,
    HELD_OUTPUT,
    TASK_THREAD,
    LOST_WORKER_TEXT,
    QUERY_ID,
    KEY_PLACEMENT,
    SUBMITTED_SETTINGS,
    JVM_SIGNALS,
    WORKER_DAEMON,
    ERROR_CAUSES,
)

_given_up: dict[str, str] = {}
_warned: set[str] = set()
_lock = threading.Lock()


def is_allowed(capability: Capability) -> bool:
    """Return whether the private API may be tried."""
    return _refusal(capability) is None


def use(capability: Capability, private: Callable[[], _T], public: Callable[[], _T]) -> _T:
    """Call ``private``, or ``public`` if the private API is refused or missing. Raises faults of the work itself."""
    if is_allowed(capability):
        try:
            return private()
        except Exception as fault:
            if not is_missing(fault):
                raise
            give_up(capability, own_line(fault))
    warn_once(capability)
    return public()


def give_up(capability: Capability, reason: str) -> None:
    """Use the fallback from now on."""
    with _lock:
        _given_up.setdefault(capability.name, reason)
    warn_once(capability)


def warn_once(capability: Capability) -> None:
    """Log the promise that the fallback weakens, if there is one and it was not logged before."""
    reason = _refusal(capability)
    with _lock:
        if reason is None or capability.weakens is None or capability.name in _warned:
            return
        _warned.add(capability.name)
    _log.warning("%s: not available (%s); %s", capability.name, reason, capability.weakens)


def warn_of_all() -> None:
    """Log, at the start of a share group, the promises that are known to be weaker."""
    for capability in ALL:
        warn_once(capability)


def verdict(capability: Capability) -> Verdict:
    """Return the known verdict: an API that was not tried yet counts as available."""
    return Verdict(capability=capability, reason=_refusal(capability))


def is_missing(fault: Exception) -> bool:
    """Return whether the fault means that the API is missing, and not a fault of the work that was done with it."""
    text = str(fault)
    if isinstance(fault, AttributeError | ImportError):
        return True
    if isinstance(fault, TypeError):
        return "JavaPackage" in text
    if isinstance(fault, Py4JJavaError):  # "path does not exist" says nothing about the API
        return bool(_MISSING_IN_JAVA.match(str(fault.java_exception)))
    return isinstance(fault, Py4JError) and bool(_MISSING.search(text))


def _refusal(capability: Capability) -> str | None:
    if os.environ.get(PUBLIC_API_ONLY, "") not in ("", "0"):
        return f"{PUBLIC_API_ONLY} is set"
    return _given_up.get(capability.name)


def own_line(error: BaseException) -> str:
    """Return the message in one line, without the stack, py4j's own line, and the description of a query."""
    said, _, _ = str(error).partition("=== Streaming Query ===")
    lines = [line for line in said.splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    if isinstance(error, PythonException):  # a worker's error is the end of a trace
        lines = [line for line in lines if not line[0].isspace()][-1:] or lines
    return lines[0].lstrip(": ").strip() if lines else type(error).__name__
