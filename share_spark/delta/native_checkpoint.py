"""Checkpoints by delta-rs: some hundredths of a second, where Spark takes seconds of both cores."""

from __future__ import annotations

import logging

from share_spark.delta.table_log import TableLog, UnknownTableError

_log = logging.getLogger(__name__)

_POLICY = "delta.checkpointPolicy"


def write_natively(log: TableLog, *, cleans: bool = False) -> bool:
    """Of the table's newest version; did it? Not on a storage that only Spark reaches, nor if ``log`` has anything that
    plain tables do not have. ``cleans``: old commits are removed as well."""
    from deltalake import DeltaTable  # some tenths of a second
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(_plain_directory(log))
        table.create_checkpoint()
        if cleans:
            table.cleanup_metadata()
    except (DeltaError, UnknownTableError) as reason:
        _log.debug("a checkpoint of %s is left to Spark: %s", log.files.directory, reason)
        return False
    return True


def _plain_directory(log: TableLog) -> str:
    path = log.files.local_directory
    log.check_can_append()
    if path is None or _POLICY in log.properties or not all(file.is_whole for file in log.active.values()):
        raise UnknownTableError("it is on another storage, has deletion vectors, or wants another form of checkpoint")
    return path
