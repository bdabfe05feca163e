"""Changes of a Delta table's metadata without a Spark job: one commit with all of it, put only as the version that
follows the one it was made from. A commit of another writer that comes between is read first, so no change of it is
lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from share_spark.delta.commit_files import CommitFiles, commit_text
from share_spark.delta.table_log import TableLog, UnknownTableError

_OURS = "share_spark."
"""The prefix of names without a meaning for Delta: others may enable features of the table."""


def change_properties(files: CommitFiles, changes: Mapping[str, str | None]) -> int:
    """Set properties of ours, or remove those that are None; may be repeated. Returns the version of the commit.

    Raises UnknownTableError, NotImplementedError (only Spark can), and then nothing has happened; what the storage
    raises, and then it may have happened.
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
    """A change of metadata. ``operation``, ``parameters``: as in Delta's history. ``values``: the new fields."""

    operation: str
    parameters: Mapping[str, str]
    values: Mapping[str, Any]


def change_metadata(files: CommitFiles, changed: Callable[[TableLog], MetadataChange | None]) -> int:
    """Apply ``changed`` to the newest version; nothing if it returns None. Returns the version that has the change.
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
