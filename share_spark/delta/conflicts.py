"""Did another writer commit first? What Delta's writer raises then."""

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
"""None is derived from another one."""

_CONFLICT = re.compile(r"io\.delta\.exceptions\.\w*(?:Concurrent|MetadataChanged)\w*Exception")
"""Delta 4.0 leaves them Java's until its Python classes are asked for; then the text has Java's name."""


def is_conflict(error: Exception) -> bool:
    """Would the same change succeed if it were made again?"""
    return isinstance(error, _CONFLICTS) or bool(_CONFLICT.search(str(error)))
