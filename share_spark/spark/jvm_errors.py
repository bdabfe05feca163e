"""The classes of PySpark's and py4j's errors. Where these are not installed nothing raises them: what starts no JVM
works without them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("pyspark") is not None:
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, PySparkException, PythonException
else:

    class PySparkException(Exception):  # noqa: N818 - PySpark's name
        """Stands for all of them."""

    AnalysisException = PythonException = Py4JError = Py4JJavaError = PySparkException

__all__ = ["AnalysisException", "Py4JError", "Py4JJavaError", "PySparkException", "PythonException"]
