"""The meaning of ledgers for the repeat of a task, and for the next engine after one that did not stop cleanly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from share_spark.delivery.ledger import CallStatus, LedgerColumn, LedgerEntries, read_entries
from share_spark.delivery.ledger_place import LedgerPlace, task_files
from share_spark.engine.ports import MemberTrace
from share_spark.handlers.acknowledgement import Ack
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import Loss

WORKER_LOST = "worker lost"
"""The error of a record that was in the handler when its worker was lost."""


def member_traces(place: LedgerPlace) -> list[MemberTrace]:
    """Return what other members have left about their last deliveries."""
    return [
        MemberTrace(
            member, _entered([read_entries(file) for at in place.deliveries(member) for file in task_files(at)])
        )
        for member in place.others()
    ]


def _entered(tasks: Sequence[LedgerEntries]) -> Mapping[TopicPartition, npt.NDArray[np.int64]]:
    """Return the losses of an engine that ended: the ledgers of all its tasks show which records were in a handler. If
    none was, the engine was lost outside of a call, and finished records are ``AFTER_HANDLER``."""
    in_handler = sum(int((task.status == CallStatus.IN_HANDLER).sum()) for task in tasks)
    is_explained = in_handler or any((task.status == CallStatus.DIED_AMONG_OTHERS).any() for task in tasks)
    losses = np.full(len(CallStatus), Loss.FINISHED if is_explained else Loss.AFTER_HANDLER, np.int64)
    losses[CallStatus.NOT_ENTERED] = Loss.NOT_ENTERED
    losses[CallStatus.IN_HANDLER] = Loss.IN_HANDLER if in_handler == 1 else Loss.AMONG_OTHERS
    losses[CallStatus.DIED_AMONG_OTHERS] = Loss.AMONG_OTHERS
    found: dict[TopicPartition, list[npt.NDArray[np.int64]]] = {}
    for task in tasks:
        for at, rows in _by_partition(task):
            columns = [task.offset[rows], task.offset[rows], task.count[rows], losses[task.status[rows]]]
            found.setdefault(at, []).append(np.column_stack(columns).astype(np.int64))
    return {at: _joined(np.concatenate(parts)) for at, parts in found.items()}


def _by_partition(task: LedgerEntries) -> Iterator[tuple[TopicPartition, LedgerColumn]]:
    """Yield the rows of each topic-partition that were entered."""
    entered = np.flatnonzero(task.status != CallStatus.NOT_ENTERED)
    order = entered[np.lexsort((task.offset[entered], task.partition[entered], task.topic[entered]))]
    topic, partition = task.topic[order], task.partition[order]
    new = np.flatnonzero((topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])) + 1
    for start, end in itertools.pairwise([0, *new.tolist(), len(order)]):
        if end > start:
            yield TopicPartition(task.topics[topic[start]], int(partition[start])), order[start:end]


def _joined(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Join rows (first, last, count, loss) of single offsets to ranges."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    new = (rows[1:, 0] != rows[:-1, 1] + 1) | (rows[1:, 2:] != rows[:-1, 2:]).any(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1])
    joined: npt.NDArray[np.int64] = rows[starts].copy()
    joined[:, 1] = rows[np.append(starts[1:] - 1, len(rows) - 1), 1]
    return joined


_CODES = {
    CallStatus.NOT_ENTERED: Loss.NOT_ENTERED,
    CallStatus.IN_HANDLER: Loss.NOT_ENTERED,
    CallStatus.ACCEPTED: Ack.ACCEPT,
    CallStatus.RELEASED: Ack.RELEASE,
    CallStatus.REJECTED: Ack.REJECT,
    CallStatus.ACCEPTED_WITH_ROWS: Ack.ACCEPT,
    CallStatus.DIED_AMONG_OTHERS: Loss.AMONG_OTHERS,
    CallStatus.ROWS_LOST: Loss.FINISHED,
}
_CODE_OF_STATUS = np.array([_CODES[status] for status in CallStatus], np.int8)


def codes_of(entries: LedgerEntries) -> npt.NDArray[np.int8]:
    """Return the answer for each record: an acknowledgement or a ``Loss``. A record that may still be in a handler,
    because the query ends without waiting for it, counts as not entered."""
    found: npt.NDArray[np.int8] = _CODE_OF_STATUS[entries.status]
    return found


def read_delivery(directory: Path) -> list[LedgerEntries]:
    """Return all ledgers of a delivery."""
    return [read_entries(file) for file in task_files(directory)] if directory.is_dir() else []
