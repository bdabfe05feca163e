"""Whether PySpark is installed. Platforms bring one of their own, and what starts no JVM does not need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from share_spark.model.errors import EnvironmentFault

INSTALL = "pip install 'share_spark[spark]'"
"""The end of a message that says that something is not installed."""

_PACKAGES = {"pyspark": "pyspark", "delta": "delta-spark", "py4j": "py4j"}
"""The packages by the names of their modules."""


DELTA_OF = {"4.0": "4.0", "4.2": "4.4"}
"""The releases of Spark that we support, each with its release of Delta."""


def require_release(spark_version: str) -> None:
    """Check the release of a session that was given to us. Raises EnvironmentFault: we do not support it."""
    if ".".join(spark_version.split(".")[:2]) not in DELTA_OF:
        raise EnvironmentFault(f"Spark {spark_version} is not supported: use Spark {' or '.join(DELTA_OF)}")


def is_installed() -> bool:
    """Return whether PySpark and delta-spark are installed."""
    return _missing() is None


def require_spark(what: str) -> None:
    """Check that PySpark and delta-spark are installed. Raises EnvironmentFault, a line that begins with ``what``."""
    if (missing := _missing()) is not None:
        raise _fault(what, missing)


@contextmanager
def needing_spark(what: str) -> Iterator[None]:
    """Let the body import PySpark. Raises EnvironmentFault as ``require_spark`` if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as fault:
        missing = (fault.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        raise _fault(what, missing) from fault


def _missing() -> str | None:
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


def _fault(what: str, missing: str) -> EnvironmentFault:
    return EnvironmentFault(f"{what} needs Spark, and {_PACKAGES[missing]} is not installed: {INSTALL}")
