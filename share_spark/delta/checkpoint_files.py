"""The checkpoints of a Delta table's log and their actions, in each of Delta's forms.

classic   ….checkpoint.parquet, or several parts     all actions
v2        ….checkpoint.<uuid>.parquet or .json       all but the files, and the names of the sidecars
          _sidecars/<uuid>.parquet                   the files
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from share_spark.delta.commit_files import CommitFiles, actions_in

_OF_TABLE = ("protocol", "metaData", "txn")


class TooLargeError(Exception):
    """Raised when a checkpoint is larger than its reader allows, or a file of it is gone."""


def checkpoint_actions(
    files: CommitFiles, paths: Sequence[str], *, with_files: bool, most_bytes: int
) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of the checkpoint in the files ``paths``: the table's, and ``add`` if ``with_files``.

    Raises TooLargeError: it has more than ``most_bytes``, or is not whole.
    """
    wanted, left = (*_OF_TABLE, "add", "sidecar") if with_files else _OF_TABLE, [*paths]
    while left:
        path = left.pop()
        content = files.content(path, most_bytes)
        if content is None:
            raise TooLargeError(f"checkpoint {path} is too large to be read here, or gone")
        most_bytes -= len(content)
        for action in _actions(path, content, wanted):
            if sidecar := action.get("sidecar"):
                left.append(files.sidecar(unquote(sidecar["path"])))
            else:
                yield action


def _actions(path: str, content: bytes, wanted: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    if path.endswith(".json"):
        return (action for action in actions_in(content.decode()) if not action.keys().isdisjoint(wanted))
    file = pq.ParquetFile(io.BytesIO(content))
    columns = [name for name in wanted if name in file.schema_arrow.names]
    return (_with_maps(row) for row in file.read(columns=columns).to_pylist() if any(row.values()))


def _with_maps(action: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the action with maps as dicts: Arrow gives a map as pairs."""
    if metadata := action.get("metaData"):
        kind = metadata.get("format") or {"provider": "parquet"}
        maps = {"format": {**kind, "options": dict(kind.get("options") or ())}}
        maps["configuration"] = dict(metadata.get("configuration") or ())
        return {**action, "metaData": {**metadata, **maps}}
    if added := action.get("add"):
        return {**action, "add": {**added, "partitionValues": dict(added["partitionValues"] or ())}}
    return action
