"""Properties of a Delta table changed without a Spark job: one commit with the table's metadata, put only as the
version that follows the one it was made from. Another writer's commit that comes between is read first, so nothing that
it changed is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
    log = TableLog.open(files)
    while True:
        log.check_can_append()
        if files.commit(log.version + 1, _text(log, changes)):
            return log.version + 1
        log.refresh()


def _text(log: TableLog, changes: Mapping[str, str | None]) -> str:
    configuration = {name: value for name, value in log.properties.items() if name not in changes}
    configuration |= {name: value for name, value in changes.items() if value is not None}
    metadata: dict[str, Any] = {name: value for name, value in log.metadata.items() if value is not None}
    return commit_text(
        "SET TBLPROPERTIES",
        {"properties": json.dumps(dict(changes))},
        [{"metaData": metadata | {"configuration": configuration}}],
        blind=False,
        readVersion=log.version,
        operationMetrics={},
    )
