"""A class-data archive of the session's JVM: classes that a start would load, link and verify again, in a mapped file.

A cold start of Spark is class loading and compiling on all cores. The archive is made once (``share-spark prepare``,
or `make setup`), from a short training run, and is used by every session that ``build_session`` starts with a JVM of
its own. Measured on two busy cores, session, first Delta write, append and count: 1 without, 0.6 with the archive, 0.35
with the archive and C1 alone (``SHARE_SPARK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1``, for what is over in a minute).

The JVM checks that the archive fits (its own build, the class path with the times of the jars) and starts without it
where it does not; so a stale archive only loses the time that it would have saved.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from share_spark.model.errors import EnvironmentFault
from share_spark.spark.jars import cache_dir, engine_tag, jar_paths, pyspark_jars, require_java

TRAINING = "SHARE_SPARK_TRAINING_ARCHIVE"
"""The environment variable for the archive to be written by the session that starts now."""

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""Options that silence the JVM: if its archive does not fit it starts without it, with a message on stdout."""

_TRAINING_S = 600.0


def archive_path() -> Path:
    """Return the path of the archive for this Java and these jars: it fits only one class path."""
    java = Path(require_java()).resolve()
    places = "\n".join((str(java), str(java.stat().st_mtime_ns), str(pyspark_jars()), *jar_paths()))
    digest = hashlib.sha256(places.encode()).hexdigest()[:12]
    return cache_dir() / "classes" / f"{engine_tag()}-{digest}.jsa"


def archive_options() -> str:
    """Return options for the JVM of a session that starts now: to write the archive, to use it, or none."""
    wanted = os.environ.get(TRAINING)
    if wanted:
        return f"-XX:ArchiveClassesAtExit={wanted} {_QUIET}"
    found = archive_path()
    return f"-XX:SharedArchiveFile={found} {_QUIET}" if found.exists() else ""


def make_archive(training: str) -> Path:
    """Run the Python module ``training`` once; its session's JVM writes the archive when it ends. Does nothing if there
    is one. Raises EnvironmentFault."""
    path = archive_path()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    unfinished.unlink(missing_ok=True)
    try:
        ended = _run(training, {TRAINING: str(unfinished)})
        if not unfinished.exists():
            raise EnvironmentFault(f"no class-data archive was written: {_last_line(ended.stderr)}")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _run(training: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", training]
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_TRAINING_S, check=False
        )
    raise EnvironmentFault(f"the training run of the class-data archive took more than {_TRAINING_S:.0f} s")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the training run said nothing"
