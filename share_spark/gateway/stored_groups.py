"""The groups whose state is in the tables, whether or not an engine of this gateway has them at present."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from share_spark.admin.group_changes import NewOffset, planned_configs
from share_spark.admin.group_details import GroupPhase, phase_of
from share_spark.admin.share_group_admin import ShareGroupAdmin
from share_spark.admin.state_reader import GroupState, StateReader
from share_spark.coordinator.group import ShareGroup
from share_spark.coordinator.messages import ShareGroupStateRequest, StateResult
from share_spark.delta.location import Location
from share_spark.maintenance.share_coordinator import DeltaShareCoordinator
from share_spark.model.config import DEFAULT_CONFIG, GroupConfig
from share_spark.model.dynamic_config import ConfigEntry, entries
from share_spark.spark.on_demand import AnySpark
from share_spark.state.tables import ensure_tables, log_table


@dataclass(frozen=True, slots=True)
class StoredGroups:
    """The groups in the state directory ``location``. Each call reads the tables anew, and waits for the storage: not
    for the thread of the event loop. Raises ConfigError, StateError; changes raise FencedError and SinkError too.
    ``config``: the settings that groups begin with, and those of the gateway."""

    location: str
    spark: AnySpark = None
    config: GroupConfig = DEFAULT_CONFIG

    def phases(self) -> dict[str, GroupPhase]:
        """Return the state of each group, by its engine: STABLE while one runs it."""
        reader = self._reader()
        if reader is None:
            return {}
        return {name: phase_of(reader.engine(name)) for name in reader.groups()}

    def phase(self, group_id: str) -> GroupPhase | None:
        """Return the state of a group, by its engine; None if there is no such group."""
        reader = self._reader()
        if reader is None or not _has(reader, group_id):
            return None
        return phase_of(reader.engine(group_id))

    def find(self, group_id: str) -> GroupState | None:
        """Return a group with its share-partitions; None if there is no such group."""
        reader = self._reader()
        return reader.group(group_id) if reader is not None and _has(reader, group_id) else None

    def members(self, group_id: str) -> ShareGroup | None:
        """Return the members and epochs of a group; None if it never had a member."""
        found = self.find(group_id)
        return None if found is None else found.members

    def begin_at(self, offsets: Sequence[NewOffset]) -> None:
        """Begin share-partitions of one group anew, in one commit; the group, and they, may be new."""
        self._admin.reset_offsets(offsets)

    def delete_offsets(self, group_id: str, topics: Collection[str]) -> None:
        """Delete the state of these topics, which the group has. The group stays."""
        self._admin.delete_offsets(group_id, topics)

    def delete(self, group_id: str) -> None:
        """Delete a group, if it is there."""
        if self.phase(group_id) is not None:
            self._admin.delete_group(group_id)

    def state(self, asked: ShareGroupStateRequest, topic_names: Mapping[str, str]) -> Sequence[StateResult]:
        """Return the answers of the share coordinator. ``topic_names``: by id, of topics that may be new to a group."""
        shares = DeltaShareCoordinator(self.spark, self.location, topic_names=topic_names)
        shares.load()
        return shares.answer(asked)

    # --------------------------------------------------------------------------------------------- configs

    def configs(self, group_id: str) -> list[ConfigEntry]:
        """Return all settings of a group, which need not be there yet (R146)."""
        reader = self._reader()
        dynamic = {} if reader is None else reader.dynamic_config_file(group_id).read()
        return entries(self.config.not_default(), dynamic)

    def alter_configs(
        self, group_id: str, added: Mapping[str, str], deleted: Collection[str], *, validate_only: bool
    ) -> None:
        """Set dynamic configs of a group, which need not be there yet; only look whether it could be done if
        ``validate_only``."""
        ensure_tables(self.spark, Location.parse(self.location))
        reader = StateReader.open(self.location)
        found = planned_configs(reader, group_id, added, deleted, self.config)
        if not validate_only:
            reader.dynamic_config_file(group_id).write(found)

    # ------------------------------------------------------------------------------------------------------

    def _reader(self) -> StateReader | None:
        """Return the state log; None before the first engine has made it."""
        if not log_table(Location.parse(self.location)).exists(self.spark):
            return None
        return StateReader.open(self.location)

    @property
    def _admin(self) -> ShareGroupAdmin:
        return ShareGroupAdmin(self.location, spark=self.spark)


def _has(reader: StateReader, group_id: str) -> bool:
    return group_id in reader.known_groups() and not reader.is_deleted(group_id)
