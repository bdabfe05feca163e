"""The classes of PySpark's, Delta's and py4j's errors. Where PySpark is not installed nothing raises them: what starts
no JVM works without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from share_spark.spark.installed import is_installed

if TYPE_CHECKING or is_installed():
    from delta import exceptions
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, PySparkException, PythonException

    CONFLICTS: tuple[type[Exception], ...] = (
        exceptions.DeltaConcurrentModificationException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentTransactionException,
    )
    """The classes of conflicts; none is derived from another one."""
else:

    class PySparkException(Exception):  # noqa: N818 - PySpark's name
        """Stands for all of them."""

    AnalysisException = PythonException = Py4JError = Py4JJavaError = PySparkException
    CONFLICTS = ()

__all__ = ["CONFLICTS", "AnalysisException", "Py4JError", "Py4JJavaError", "PySparkException", "PythonException"]
