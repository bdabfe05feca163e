"""The meaning of ledgers for the repeat of a task, and for the next engine after one that did not stop cleanly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from share_spark.delivery.ledger import STATUS_OF, CallStatus, LedgerEntries, read_entries
from share_spark.delivery.ledger_file import LedgerColumn
from share_spark.delivery.ledger_place import LedgerPlace, task_files
from share_spark.delivery.truncations import are_gone, truncations_in
from share_spark.engine.attempts import AnsweredAttempt, ErrorRun, FinishedCalls, MemberTrace
from share_spark.engine.delivery_port import AcknowledgedSpan
from share_spark.engine.ranges import each_between
from share_spark.model.ids import TopicPartition
from share_spark.model.requests import ANSWERS, AcknowledgeType, Loss, RetryDelay, TracedRange

WORKER_LOST = "worker lost"
"""The error of a record that was in the handler when its worker was lost."""


def member_traces(place: LedgerPlace) -> list[MemberTrace]:
    """Return what other members have left about their last deliveries."""
    return [
        MemberTrace(
            member, _entered(last_attempts([one for at in place.deliveries(member) for one in read_delivery(at)]))
        )
        for member in place.others()
    ]


ANSWER_OF: Mapping[CallStatus, AcknowledgeType | Loss] = {
    **{status: ANSWERS[answer] for answer, status in STATUS_OF.items()},
    CallStatus.ACCEPTED_WITH_ROWS: AcknowledgeType.ACCEPT,
}
"""The answers of handlers, which count without their engine."""

_STATUSES = max(CallStatus) + 1
"""The length of an array by status."""


class LeftCalls(NamedTuple):
    """The finished calls of a member, and its ledgers."""

    calls: FinishedCalls
    tasks: Sequence[LedgerEntries]

    def rows_of(self, accepted: Iterable[AcknowledgedSpan]) -> Iterator[pa.Table]:
        """Yield the output rows of these records of ``calls.put_out``."""
        offsets = {one.partition: np.array([run[:2] for run in one.ranges], np.int64) for one in accepted}
        for task in self.tasks:
            wanted = np.zeros(len(task), bool)
            for at, rows in _by_partition(task, task.have_rows):
                if at in offsets:
                    wanted[rows] = np.isin(task.offset[rows], each_between(*offsets[at].T)[0])
            yield from task.rows_of(wanted)


def left_calls(place: LedgerPlace) -> Iterator[LeftCalls]:
    """Yield the answers in the ledgers of other members, those of the last delivery first."""
    for member, delivery in place.last_deliveries():
        if place.may_take_over(member):
            tasks = last_attempts(read_delivery(delivery))
            yield LeftCalls(_finished(member, tasks), tasks)


def _finished(member: str, tasks: Sequence[LedgerEntries]) -> FinishedCalls:
    errors: dict[TopicPartition, list[ErrorRun]] = {}
    delays: dict[TopicPartition, list[RetryDelay]] = {}
    for task in tasks:
        for at, rows in _by_partition(task, np.isin(task.status, list(ANSWER_OF))):
            for row, offset in zip(rows.tolist(), task.offset[rows].tolist(), strict=True):
                if row in task.errors:
                    errors.setdefault(at, []).append(ErrorRun(offset, offset, task.errors[row]))
                if row in task.delays:
                    delays.setdefault(at, []).append(RetryDelay(offset, offset, task.delays[row]))
    return FinishedCalls(
        member_id=member,
        answered=_attempts(
            tasks, lambda task: np.isin(task.status, [*ANSWER_OF.keys() - {CallStatus.ACCEPTED_WITH_ROWS}])
        ),
        put_out=_attempts(tasks, lambda task: task.have_rows),
        errors={at: sorted(runs) for at, runs in errors.items()},
        delays={at: sorted(runs) for at, runs in delays.items()},
    )


def _attempts(
    tasks: Sequence[LedgerEntries], wanted: Callable[[LedgerEntries], npt.NDArray[np.bool_]]
) -> dict[TopicPartition, tuple[AnsweredAttempt, ...]]:
    codes = np.zeros(_STATUSES, np.int64)
    codes[list(ANSWER_OF)] = list(ANSWER_OF.values())
    found: dict[TopicPartition, list[npt.NDArray[np.int64]]] = {}
    for task in tasks:
        for at, rows in _by_partition(task, wanted(task)):
            columns = [task.offset[rows], task.offset[rows], task.count[rows], codes[task.status[rows]]]
            found.setdefault(at, []).append(np.column_stack(columns).astype(np.int64))
    return {
        at: tuple(AnsweredAttempt(*run[:3], ANSWERS[run[3]]) for run in _joined(np.concatenate(parts)))
        for at, parts in found.items()
    }


def _entered(tasks: Sequence[LedgerEntries]) -> Mapping[TopicPartition, tuple[TracedRange, ...]]:
    """Return the losses of an engine that ended: the ledgers of all its tasks show which records were in a handler. If
    none was, the engine was lost outside of a call, and finished records are ``AFTER_HANDLER``. Throttled ones are
    given back, however it ended."""
    in_handler = sum(int((task.status == CallStatus.IN_HANDLER).sum()) for task in tasks)
    is_explained = in_handler or any((task.status == CallStatus.DIED_AMONG_OTHERS).any() for task in tasks)
    losses = np.full(_STATUSES, Loss.FINISHED if is_explained else Loss.AFTER_HANDLER, np.int64)
    losses[CallStatus.NOT_ENTERED] = Loss.NOT_ENTERED
    losses[CallStatus.IN_HANDLER] = Loss.IN_HANDLER if in_handler == 1 else Loss.AMONG_OTHERS
    losses[CallStatus.DIED_AMONG_OTHERS] = Loss.AMONG_OTHERS
    losses[CallStatus.WAITED] = Loss.FINISHED  # an attempt, and no doubt: its code did not run
    losses[CallStatus.THROTTLED] = Loss.THROTTLED
    found: dict[TopicPartition, list[npt.NDArray[np.int64]]] = {}
    for task in tasks:
        for at, rows in _by_partition(task, task.status != CallStatus.NOT_ENTERED):
            columns = [task.offset[rows], task.offset[rows], task.count[rows], losses[task.status[rows]]]
            found.setdefault(at, []).append(np.column_stack(columns).astype(np.int64))
    return {
        at: tuple(TracedRange(*run[:3], Loss(run[3])) for run in _joined(np.concatenate(parts)))
        for at, parts in found.items()
    }


def _by_partition(task: LedgerEntries, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[TopicPartition, LedgerColumn]]:
    """Yield the wanted rows of each topic-partition, in the order of their offsets."""
    chosen = np.flatnonzero(wanted)
    order = chosen[np.lexsort((task.offset[chosen], task.partition[chosen], task.topic[chosen]))]
    topic, partition = task.topic[order], task.partition[order]
    new = np.flatnonzero((topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])) + 1
    for start, end in itertools.pairwise([0, *new.tolist(), len(order)]):
        if end > start:
            yield TopicPartition(task.topics[topic[start]], int(partition[start])), order[start:end]


def _joined(rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
    """Join rows (first, last, count, how it ended) of single offsets."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    new = (rows[1:, 0] != rows[:-1, 1] + 1) | (rows[1:, 2:] != rows[:-1, 2:]).any(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1])
    last = rows[np.append(starts[1:] - 1, len(rows) - 1), 1]
    for (first, _, count, how), end in zip(rows[starts].tolist(), last.tolist(), strict=True):
        yield first, end, count, how


