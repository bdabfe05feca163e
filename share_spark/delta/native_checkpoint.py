"""Checkpoints by delta-rs: hundredths of a second, where Spark takes seconds of both cores."""

from __future__ import annotations

import logging

from share_spark.delta.table_log import TableLog, UnknownTableError

_log = logging.getLogger(__name__)

_INTERVAL = "delta.checkpointInterval"
_OF_CHECKPOINTS = "delta.checkpoint"
_OF_CLEAN_UP = ("delta.enableExpiredLogCleanup", "delta.logRetentionDuration")


def cleans_natively(log: TableLog) -> bool:
    """Return whether the table's history is kept for Delta's default time. Spark reads the settings of its owner:
    delta-rs does not know each property, and replaces an interval that it cannot parse by the default."""
    return not any(name in log.properties for name in _OF_CLEAN_UP)


def write_natively(log: TableLog, *, cleans: bool = False) -> bool:
    """Write a checkpoint of the table's newest version; return whether it was written. Not on a storage that only Spark
    reaches, nor if ``log`` has anything that plain tables do not have. ``cleans``: old commits are removed as well,
    where ``cleans_natively``."""
    from deltalake import DeltaTable  # takes a fraction of a second
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(_plain_directory(log))
        table.create_checkpoint()
        if cleans and cleans_natively(log):
            table.cleanup_metadata()
    except (DeltaError, UnknownTableError) as reason:
        _log.debug("a checkpoint of %s is left to Spark: %s", log.files.directory, reason)
        return False
    return True


def _plain_directory(log: TableLog) -> str:
    path = log.files.local_directory
    log.check_can_append()
    wants_another = any(name.startswith(_OF_CHECKPOINTS) and name != _INTERVAL for name in log.properties)
    if path is None or wants_another or not all(file.is_whole for file in log.active.values()):
        raise UnknownTableError("it is on another storage, has deletion vectors, or wants another form of checkpoint")
    return path
