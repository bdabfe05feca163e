"""The state of share groups, exact as of the last commit, from the files of the state log. No Spark, no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from share_spark.admin.table_files import log_without_spark, state_log_without_spark
from share_spark.delta.table_log import GoneFileError, TableLog, UnknownTableError
from share_spark.maintenance.dynamic_config_file import DynamicConfigFile
from share_spark.maintenance.heartbeat import ALIVE, Beat, wall_clock_ms
from share_spark.maintenance.pause_file import PauseFile
from share_spark.model.errors import StateError, no_such_group
from share_spark.model.ids import SharePartitionKey
from share_spark.partition import SharePartition
from share_spark.state.commits import CommitListing, GroupTail, SegmentStamps, tail_found
from share_spark.state.direct_rows import rows_that_count, stamp_rows
from share_spark.state.fold import fold_rows
from share_spark.state.record_rows import SNAPSHOT
from share_spark.state.tables import check_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group as of its last micro-batch. ``writer_epoch``: of its last engine. ``at_ms``: when it was decided, 0 if
    there was none. ``partitions``: (topic name, state) by key."""

    group_id: str
    writer_epoch: int
    at_ms: int
    partitions: Mapping[SharePartitionKey, tuple[str, SharePartition]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine of a group, as it says itself. ``silent_ms``: since its last heartbeat."""

    beat: Beat
    silent_ms: int

    @property
    def is_running(self) -> bool:
        """As far as one can see from here."""
        return self.beat.is_running(self.silent_ms)


@dataclass(frozen=True, slots=True)
class StateReader:
    """The state log in ``directory``; ``commits`` are its own. ``is_past``: as of a version that was chosen; of its
    engines nothing is known."""

    directory: str
    log: TableLog
    commits: CommitListing
    is_past: bool = False

    @classmethod
    def open(cls, location: str, version: int | None = None) -> StateReader:
        """``location``: the state directory; as of now, or of an earlier ``version`` of the log (``state_versions``).
        Raises ConfigError (not a path), StateError (no state of ours there)."""
        place = state_log_without_spark(location)
        try:
            log = log_without_spark(place, version)
        except UnknownTableError as reason:
            raise StateError(f"the state at {location} cannot be read without Spark: {reason}") from reason
        if log is None:
            raise StateError(f"no share-group state at {location}")
        check_properties(str(place), log.properties)
        return cls(str(place.path).rstrip("/"), log, CommitListing(log.files), version is not None)

    def groups(self) -> list[str]:
        """All that were not deleted."""
        return [group_id for group_id in self._known() if not _is_deleted(self._tail(group_id))]

    def require(self, group_id: str) -> GroupTail:
        """The end of the group's log. Raises StateError: there is no such group."""
        found = self._tail(group_id) if group_id in self._known() else None
        if found is None or _is_deleted(found):
            raise no_such_group(group_id, self.directory)
        return found

    def group(self, group_id: str) -> GroupState:
        """Raises StateError: there is no such group, or its state has to be read by Spark."""
        found = self.require(group_id)
        partitions: Mapping[SharePartitionKey, tuple[str, SharePartition]] = {}
        if found.valid is not None:
            try:
                partitions = fold_rows(rows_that_count(self.log, found.valid), group_id)
            except UnknownTableError as reason:
                raise self._unreadable(group_id, reason) from reason
        at_ms = 0 if found.valid is None else found.valid.at_ms
        return GroupState(group_id=group_id, writer_epoch=found.epoch, at_ms=at_ms, partitions=partitions)

    def _unreadable(self, group_id: str, reason: UnknownTableError) -> StateError:
        text = f"the state of group {group_id!r}"
        if self.is_past and isinstance(reason, GoneFileError):
            return StateError(f"{text} at version {self.log.version} of the log is gone: VACUUM has removed its files")
        return StateError(f"{text} cannot be read without Spark: {reason}")

    def _known(self) -> list[str]:
        return sorted({file.values["group_id"] for file in self.log.active.values()})

    def _tail(self, group_id: str) -> GroupTail:
        return tail_found(self.commits, self.log.version, group_id, lambda: self._stamps(group_id))

    def engine(self, group_id: str) -> Engine | None:
        """That has sent a heartbeat last, if any did."""
        if self.is_past:
            return None
        path = f"{self.directory}/_share_spark/{ALIVE}/{quote(group_id, safe='')}"
        storage = self.log.files.storage
        at_ms, content = storage.modified_at_ms(path), storage.read(path)
        if at_ms is None or content is None:
            return None
        return Engine(beat=Beat.from_text(content.decode()), silent_ms=max(0, wall_clock_ms() - at_ms))

    def job_settings(self, group_id: str) -> Mapping[str, str]:
        """Of the last engine that ran the group, as far as it says; by key, without those that are the default."""
        engine = self.engine(group_id)
        return (engine.beat.settings if engine is not None else None) or {}

    def letter_table(self, group_id: str) -> str | None:
        """Where the dead letters of the group go, if its engine says that it is a table."""
        engine = self.engine(group_id)
        return None if engine is None else engine.beat.letters

    def pause_file(self, group_id: str) -> PauseFile:
        """What of the group is paused."""
        return PauseFile.beside(self.directory, group_id, self.log.files.storage)

    def dynamic_config_file(self, group_id: str) -> DynamicConfigFile:
        """What is set for the group while it runs."""
        return DynamicConfigFile.beside(self.directory, group_id, self.log.files.storage)

    def _stamps(self, group_id: str) -> Iterator[SegmentStamps]:
        rows = stamp_rows(self.log, group_id)
        marked = rows.append_column("is_whole", pc.equal(rows.column("kind"), pa.scalar(SNAPSHOT)))
        found = marked.group_by(["segment", "writer_epoch"]).aggregate(
            [("is_whole", "max"), ("batch_id", "max"), ("at_ms", "max")]
        )
        for row in found.to_pylist():
            yield SegmentStamps(
                segment=row["segment"],
                writer_epoch=row["writer_epoch"],
                is_whole=row["is_whole_max"],
                batch_id=row["batch_id_max"],
                at_ms=row["at_ms_max"] or 0,
            )


def _is_deleted(found: GroupTail) -> bool:
    """By a commit of the share coordinator without records, of a micro-batch before the first."""
    return found.valid is not None and found.valid.batch_id < 0
