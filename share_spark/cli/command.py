"""The frame of every command: its Spark session, its tables, and its end, an exit code and one line for an error.

PySpark is imported for the session only: bad input is reported without waiting for it. Bad input is exit code 2 for a
job (a supervisor need not start it again), else 1, as is a fault of the run, and a fault that may pass: brokers that
are down, a disk that is full. `--debug` shows the traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from share_spark.model.errors import EnvironmentFault, ShareError, is_of_storage
from share_spark.spark.on_demand import SparkOnDemand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def command_session(name: str) -> Iterator[SparkSession]:
    """Yield a session for one command, and stop it afterwards; a session that was there before stays."""
    from pyspark.sql import SparkSession

    from share_spark.spark.session import build_session

    is_shared = SparkSession.getActiveSession() is not None
    spark = build_session(name)
    try:
        yield spark
    finally:
        if not is_shared:
            spark.stop()


STARTED = "; Spark is started for that, which takes longer"
"""The end of a message that says why a session is needed."""


@contextmanager
def spark_when_needed(name: str) -> Iterator[SparkSession | SparkOnDemand]:
    """Yield a session that starts at its first use, after a line with the reason, and stops with the command. Beneath
    spark-submit there is a JVM already: a session at once."""
    with ExitStack() as until_end:
        if has_jvm():
            yield until_end.enter_context(command_session(name))
            return

        def start(why: str) -> SparkSession:
            print(f"share-spark: {why}{STARTED}", file=sys.stderr, flush=True)
            return until_end.enter_context(command_session(name))

        yield SparkOnDemand(start)


def has_jvm() -> bool:
    """Return whether a JVM runs for this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


BAD_INPUT, FAILED = 2, 1

NOT_DONE = "\n\nNothing was changed: --execute does it."
"""The last line of what a command would do."""

Row = Sequence[object]


def table(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table in the form that Kafka's tools print: columns as wide as their content."""
    lines = [[str(name) for name in names], *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(" ".join(cells).rstrip() for cells in padded)


def guarded(command: Callable[[], int], *, debug: bool = False, bad_input: int = BAD_INPUT) -> int:
    """Run ``command``; an error becomes one line and an exit code: ``bad_input``, or 1 for anything else."""
    try:
        return command()
    except RunError as fault:
        return _report(fault.cause, FAILED, debug)
    except ShareError as fault:
        return _report(fault, FAILED if _may_pass(fault) else bad_input, debug)
    except Exception as fault:  # noqa: BLE001 - the person at the terminal gets one line of that, too
        return _report(fault, FAILED, debug)


def _may_pass(fault: ShareError) -> bool:
    """Return whether the same command may succeed later: brokers down, a disk full or read-only, no Java."""
    return fault.retriable or isinstance(fault, EnvironmentFault) or is_of_storage(str(fault))


class RunError(Exception):
    """Raised for a run that had started and then failed: ``cause``."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


def _report(fault: BaseException, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(fault)
    if isinstance(fault, OSError) and fault.filename and fault.strerror:
        text = f"{fault.filename}: {fault.strerror}"
    else:
        text = _one_line(fault)
    named = text if isinstance(fault, ShareError) else f"{type(fault).__name__}: {text} (--debug shows more)"
    print(f"share-spark: {named}", file=sys.stderr, flush=True)
    return code


def _one_line(fault: BaseException) -> str:
    """Return the message without the stack traces of Spark's errors; for a worker's traceback its last line."""
    text = str(fault).partition("\nJVM stacktrace")[0].strip()
    if "Traceback (most recent call last)" in text:
        text = text.splitlines()[-1]
    return " ".join(text.split("\n\n")[0].split()) or type(fault).__name__
