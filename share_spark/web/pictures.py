"""The values that pages show: groups, their share-partitions, how their last engine has ended, and what cannot be read.
No HTML here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from share_spark.admin.group_details import GroupDetails, GroupMember, GroupPhase, OperatorSettings, PartitionOffsets
from share_spark.admin.group_series import MicroBatchTotals
from share_spark.admin.letters import Letter
from share_spark.admin.letters_by_error import LettersByError
from share_spark.admin.share_group_admin import GroupsLook
from share_spark.admin.state_reader import Engine
from share_spark.admin.state_versions import StateVersion
from share_spark.maintenance.heartbeat import EndKind, EngineEnd
from share_spark.model.errors import ShareError
from share_spark.partition import SharePartition
from share_spark.partition.runs import offsets_by_kind
from share_spark.web.drawings import span, utc
from share_spark.web.offset_line import OffsetLine, offset_line

MOST_PARTITIONS = 1_000
"""The number of share-partitions of a group that are drawn: those with the greatest lag."""

WIDEST, NARROWEST = 480, 48
"""The columns of a line: if there are few share-partitions, and if there are many."""

_COLUMNS_OF_A_GROUP = 48_000

UNEXPECTED = {EndKind.FAILED: "Failed", EndKind.VANISHED: "Engine gone"}
"""The words on a page for the ends that somebody has to look at."""

_SENTENCES = {
    EndKind.STOPPED: "was stopped",
    EndKind.WORKED_OFF: "had worked off everything",
    EndKind.FAILED: "failed",
    EndKind.VANISHED: "fell silent, and has not said that it ended: its last heartbeat was",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPicture:
    """A share-partition."""

    offsets: PartitionOffsets
    line: OffsetLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPicture:
    """Dead letters with the same error; ``letters``: the newest of them, as far as they are shown."""

    error: LettersByError
    letters: Sequence[Letter] = ()

    @property
    def error_id(self) -> str:
        """The name of the error in addresses, as its text may be long."""
        return hashlib.sha256(json.dumps(self.error.key).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersPicture:
    """The dead letters of a group in ``table``; ``more``: errors that are rarer. ``is_cut``: only the newest letters of
    the table were counted. ``fault``: why there are none, empty if they could be read."""

    table: str
    errors: Sequence[ErrorPicture] = ()
    more: int = 0
    is_cut: bool = False
    fault: str = ""


class LagAt(NamedTuple):
    """The lag of a group as it was seen; None: not known."""

    at_ms: int
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPicture:
    """A group over time, ascending: what its log keeps, and the lag as it was seen. ``fault``: why the log is not read,
    empty if it was."""

    micro_batches: Sequence[MicroBatchTotals] = ()
    lags: Sequence[LagAt] = ()
    fault: str = ""


SeriesOf = Callable[[str], SeriesPicture]
"""A function from a group to its series."""


def no_series(_group_id: str) -> SeriesPicture:
    """Return a SeriesPicture of nothing."""
    return SeriesPicture()


LettersOf = Callable[[str], LettersPicture | None]
"""A function from a group to its dead letters, None if it is not known where they are."""


def no_letters(_group_id: str) -> None:
    """Return no dead letters: it is not known where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPicture:
    """A group. ``phase`` None: not known, at an earlier time. ``decided_at_ms``: its last micro-batch, 0 if there was
    none. ``offsets``: of all share-partitions, by topic and partition; ``partitions``: those that are drawn, in the
    same order. ``delivery_counts``: how many records of the windows are not finished, by how often they were delivered.
    ``ends_fault``: why the lag is not known. ``letters`` None: it is not known where they are. ``engine``: the last
    one, None if it is not known."""

    group_id: str
    phase: GroupPhase | None
    decided_at_ms: int
    writer_epoch: int
    members: Sequence[GroupMember]
    offsets: Sequence[PartitionOffsets]
    partitions: Sequence[PartitionPicture]
    delivery_counts: Mapping[int, int]
    ends_fault: str
    operator_settings: OperatorSettings
    engine: Engine | None = None
    letters: LettersPicture | None = None
    series: SeriesPicture = SeriesPicture()


class HasLag(Protocol):
    """A share-partition, ours or one of a Kafka cluster."""

    @property
    def start_offset(self) -> int:
        """The start offset, below 0 if it has not begun."""
        ...

    @property
    def lag(self) -> int | None:
        """The lag, None if it is not known."""
        ...


