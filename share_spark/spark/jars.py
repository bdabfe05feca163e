"""The JVM half of our dependencies: found once, kept in a cache, handed out as paths.

pip installs no jars, and `spark.jars.packages` is not suitable (it puts every resolved jar on the Python workers' path,
where each task pays for it: see session.py). So Ivy, which is part of pyspark, fetches the jars into a cache of our
own, and the session gets them by `spark.jars`. Java and Python are enough.

A set of jars is whole or absent: it is downloaded into a temporary directory and renamed when complete, under a file
lock, so a killed download or two callers at once do no harm.

    python -m share_spark.spark.jars            every set, downloading what is missing
    python -m share_spark.spark.jars engine     Delta and Spark's Kafka source, for the session
    python -m share_spark.spark.jars broker     a Kafka broker, for tests and benchmarks
    python -m share_spark.spark.jars java       only checks Java
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from share_spark.model.errors import EnvironmentFault
from share_spark.spark.installed import DELTA_OF, INSTALL

JAVA_VERSIONS = (17, 21)
"""The Java releases that Spark 4 is built and tested for."""


class _Modules(NamedTuple):
    """The modules for one release of Spark: the version of its Kafka source, and Delta's."""

    connector_version: str
    delta: str


_MODULES = {
    "4.0": _Modules("4.0.0", "delta-spark_2.13"),
    "4.2": _Modules("4.2.0", "delta-spark_4.2_2.13"),
}
"""The modules by release of Spark. The source is compatible with every bug-fix release of its Spark; some mirrors of
Maven Central lack a jar (spark-token-provider-kafka) of the later ones."""

BROKER_VERSION = "4.2.0"
"""The first Kafka release in which share groups are ready for production."""

DOWNLOAD_TIMEOUT_S = 900

Coordinate = tuple[str, str, str]
"""The organisation, module and revision."""


class JarsError(EnvironmentFault):
    """Raised if the jars cannot be fetched; one line that says what to do."""


class JavaError(JarsError):
    """Raised without Java, or with one that Spark does not run on; one line that says what to install."""


# --------------------------------------------------------------------------------------------- the API


def jar_paths() -> list[str]:
    """Return paths of the engine's jars (Delta, Spark's Kafka source), without those that pyspark ships."""
    return [str(path) for path in _jars(_engine_set(), _engine_coordinates(), _shipped())]


def cached_jars() -> list[Path]:
    """Return the cached jars of the engine; none is fetched. Raises JarsError: releases do not go together."""
    return sorted((cache_dir() / "jars" / _engine_set()).glob("*.jar"))


def _engine_set() -> str:
    return f"engine-{engine_tag()}"


def broker_jar_paths() -> list[str]:
    """Return paths of a whole Kafka broker with its tools; a class path of its own, never the session's."""
    coordinates = [
        ("org.apache.kafka", "kafka_2.13", BROKER_VERSION),
        ("org.apache.kafka", "kafka-tools", BROKER_VERSION),
    ]
    return [str(path) for path in _jars(f"broker-{BROKER_VERSION}", coordinates, frozenset())]


@functools.cache
def require_java() -> str:
    """Return the path of the java that Spark will run (JAVA_HOME's, or the PATH's). Raises JavaError."""
    wanted = "install a JDK or JRE 17 (for example openjdk-17-jre-headless, or Eclipse Temurin 17)"
    java = _find_java()
    if java is None:
        raise JavaError(f"Java was not found: {wanted}, or set JAVA_HOME")
    found = java_release(java)
    if found not in JAVA_VERSIONS:
        raise JavaError(f"Java 17 is needed, but {java} is version {found or 'unknown'}: {wanted}")
    return java


def cache_dir() -> Path:
    """Return the directory of jars: $SHARE_SPARK_CACHE, else $XDG_CACHE_HOME/share_spark, else ~/.cache/share_spark."""
    if configured := os.environ.get("SHARE_SPARK_CACHE"):
        return Path(configured).expanduser()
    return _xdg_cache_home() / "share_spark"


def _xdg_cache_home() -> Path:
    """Return the XDG cache directory. A relative path is ignored, as the XDG Base Directory Specification requires."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return configured if configured.is_absolute() else Path.home() / ".cache"


# ------------------------------------------------------------------------------------------------ Java


def _find_java() -> str | None:
    """Return the java that Spark's own launcher would take."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which("java", path=str(Path(home) / "bin"))
    return shutil.which("java")


def java_release(java: str) -> int | None:
    """Return the feature release (8, 11, 17, ...) that `java -version` prints, or None."""
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(match.group(1)) if match else None


# -------------------------------------------------------------------------------------- what is wanted


def releases() -> str:
    """Return the installed releases of Spark and Delta. Raises JarsError: they do not go together."""
    _modules()
    return _installed()


def engine_tag() -> str:
    """Return the name of the set of the engine's jars."""
    return f"delta{_version('delta-spark')}-kafka{_modules().connector_version}-spark{_version('pyspark')}"


def _modules() -> _Modules:
    spark = _release("pyspark")
    if _release("delta-spark") != DELTA_OF.get(spark):
        known = (f"pyspark {release} with delta-spark {delta}" for release, delta in DELTA_OF.items())
        raise JarsError(f"{_installed()} is not supported: install {' or '.join(known)}")
    return _MODULES[spark]


