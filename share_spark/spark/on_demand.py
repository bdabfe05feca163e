"""A Spark session only where it is needed: one that is there, one that is started at its first use, or none.

Work on files takes ``AnySpark`` and needs no session where possible: on the disks of this machine, and on tables that
other writers than Spark's support. What only Spark can do asks for it by ``session_of``, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from share_spark.model.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True, eq=False)
class SparkOnDemand:
    """A session that ``start`` makes at its first use, which takes seconds; called once, with the reason."""

    start: Callable[[str], SparkSession]
    _session: SparkSession | None = None

    def session(self, why: str) -> SparkSession:
        """Return the session; the first call starts it. Raises what ``start`` raises."""
        if self._session is None:
            self._session = self.start(why)
        return self._session


AnySpark: TypeAlias = "SparkSession | SparkOnDemand | None"
"""A session, one to be started, or none."""


def session_of(spark: AnySpark, why: str) -> SparkSession:
    """Return the session. ``why``: its purpose, in a few words that begin a line. Raises ConfigError: there is none,
    and none may be started."""
    if spark is None:
        raise ConfigError(f"{why}: only Spark can do that; give a Spark session")
    return spark.session(why) if isinstance(spark, SparkOnDemand) else spark


def given_session(spark: AnySpark) -> SparkSession | None:
    """Return the session that was there from the beginning; None where there was none."""
    return None if isinstance(spark, SparkOnDemand) else spark
