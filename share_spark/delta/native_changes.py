"""Changes of a table's files by delta-rs, and its checkpoints: small files joined, rows deleted, without a Spark job.

On a local disk this is not only a matter of time. Delta's writer there checks whether a version exists and renames over
it, so its commit can replace one that an engine has put in between (``direct_append``); delta-rs puts a commit only if
there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from share_spark.delta.table_log import TableLog, UnknownTableError

if TYPE_CHECKING:
    from deltalake import DeltaTable


PartitionFilter = Mapping[str, Sequence[str]]
"""The chosen partitions: the values of each of these partition columns, as text."""


class RowFilter(NamedTuple):
    """The same condition on rows in two dialects of SQL, which differ in quotes and literals."""

    spark: str
    delta_rs: str


_ROW_GROUP_ROWS = 100_000
"""The size of row groups of a joined file: a reader of a few records decodes a row group from its beginning."""


class ConflictError(Exception):
    """Raised if another writer committed first."""


def join_files(log: TableLog, chosen: PartitionFilter, target_bytes: int) -> None:
    """Join the small files of the partitions ``chosen`` (all if it is empty), up to ``target_bytes`` a file; no row
    changes. Raises UnknownTableError (only Spark can do it), ConflictError; then nothing has happened."""
    from deltalake import WriterProperties  # takes a fraction of a second

    filters = [(name, "in", list(values)) for name, values in chosen.items()]
    properties = WriterProperties(compression="SNAPPY", max_row_group_size=_ROW_GROUP_ROWS)

    def join(table: DeltaTable, options: Mapping[str, Any]) -> None:
        table.optimize.compact(
            filters, target_size=target_bytes, max_concurrent_tasks=1, writer_properties=properties, **options
        )

    _changed(log, join)


def delete_rows(log: TableLog, where: RowFilter) -> None:
    """Delete the rows for which ``where`` is true. Raises UnknownTableError (only Spark can do it), ConflictError; then
    nothing has happened."""

    def delete(table: DeltaTable, options: Mapping[str, Any]) -> None:
        table.delete(where.delta_rs, **options)

    _changed(log, delete)


def _changed(log: TableLog, change: Callable[[DeltaTable, Mapping[str, Any]], None]) -> None:
    from deltalake import DeltaTable, PostCommitHookProperties
    from deltalake.exceptions import CommitFailedError, DeltaError

    directory = log.files.local_directory
    log.check_can_replace()
    if directory is None:
        raise UnknownTableError("it is on another storage")
    # Checkpoints and clean-up have conditions of their own: see ``write_natively``.
    options = {
        "post_commithook_properties": PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    }
    try:
        change(DeltaTable(directory), options)
    except CommitFailedError as fault:
        raise ConflictError(str(fault)) from fault
    except (DeltaError, OSError) as fault:
        raise UnknownTableError(f"delta-rs cannot change it: {fault}") from fault


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