def total_lag(rows: Iterable[HasLag]) -> int | None:
    """Return the sum of the lags, None if the end of a log is not known. A share-partition that has not begun has no
    lag yet."""
    lags = [row.lag for row in rows if row.start_offset >= 0]
    return None if any(lag is None for lag in lags) else sum(lag for lag in lags if lag is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenGroup:
    """A group whose state cannot be read."""

    group_id: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The groups in ``location`` as of ``at_ms``; ``version``: of the state log, None for now."""

    location: str
    at_ms: int
    groups: Sequence[GroupPicture | BrokenGroup]
    version: StateVersion | None = None


def take_picture(
    look: GroupsLook,
    location: str,
    now_ms: int,
    chosen: Collection[str] = (),
    letters: LettersOf = no_letters,
    series: SeriesOf = no_series,
) -> Picture:
    """Return a picture of the ``chosen`` groups, or of all. Raises StateError: there is no such group."""
    for group_id in chosen:
        look.reader.require(group_id)
    names = sorted(set(chosen)) or [one.group_id for one in look.list_groups()]
    groups = [_group(look, name, letters, series) for name in names]
    return Picture(location=location, at_ms=now_ms, groups=groups)


def take_past_picture(
    look: GroupsLook,
    location: str,
    now_ms: int,
    version: StateVersion,
    chosen: Collection[str] = (),
    series: SeriesOf = no_series,
) -> Picture:
    """Return a picture of a ``look`` at ``version``. Raises as ``take_picture``."""
    found = take_picture(look, location, version.committed_at_ms or now_ms, chosen, series=series)
    return replace(found, version=version)


def _group(look: GroupsLook, group_id: str, letters: LettersOf, series: SeriesOf) -> GroupPicture | BrokenGroup:
    try:
        found = group_picture(look.details(group_id))
        picture = replace(found, letters=letters(group_id), series=series(group_id))
        return replace(picture, phase=None) if look.reader.is_past else picture
    except READ_FAULTS as fault:
        return BrokenGroup(group_id=group_id, fault=fault_line(fault))


READ_FAULTS = (ShareError, OSError, ValueError)
"""The errors of files that are gone, or have another content."""


def fault_line(fault: BaseException) -> str:
    """Return the text of an error in one line."""
    return str(fault).partition("\n")[0] or type(fault).__name__


def group_picture(details: GroupDetails) -> GroupPicture:
    """Return the picture of one group."""
    states = {(topic, state.key.partition): state for topic, state in details.state.partitions.values()}
    drawn = _furthest_behind(details.offsets)
    columns = max(NARROWEST, min(WIDEST, _COLUMNS_OF_A_GROUP // max(1, len(drawn))))
    return GroupPicture(
        group_id=details.state.group_id,
        phase=details.phase,
        decided_at_ms=details.state.at_ms,
        writer_epoch=details.state.writer_epoch,
        members=details.members,
        offsets=details.offsets,
        partitions=[
            PartitionPicture(offsets=row, line=offset_line(states[row.topic, row.partition], columns)) for row in drawn
        ],
        delivery_counts=_delivery_counts(states.values()),
        ends_fault=details.ends_fault,
        operator_settings=details.operator_settings,
        engine=details.engine,
    )


def _furthest_behind(offsets: Sequence[PartitionOffsets]) -> list[PartitionOffsets]:
    """Return the share-partitions with the greatest lag, at most MOST_PARTITIONS, in the order given."""
    if len(offsets) <= MOST_PARTITIONS:
        return list(offsets)
    order = sorted(range(len(offsets)), key=lambda at: _weight(offsets[at]), reverse=True)
    return [offsets[at] for at in sorted(order[:MOST_PARTITIONS])]


def _weight(row: PartitionOffsets) -> tuple[int, int]:
    return (row.lag or 0, row.end_offset - row.start_offset)


def _delivery_counts(states: Collection[SharePartition]) -> dict[int, int]:
    found: dict[int, int] = {}
    for state in states:
        for run, offsets in offsets_by_kind(state.in_flight):
            if not run.delivery_state.is_final:
                found[run.delivery_count] = found.get(run.delivery_count, 0) + offsets
    return dict(sorted(found.items()))


def engine_word(engine: Engine | None, now_ms: int) -> str:
    """Return ``running``, or how and when the engine has ended: ``vanished 5 min ago``; ``-`` if there was none."""
    if engine is None:
        return "-"
    end = engine.end
    return "running" if end is None else f"{end.kind} {_ago(end, now_ms)}"


def end_sentence(engine: Engine, end: EngineEnd, now_ms: int) -> str:
    """Return who ended, how and when, and why it failed."""
    who = f"The last one ({engine.beat.host}, process {engine.beat.pid})" if engine.beat.host else "The last one"
    error = f": {end.error}" if end.error else "."
    return f"{who} {_SENTENCES[end.kind]} {_ago(end, now_ms)}, at {utc(end.at_ms)}{error}"


def _ago(end: EngineEnd, now_ms: int) -> str:
    return f"{span(max(0, now_ms - end.at_ms))} ago"
