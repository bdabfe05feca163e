"""The columns of a Delta table: the text in its metadata, which is JSON, and the same in Arrow's types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa


def columns_of(schema_text: str) -> pa.Schema:
    """Return the columns in Arrow's types. Raises ValueError: the text is no schema, or has a type that Arrow does not
    have."""
    from deltalake import Schema

    columns: Any = Schema.from_json(schema_text).to_arrow()
    return pa.schema(columns)


def schema_text_of(columns: pa.Schema) -> str:
    """Return the text for these columns. Raises ValueError: there is a type that Delta does not have."""
    from deltalake import Schema

    return Schema.from_arrow(columns).to_json()


def fields_in(schema_text: str) -> Sequence[Mapping[str, Any]]:
    """Return the columns as the text has them, with ``name``, ``type``, ``nullable`` and ``metadata``."""
    fields: Sequence[Mapping[str, Any]] = json.loads(schema_text)["fields"]
    return fields
