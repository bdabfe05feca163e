"""A Delta table made without Spark: its first commit, put only if there is none."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import StructType

from share_spark.delta.commit_files import CommitFiles, commit_text

_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
"""The oldest that knows required columns and tables that are only appended to."""


def create_table(
    files: CommitFiles,
    columns: StructType,
    *,
    partitioned_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> bool:
    """Make the table unless another program makes it at this moment; did it? Raises NotImplementedError where only
    Spark can commit, and what the storage raises."""
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns.json(),
        "partitionColumns": list(partitioned_by),
        "configuration": dict(properties or {}),
        "createdTime": int(time.time() * 1_000),
    }
    parameters = {
        "isManaged": "false",
        "partitionBy": json.dumps(list(partitioned_by)),
        "properties": json.dumps(dict(properties or {})),
    }
    actions: list[dict[str, Any]] = [{"protocol": _PROTOCOL}, {"metaData": metadata}]
    text = commit_text("CREATE TABLE", parameters, actions, blind=True, operationMetrics={})
    files.make_directory()
    return files.commit(0, text)
