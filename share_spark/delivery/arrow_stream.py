"""Tables as bytes: one Arrow stream each."""

from __future__ import annotations

import pyarrow as pa


def stream_of(table: pa.Table) -> bytes:
    """Return the table as a stream."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue())


def table_in(stream: bytes) -> pa.Table:
    """Undo ``stream_of``."""
    return pa.ipc.open_stream(stream).read_all()
