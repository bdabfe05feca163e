"""The errors of Delta's writer when another writer has committed first."""

from __future__ import annotations

import re

from delta import exceptions

_CONFLICTS: tuple[type[Exception], ...] = (
    exceptions.DeltaConcurrentModificationException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentTransactionException,
)
"""The classes of conflicts; none is derived from another one."""

_CONFLICT = re.compile(r"io\.delta\.exceptions\.\w*(?:Concurrent|MetadataChanged)\w*Exception")
"""A conflict's class in a text: Delta 4.0 raises Java's until its Python classes are loaded."""


def is_conflict(error: Exception) -> bool:
    """Return whether the same change would succeed if it were made again."""
    return isinstance(error, _CONFLICTS) or bool(_CONFLICT.search(str(error)))
