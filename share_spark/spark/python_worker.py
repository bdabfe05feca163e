"""The Python worker that runs our functions on an executor: what keeps it quick between tasks."""

from __future__ import annotations

import gc
import sys
import zipimport
from collections.abc import Iterator
from contextlib import contextmanager


def drop_zip_importers() -> None:
    """Forget the importers of zips and jars.

    Before each task PySpark has every one of them read its archive's directory again, in Python: up to a quarter of a
    second. They come back by themselves if something is imported from there.
    """
    cached = sys.path_importer_cache
    for path in [path for path, finder in cached.items() if isinstance(finder, zipimport.zipimporter)]:
        del cached[path]


@contextmanager
def cycles_ignored() -> Iterator[None]:
    """Python looks for no cycles meanwhile: our values have none, and the search among a hundred thousand of them takes
    a third of the time of a decision, most of that of reading states."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
