"""The status table, without Spark: the rows of a group are exchanged, bucket by bucket, in one commit."""

from __future__ import annotations

from collections.abc import Collection

from share_spark.delta.direct_append import DirectAppends
from share_spark.model.ids import BatchStamp
from share_spark.state.live_state import LiveState
from share_spark.state.state_view import status_rows


def status_app_id(group_id: str, log_id: str) -> str:
    """Under which the group's rows are numbered: an older writer cannot overwrite those of a newer one. ``log_id``: of
    the state log."""
    return f"share_spark/state/{group_id}@{log_id}"


def replace_status(
    appends: DirectAppends, live: LiveState, group_id: str, app_id: str, buckets: Collection[int] | None
) -> None:
    """Write the rows of ``live`` in place of those of the ``buckets`` (None: all). Nothing is written where a newer
    writer has.

    Raises NotImplementedError (only Spark can), and what the storage raises.
    """
    number = BatchStamp(live.writer_epoch, live.batch_id).number
    if appends.log.transactions.get(app_id, number - 1) >= number:
        return
    rows = status_rows(live, buckets)
    files = [appends.write(some, {"group_id": group_id, "bucket": str(bucket)}) for bucket, some in rows.items()]
    replaced = rows.keys() if buckets is None else buckets
    appends.commit(
        files,
        transactions={app_id: number},
        replaced=lambda _, values: values["group_id"] == group_id and int(values["bucket"]) in replaced,
    )
