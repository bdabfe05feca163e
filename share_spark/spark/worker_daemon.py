"""The parent of the Python workers, with nothing on its path that must be unzipped.

Before every task a Python worker calls `importlib.invalidate_caches()`, and each zip or jar that was ever searched
for a module then re-reads its directory, in pure Python. A session has three on its path from the start: pyspark.zip,
py4j's zip and spark-core.jar (which holds no Python at all). Where pyspark was installed by pip, both zips hold what
site-packages holds already, so they can go.

Named by `spark.python.daemon.module` (see session.py); it becomes `pyspark.daemon` once the path is clean. It runs
before pyspark is imported, and must: modules that came out of a zip go on looking there. So neither this module nor
`share_spark/__init__.py` may import pyspark.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def drop_archives(path: list[str]) -> list[str]:
    """Return the import path without Spark's archives, or unchanged where they are needed.

    They are needed where no directory on the path holds the very pyspark that they belong to (a pip installation
    keeps its zip inside the package): on a cluster, Spark's zip counts.
    """
    kept = [entry for entry in path if not _is_archive_of_spark(entry)]
    spec = PathFinder.find_spec("pyspark", kept)
    if spec is None or not spec.submodule_search_locations:
        return path
    package = Path(spec.submodule_search_locations[0]).resolve()
    dropped = [Path(entry).resolve() for entry in path if entry not in kept]
    same = all(package in archive.parents for archive in dropped)
    return kept if same and PathFinder.find_spec("py4j", kept) else path


def _is_archive_of_spark(entry: str) -> bool:
    name = Path(entry).name
    return name == "pyspark.zip" or (name.startswith(("py4j-", "spark-core_")) and name.endswith((".zip", ".jar")))


def main() -> None:
    """Clean the path and the importers that were made for it, then run Spark's daemon."""
    sys.path[:] = drop_archives(sys.path)
    sys.path_importer_cache.clear()
    runpy.run_module("pyspark.daemon", run_name="__main__")


if __name__ == "__main__":
    main()
