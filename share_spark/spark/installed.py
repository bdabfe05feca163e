"""Whether PySpark is installed. Platforms bring one of their own, and what starts no JVM does not need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from share_spark.model.errors import EnvironmentFault

INSTALL = "pip install 'share_spark[spark]'"
"""The end of a message that says that something is not installed."""

_PACKAGES = ("pyspark", "delta", "py4j")


def is_installed() -> bool:
    """Return whether PySpark and delta-spark are installed."""
    return all(find_spec(name) is not None for name in _PACKAGES)


@contextmanager
def needing_spark(what: str) -> Iterator[None]:
    """Let the body import PySpark. Raises EnvironmentFault if it is not installed; ``what`` begins the line."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise EnvironmentFault(f"{what} needs Spark, and {missing.name} is not installed: {INSTALL}") from missing
