"""The journal entries of a sink: one before a delivery is written, one when an engine claims a sink."""

from __future__ import annotations

import json
from typing import NamedTuple

from share_spark.delta.location import Location


class SinkTarget(NamedTuple):
    """A table and the name under which a group writes to it (Delta's ``txnAppId``)."""

    table: Location
    app_id: str


class SinkEntry(NamedTuple):
    """``payload``: the acknowledgements that are decided by the commit, in the engine's terms; empty for a claim."""

    target: SinkTarget
    run_id: str
    payload: bytes = b""

    def to_bytes(self) -> bytes:
        """A line of JSON, then the payload as it is."""
        table, app_id = self.target
        head = {"path": table.path, "parts": list(table.parts), "app_id": app_id, "run_id": self.run_id}
        return json.dumps(head).encode() + b"\n" + self.payload

    @classmethod
    def from_bytes(cls, content: bytes) -> SinkEntry:
        """Undo ``to_bytes``."""
        line, _, payload = content.partition(b"\n")
        head = json.loads(line)
        table = Location(path=head["path"], parts=tuple(head["parts"]))
        return cls(SinkTarget(table, head["app_id"]), head["run_id"], payload)
