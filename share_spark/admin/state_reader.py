"""The state of share groups, exact at the last commit, from the files of the state log. No Spark, no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from share_spark.admin.table_files import log_without_spark, state_log_without_spark
from share_spark.coordinator.group import ShareGroup
from share_spark.delta.table_log import GoneFileError, TableLog, UnknownTableError
from share_spark.engine.pauses import NOT_PAUSED
from share_spark.maintenance.heartbeat import ALIVE, Beat, EngineEnd, wall_clock_ms
from share_spark.maintenance.operator_files import DynamicConfigFile, EmptyGroupFile, PauseFile
from share_spark.model.errors import StateError, no_such_group
from share_spark.model.ids import SharePartitionKey
from share_spark.partition import SharePartition
from share_spark.spark.files import StorageFiles, group_file_name
from share_spark.state.commits import CommitListing, GroupTail, tail_found
from share_spark.state.direct_rows import MOST_RANGES, rows_by_batch, segment_stamps
from share_spark.state.fold import LogState, fold_log
from share_spark.state.tables import check_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group at its last micro-batch. ``writer_epoch``: its last engine's. ``at_ms``: when it was decided, 0 if there
    was none. ``partitions``: (topic name, state) by key. ``members``: the clients of a gateway that are members of it,
    with its epochs; None if it never had one."""

    group_id: str
    writer_epoch: int
    at_ms: int
    partitions: Mapping[SharePartitionKey, tuple[str, SharePartition]]
    members: ShareGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine of a group, by its heartbeat. ``written_ms``: when the last heartbeat was written, milliseconds since
    the epoch; ``silent_ms``: the time since then."""

    beat: Beat
    written_ms: int
    silent_ms: int

    @property
    def is_running(self) -> bool:
        """Whether it runs, judging by its heartbeat."""
        return self.end is None

    @property
    def end(self) -> EngineEnd | None:
        """The end of the engine; None while it runs, judging by its heartbeat."""
        return self.beat.found_end(self.written_ms, self.silent_ms)


@dataclass(frozen=True, slots=True)
class StateReader:
    """The state log in ``directory``; ``commits`` are its own. ``is_past``: a version was chosen; its engines are not
    known."""

    directory: str
    log: TableLog
    commits: CommitListing
    is_past: bool = False

    @classmethod
    def open(cls, location: str, version: int | None = None) -> StateReader:
        """Open the log in the state directory ``location``, at its latest or an earlier ``version``
        (``state_versions``). Raises ConfigError (not a path), StateError (no state of ours there)."""
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
        """Return all groups that were not deleted."""
        return [group_id for group_id in self.known_groups() if not self.is_deleted(group_id)]

    def known_groups(self) -> list[str]:
        """Return all groups with rows in the log, some of which may be deleted, and those that are kept without any."""
        in_log = {file.values["group_id"] for file in self.log.active.values()}
        return sorted(in_log | set(() if self.is_past else EmptyGroupFile.groups(self.directory, self._storage)))

    def is_deleted(self, group_id: str) -> bool:
        """Return whether one of ``known_groups`` is deleted."""
        return not self._is_there(group_id, self._tail(group_id))

    def _is_there(self, group_id: str, tail: GroupTail) -> bool:
        """Return whether the group is there. A commit of the share coordinator without records, of a micro-batch before
        the first, ends a group, unless it is kept."""
        has_ended = tail.valid.batch_id < 0 if tail.valid is not None else not self._has_rows(group_id)
        return not has_ended or (not self.is_past and self.empty_group_file(group_id).is_there())

    def _has_rows(self, group_id: str) -> bool:
        return any(file.values["group_id"] == group_id for file in self.log.active.values())

    def require(self, group_id: str) -> GroupTail:
        """Return the end of the group's log. Raises StateError: there is no such group."""
        found = self._tail(group_id) if group_id in self.known_groups() else None
        if found is None or not self._is_there(group_id, found):
            raise no_such_group(group_id, self.directory)
        return found

    def group(self, group_id: str) -> GroupState:
        """Return the group. Raises StateError: there is no such group, or only Spark can read its state."""
        found = self.require(group_id)
        state = LogState({})
        if found.valid is not None and found.valid.batch_id >= 0:
            try:
                state = fold_log(rows_by_batch(self.log, found.valid, MOST_RANGES), group_id)
            except UnknownTableError as reason:
                raise self._unreadable(group_id, reason) from reason
        at_ms = 0 if found.valid is None else found.valid.at_ms
        return GroupState(
            group_id=group_id,
            writer_epoch=found.epoch,
            at_ms=at_ms,
            partitions=state.partitions,
            members=state.group,
        )

    def _unreadable(self, group_id: str, reason: UnknownTableError) -> StateError:
        text = f"the state of group {group_id!r}"
        if self.is_past and isinstance(reason, GoneFileError):
            return StateError(f"{text} at version {self.log.version} of the log is gone: VACUUM has removed its files")
        return StateError(f"{text} cannot be read without Spark: {reason}")

    def _tail(self, group_id: str) -> GroupTail:
        return tail_found(self.commits, self.log.version, group_id, lambda: segment_stamps(self.log, group_id))

    def engine(self, group_id: str) -> Engine | None:
        """Return the engine that has sent the last heartbeat, if any did."""
        if self.is_past:
            return None
        path, storage = self._heartbeat_path(group_id), self._storage
        at_ms, content = storage.modified_at_ms(path), storage.read(path)
        if at_ms is None or content is None:
            return None
        silent_ms = max(0, wall_clock_ms() - at_ms)
        return Engine(beat=Beat.from_text(content.decode()), written_ms=at_ms, silent_ms=silent_ms)

    def job_settings(self, group_id: str) -> Mapping[str, str]:
        """Return the settings of the group's last engine, by key, without those that are the default."""
        engine = self.engine(group_id)
        return (engine.beat.settings if engine is not None else None) or {}

    def letter_table(self, group_id: str) -> str | None:
        """Return the table of the group's dead letters, if its engine names one."""
        engine = self.engine(group_id)
        return None if engine is None else engine.beat.letters

    def pause_file(self, group_id: str) -> PauseFile:
        """Return the file of the group's pauses."""
        return PauseFile.beside(self.directory, group_id, self._storage)

    def dynamic_config_file(self, group_id: str) -> DynamicConfigFile:
        """Return the file of the group's dynamic configs."""
        return DynamicConfigFile.beside(self.directory, group_id, self._storage)

    def empty_group_file(self, group_id: str) -> EmptyGroupFile:
        """Return the file that keeps the group without share-partitions."""
        return EmptyGroupFile.beside(self.directory, group_id, self._storage)

    def delete_beside(self, group_id: str) -> None:
        """Delete a group's files beside the log, so that the next group of that name gets none of them."""
        self.pause_file(group_id).write(NOT_PAUSED)
        self.dynamic_config_file(group_id).write({})
        self._storage.delete(self._heartbeat_path(group_id))
        self.empty_group_file(group_id).delete()

    def _heartbeat_path(self, group_id: str) -> str:
        return f"{self.directory}/_share_spark/{ALIVE}/{group_file_name(group_id)}"

    @property
    def _storage(self) -> StorageFiles:
        return self.log.files.storage