_CODES = {
    **ANSWER_OF,
    CallStatus.NOT_ENTERED: Loss.NOT_ENTERED,
    CallStatus.IN_HANDLER: Loss.NOT_ENTERED,
    CallStatus.DIED_AMONG_OTHERS: Loss.AMONG_OTHERS,
    CallStatus.ROWS_LOST: Loss.FINISHED,
    CallStatus.WAITED: Loss.FINISHED,
}
_CODE_OF_STATUS = np.zeros(_STATUSES, np.int8)
_CODE_OF_STATUS[list(_CODES)] = list(_CODES.values())


def codes_of(entries: LedgerEntries) -> npt.NDArray[np.int8]:
    """Return the answer for each record: an acknowledgement or a ``Loss``. A record that may still be in a handler,
    because the query ends without waiting for it, counts as not entered."""
    found: npt.NDArray[np.int8] = _CODE_OF_STATUS[entries.status]
    return found


def read_delivery(directory: Path) -> list[LedgerEntries]:
    """Return all ledgers of a delivery, without the entries of records that were cut off from their logs: these count
    as not entered."""
    if not directory.is_dir():
        return []
    tasks = [read_entries(file) for file in task_files(directory)]
    truncations = truncations_in(directory)
    return [_without(task, are_gone(task, truncations)) for task in tasks] if truncations else tasks


def _without(task: LedgerEntries, entries: npt.NDArray[np.bool_]) -> LedgerEntries:
    status = np.where(entries, CallStatus.NOT_ENTERED, task.status).astype(task.status.dtype)
    return replace(task, status=status)


def last_attempts(tasks: Sequence[LedgerEntries]) -> list[LedgerEntries]:
    """Return the ledgers without earlier attempts at a record: these count as not entered. Hand-overs to a companion
    may be of the same record, also with the same count, while all of them are in its ledgers."""
    sizes = [len(task) for task in tasks]
    if not sum(sizes):
        return list(tasks)
    names: dict[str, int] = {}
    topics = [np.array([names.setdefault(name, len(names)) for name in task.topics], np.int64) for task in tasks]
    topic = np.concatenate([ids[task.topic] for ids, task in zip(topics, tasks, strict=True)])
    partition, offset, number, count = (
        np.concatenate([getattr(task, name) for task in tasks]) for name in ("partition", "offset", "number", "count")
    )
    order = np.lexsort((count, number, offset, partition, topic))
    same = (np.diff(topic[order]) == 0) & (np.diff(partition[order]) == 0) & (np.diff(offset[order]) == 0)
    if not same.any():
        return list(tasks)
    is_last = np.ones(len(order), bool)
    is_last[order[:-1][same]] = False
    parts = np.split(is_last, np.cumsum(sizes)[:-1])
    return [_without(task, ~last) for task, last in zip(tasks, parts, strict=True)]