def _installed() -> str:
    return f"pyspark {_version('pyspark')} with delta-spark {_version('delta-spark')}"


def _release(package: str) -> str:
    return ".".join(_version(package).split(".")[:2])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise JarsError(f"{package} is not installed: {INSTALL}") from None


def _engine_coordinates() -> list[Coordinate]:
    return [
        ("io.delta", _modules().delta, _version("delta-spark")),
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", _modules().connector_version),
    ]


def pyspark_jars() -> Path:
    """Return the directory of pyspark's own jars, without importing pyspark (which takes half a second)."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise JarsError(f"pyspark is not installed: {INSTALL}")
    return Path(spec.submodule_search_locations[0]) / "jars"


def _shipped() -> frozenset[str]:
    """Return artifact names that pyspark ships: `spark-core_2.13` for spark-core_2.13-4.0.1.jar."""
    return frozenset(re.sub(r"-\d.*$", "", path.stem) for path in pyspark_jars().glob("*.jar"))


# ------------------------------------------------------------------------------------------- the cache


def _jars(name: str, wanted: Sequence[Coordinate], excluded: frozenset[str]) -> list[Path]:
    """Return the jars of one set, sorted; downloaded first if the cache lacks it."""
    told = ", ".join(":".join(coordinate) for coordinate in wanted)
    return cached_set(name, told, _ivy_module(wanted, excluded))


def cached_set(name: str, told: str, module: str) -> list[Path]:
    """Return the jars of one set, sorted; downloaded first if the cache lacks it. ``module``: an ivy.xml that depends
    on them; ``told``: what is said of them while they are downloaded. Raises JarsError."""
    final = cache_dir() / "jars" / name
    if not final.is_dir():
        with _locked(cache_dir() / "jars.lock"):
            if not final.is_dir():
                _download(final, told, module)
    return sorted(final.glob("*.jar"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock over processes; the system drops it when its holder ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(final: Path, told: str, module: str) -> None:
    """Download into a temporary directory beside `final`, then rename: whole or absent."""
    print(f"share_spark: downloading {told} into {final} (once)", file=sys.stderr, flush=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=final.parent) as partial:
        found = Path(partial) / "found"
        _run_ivy(Path(partial), found, module)
        found.rename(final)


# ------------------------------------------------------------------------------------------------- Ivy


def _ivy_module(wanted: Sequence[Coordinate], excluded: frozenset[str]) -> str:
    """Return an ivy.xml that depends on `wanted`: all in one file, so that versions agree among them."""
    dependencies = "".join(
        f'<dependency org="{org}" name="{module}" rev="{revision}" conf="default->default"/>'
        for org, module, revision in wanted
    )
    excludes = "".join(f'<exclude module="{module}"/>' for module in sorted(excluded))
    return (
        '<ivy-module version="2.0"><info organisation="share_spark" module="jars"/>'
        f"<dependencies>{dependencies}{excludes}</dependencies></ivy-module>"
    )


def _run_ivy(work: Path, found: Path, module: str) -> None:
    """Retrieve the module's jars into `found`. Raises JarsError with Ivy's own reason."""
    (work / "ivy.xml").write_text(module)
    command = _ivy_command(work, found)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise JarsError(f"downloading jars from Maven Central took over {DOWNLOAD_TIMEOUT_S} s: try again") from None
    if done.returncode != 0 or not any(found.glob("*.jar")):
        raise JarsError(f"jars could not be downloaded from Maven Central: {_reason(done.stdout)}")


def _ivy_command(work: Path, found: Path) -> list[str]:
    """Return the command line of pyspark's Ivy. Its cache is ours and short-lived: a resolution that failed half way,
    here or in ~/.ivy2, cannot spoil a later one."""
    jars = pyspark_jars()
    classpath = [str(jar) for pattern in ("ivy-*.jar", "commons-cli-*.jar") for jar in jars.glob(pattern)]
    settings = os.environ.get("SHARE_SPARK_IVY_SETTINGS")
    return [
        *(require_java(), "-cp", os.pathsep.join(classpath), "org.apache.ivy.Main"),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"), "-confs", "default"),
        *("-retrieve", f"{found}/[artifact]-[revision](-[classifier]).[ext]"),
        *("-types", "jar", "bundle"),
    ]


def _reason(output: str) -> str:
    """Return the lines of Ivy's output that say what failed, as one line."""
    lines = [re.sub(r"^[\s:]+|[\s:]+$", "", line) for line in output.splitlines()]
    failures = [line for line in lines if re.search(r"not found|failed|error|timed out", line, re.I)]
    return "; ".join(dict.fromkeys(failures[:4])) or "no reason given"


# ------------------------------------------------------------------------------------------------ main


def main(arguments: Sequence[str]) -> int:
    """Fill the cache with the named sets (all of them if none is named) and print where they are."""
    sets = {"engine": jar_paths, "broker": broker_jar_paths}
    if unknown := set(arguments) - {*sets, "java"}:
        print(f"share_spark.spark.jars: unknown: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    try:
        require_java()
        for name in sets if not arguments else [name for name in arguments if name in sets]:
            paths = sets[name]()
            print(f"{name}: {len(paths)} jars in {Path(paths[0]).parent}")
    except JarsError as error:
        print(f"share_spark.spark.jars: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
