"""The requirements of a table's protocol, properties and columns for its writers, by Delta's actions. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_HARMLESS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "domainMetadata",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""The writer features without a requirement for appends."""

_MARKS = {
    "invariants": "delta.invariants",
    "checkConstraints": "delta.constraints.",
    "generatedColumns": "delta.generationExpression",
    "allowColumnDefaults": "CURRENT_DEFAULT",
    "identityColumns": "delta.identity.",
    "columnMapping": "delta.columnMapping.mode",
}
"""The features with one if the table uses them, with the prefix of the property or column metadata that shows it."""

_REFUSING = {
    "delta.appendOnly": "its rows must not be changed (delta.appendOnly)",
    "delta.enableChangeDataFeed": "it has a change data feed",
}

_OF_WRITER_VERSION = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""The features that the writer versions before feature lists (7) have added."""

_FEATURE_LISTS = 7

_CATALOG_MANAGED = ("catalogManaged", "catalogOwned")
"""The prefixes of features with which commits may be outside of the table's log."""


def unsupported_feature(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Return a writer feature that the table uses and that only Spark's writer supports; None if there is none."""
    marks = tuple(_marks(metadata))
    for feature in sorted(_writer_features(protocol) - _HARMLESS):
        mark = _MARKS.get(feature)
        if mark is None or any(name.startswith(mark) for name in marks):
            return feature
    return None


def catalog_feature(protocol: Mapping[str, Any]) -> str | None:
    """Return the feature by which a catalog keeps the table's commits; None if they are in its log."""
    listed = {*(protocol.get("writerFeatures") or ()), *(protocol.get("readerFeatures") or ())}
    return next((name for name in sorted(listed) if name.startswith(_CATALOG_MANAGED)), None)


def refusal_of_changes(metadata: Mapping[str, Any]) -> str | None:
    """Return why no file may be removed from the table without Spark; None if one may."""
    properties = metadata.get("configuration") or {}
    return next((reason for name, reason in _REFUSING.items() if properties.get(name) == "true"), None)


def required_column(metadata: Mapping[str, Any]) -> str | None:
    """Return the first column that may not be null, nested ones too."""
    return _required_column(json.loads(metadata["schemaString"]))


def has_limited_texts(metadata: Mapping[str, Any]) -> bool:
    """Return whether a column has a type of texts of limited length."""
    names = _column_metadata(json.loads(metadata["schemaString"]))
    return any(name == "__CHAR_VARCHAR_TYPE_STRING" for name in names)


def _marks(metadata: Mapping[str, Any]) -> Iterator[str]:
    for name, value in dict(metadata.get("configuration") or {}).items():
        if (name, value) != (_MARKS["columnMapping"], "none"):
            yield name
    yield from _column_metadata(json.loads(metadata["schemaString"]))


def _writer_features(protocol: Mapping[str, Any]) -> frozenset[str]:
    version = int(protocol["minWriterVersion"])
    if version > _FEATURE_LISTS:
        return frozenset({f"writer version {version}"})
    listed = protocol.get("writerFeatures") or ()
    implied = (name for added, names in _OF_WRITER_VERSION.items() if added <= version for name in names)
    return frozenset(listed) if version == _FEATURE_LISTS else frozenset(implied)


def _column_metadata(kind: Any) -> Iterator[str]:
    """Yield the names in the metadata of all columns, nested ones too, of a schema's JSON."""
    if not isinstance(kind, dict):
        return
    for column in kind.get("fields", ()):
        yield from column.get("metadata", {})
        yield from _column_metadata(column["type"])
    for inside in ("elementType", "keyType", "valueType"):
        yield from _column_metadata(kind.get(inside))


def _required_column(kind: Any) -> str | None:
    """Return the first column that may not be null, in a schema's JSON."""
    for column in kind.get("fields", ()) if isinstance(kind, dict) else ():
        if not column["nullable"]:
            return str(column["name"])
        if (inside := _required_column(column["type"])) is not None:
            return inside
    return None
