"""Metadata of a Delta table changed without a Spark job: one commit with all of it, put only as the
version that follows the one it was made from. Another writer's commit that comes between is read first, so nothing that
it changed is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from share_spark.delta.commit_files import CommitFiles, commit_text
from share_spark.delta.table_log import TableLog, UnknownTableError

_OURS = "share_spark."
"""How names begin that mean nothing to Delta: others may ask for features of the table."""


def change_properties(files: CommitFiles, changes: Mapping[str, str | None]) -> int:
    """Set properties of ours, or remove those that are None; twice is once more the same. The version of the commit.

    Raises UnknownTableError, NotImplementedError (only Spark can), and then nothing has happened; what the storage
    raises, and then it may have happened all the same.
    """
    if foreign := [name for name in changes if not name.startswith(_OURS)]:
        raise UnknownTableError(f"{foreign[0]} is a property that Delta knows")

    def changed(log: TableLog) -> MetadataChange:
        configuration = {name: value for name, value in log.properties.items() if name not in changes}
        configuration |= {name: value for name, value in changes.items() if value is not None}
        said = {"properties": json.dumps(dict(changes))}
        return MetadataChange("SET TBLPROPERTIES", said, {"configuration": configuration})

    return change_metadata(files, changed)


class MetadataChange(NamedTuple):
    """``operation`` and ``parameters``: as Delta's history names it. ``values``: of the fields that change."""

    operation: str
    parameters: Mapping[str, str]
    values: Mapping[str, Any]


def change_metadata(files: CommitFiles, changed: Callable[[TableLog], MetadataChange | None]) -> int:
    """Do what ``changed`` says of the newest version, nothing if that is None. The version from which on it is so.
    Raises as ``change_properties``."""
    log = TableLog.open(files)
    while (change := changed(log)) is not None:
        log.check_can_append()
        if log.put(_text(log, change)):
            return log.version
        log.refresh()
    return log.version


def _text(log: TableLog, change: MetadataChange) -> str:
    metadata = {name: value for name, value in log.metadata.items() if value is not None}
    return commit_text(
        change.operation,
        change.parameters,
        [{"metaData": metadata | dict(change.values)}],
        blind=False,
        readVersion=log.version,
        operationMetrics={},
    )
