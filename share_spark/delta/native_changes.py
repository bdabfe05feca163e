"""Changes of a table's files by delta-rs: small files joined, rows deleted, without a Spark job.

On a local disk this is not only a matter of time. Delta's writer there checks whether a version exists and renames over
it, so its commit can replace one that an engine has put in between (``direct_append``); delta-rs puts a commit only if
there is none.
"""

from __future__ import annotations

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
    # ``native_checkpoint`` makes checkpoints and clean-up.
    options = {
        "post_commithook_properties": PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    }
    try:
        change(DeltaTable(directory), options)
    except CommitFailedError as fault:
        raise ConflictError(str(fault)) from fault
    except (DeltaError, OSError) as fault:
        raise UnknownTableError(f"delta-rs cannot change it: {fault}") from fault
