"""``ShareGroupAdmin``: what Kafka's Admin client and ``kafka-share-groups.sh`` show of share groups (KIP-932), for the
groups in a state directory. Reading needs no Spark and no JVM, and works while engines run. A change needs a group
without a running engine, and a session only for what Spark alone can do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from share_spark.admin.group_changes import (
    NewOffset,
    StartAt,
    delete,
    forget,
    new_offset,
    partitions_of,
    planned_configs,
    reset,
)
from share_spark.admin.group_details import (
    GroupDetails,
    GroupListing,
    GroupMember,
    GroupPhase,
    KnownOffsets,
    OperatorSettings,
    PartitionOffsets,
    members_of,
    offsets_of,
    phase_of,
)
from share_spark.admin.log_ends import EndsOfTopics, ends_of
from share_spark.admin.record_life import read_record_history
from share_spark.admin.state_reader import GroupState, StateReader
from share_spark.audit.record_events import RecordHistory
from share_spark.engine.pauses import Pauses
from share_spark.kafka.options import KafkaOptions
from share_spark.maintenance.heartbeat import Beat, wall_clock_ms
from share_spark.model.dynamic_config import ConfigEntry, entries
from share_spark.model.errors import ConfigError, StateError, TopicError
from share_spark.model.html_table import html_table
from share_spark.model.ids import LogEnds
from share_spark.spark.on_demand import AnySpark


@dataclass(frozen=True, slots=True)
class GroupsLook:
    """The groups at one moment: the tables are opened once for all questions. See ``ShareGroupAdmin``."""

    reader: StateReader
    kafka: KafkaOptions | None
    topic_table: str | None
    request_timeout_ms: int
    _asked: dict[tuple[str | None, str | None], EndsOfTopics | None] = field(default_factory=dict, repr=False)

    def list_groups(self) -> list[GroupListing]:
        """Return all groups with state."""
        return [self._listing(name) for name in self.reader.groups()]

    def describe_group(self, group_id: str) -> GroupListing:
        """Return the state of a group."""
        self.reader.require(group_id)
        return self._listing(group_id)

    def _listing(self, group_id: str) -> GroupListing:
        engine = self.reader.engine(group_id)
        return GroupListing(group_id=group_id, phase=phase_of(engine), engine=engine)

    def describe_offsets(self, group_id: str) -> list[PartitionOffsets]:
        """Return the offsets by topic and partition."""
        group = self.reader.group(group_id)
        return offsets_of(group, self._log_ends(group))

    def known_lag_ms(self, rows: Sequence[PartitionOffsets]) -> tuple[dict[tuple[str, int], int], str]:
        """Return ``lag_ms``, and why it is not known: topics that cannot be asked are no error."""
        try:
            return self.lag_ms(rows), ""
        except (ConfigError, TopicError) as fault:
            return {}, str(fault)

    def lag_ms(self, rows: Sequence[PartitionOffsets]) -> dict[tuple[str, int], int]:
        """Return the age in ms of the oldest unfinished record, by (topic, partition), for a group's share-partitions
        with a lag. Requests one record of each; where the topics are not known there is none."""
        ends = self.ends(rows[0].group_id) if rows else None
        found: dict[str, dict[int, int]] = {}
        for row in rows:
            if row.lag:
                found.setdefault(row.topic, {})[row.partition] = row.start_offset
        now = wall_clock_ms()
        return {
            (topic, partition): max(0, now - at_ms)
            for topic, offsets in found.items()
            for partition, at_ms in (ends.times_at(topic, offsets) if ends is not None else {}).items()
        }

    def describe_members(self, group_id: str) -> list[GroupMember]:
        """Return the engine, if one runs."""
        return members_of(self.reader.group(group_id), self.reader.engine(group_id))

    def details(self, group_id: str) -> GroupDetails:
        """Return all details, read once. Topics that cannot be asked are no error: the state is there all the same."""
        group, engine = self.reader.group(group_id), self.reader.engine(group_id)
        ends, fault = self._known_ends(group)
        return GroupDetails(
            state=group,
            phase=phase_of(engine),
            members=members_of(group, engine),
            offsets=offsets_of(group, ends),
            ends_fault=fault,
            operator_settings=self._known_settings(group_id),
            engine=engine,
        )

    def record_history(self, group_id: str, topic: str, partition: int, offset: int) -> RecordHistory:
        """Return the history of one record, limited by ``history.retention`` and the size of the log (``is_cut``).
        Raises ConfigError (no such place)."""
        return read_record_history(self.reader, group_id=group_id, topic=topic, partition=partition, offset=offset)

    def known_offsets(self, group_id: str) -> KnownOffsets:
        """Return ``describe_offsets``, where topics that cannot be asked are no error."""
        group = self.reader.group(group_id)
        ends, fault = self._known_ends(group)
        return KnownOffsets(offsets_of(group, ends), fault)

    def _known_ends(self, group: GroupState) -> tuple[Mapping[str, Mapping[int, LogEnds]], str]:
        """Return the log ends of a group's topics, and why they are not known."""
        try:
            return self._log_ends(group), ""
        except (ConfigError, TopicError) as fault:
            return {}, str(fault)

    def operator_settings(self, group_id: str) -> OperatorSettings:
        """Return the operators' settings that count now. Raises StateError: a file of theirs is broken."""
        configs = self.reader.dynamic_config_file(group_id).read()
        return OperatorSettings(pauses=self.pauses(group_id), dynamic_configs=configs)

    def _known_settings(self, group_id: str) -> OperatorSettings:
        """Return the operators' settings. Their files have no versions, so nothing is known of an earlier time."""
        if self.reader.is_past:
            return OperatorSettings()
        try:
            return self.operator_settings(group_id)
        except (StateError, OSError) as fault:
            return OperatorSettings(fault=str(fault))

    def pauses(self, group_id: str) -> Pauses:
        """Return the present pauses of the group."""
        self.reader.require(group_id)
        return self.reader.pause_file(group_id).read().at(wall_clock_ms())

    def idle_group(self, group_id: str) -> GroupState:
        """Return the group. Raises StateError if an engine runs it."""
        group = self.reader.group(group_id)
        if self._listing(group_id).phase is GroupPhase.STABLE:
            raise StateError(f"Share group '{group_id}' is not empty.")
        return group

    def ends(self, group_id: str) -> EndsOfTopics | None:
        """Return the place of the group's topics: the given one, else that of its engine."""
        engine = self.reader.engine(group_id)
        beat = engine.beat if engine is not None else Beat("")
        if self.kafka is not None or self.topic_table is not None:
            beat = beat._replace(kafka=None, table=self.topic_table)
        place = beat.kafka, beat.table
        if place not in self._asked:
            kafka = self.kafka
            if kafka is None and beat.kafka is not None:
                kafka = KafkaOptions.parse({"bootstrap.servers": beat.kafka})
            self._asked[place] = ends_of(kafka, beat.table, self.request_timeout_ms)
        return self._asked[place]

    def _log_ends(self, group: GroupState) -> dict[str, Mapping[int, LogEnds]]:
        ends = None if self.reader.is_past else self.ends(group.group_id)
        topics = {topic for topic, _ in group.partitions.values()}
        return {topic: ends.log_ends(topic) for topic in topics} if ends is not None else {}


_SHOWN = ("partition", "start_offset", "end_offset", "available", "acquired", "max_delivery_count")
"""The columns of a share-partition in a notebook."""


def _or_unknown(lag: int | None) -> int | str:
    return "-" if lag is None else lag


@dataclass(frozen=True, slots=True)
class ShareGroupAdmin:
    """The groups of the state in ``location`` (a directory). ``kafka``: connection options, ``topic_table``: an
    embedded topic log; without either, those of the engine count. Each call reads the tables anew; ``look`` reads them
    once for several questions. ``spark``: for changes that only Spark can make, as the state or a sink of the group is
    on an object store, is named by a catalog, or has a feature of Delta that only Spark's writer supports.

    Raises ConfigError, StateError (no state there, no such group), TopicError, TopicUnreachableError.
    """

    location: str
    kafka: KafkaOptions | None = None
    topic_table: str | None = None
    request_timeout_ms: int = 30_000
    spark: AnySpark = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        """Return the share-partitions of all groups as HTML, for notebooks."""
        look = self.look()
        rows = [
            (row.group_id, phase.value, row.topic, *(getattr(row, name) for name in _SHOWN), _or_unknown(row.lag))
            for listing in look.list_groups()
            for phase in (listing.phase,)
            for row in look.describe_offsets(listing.group_id)
        ]
        return html_table(f"Share groups in {self.location}", ("group", "state", "topic", *_SHOWN, "lag"), rows)

    def look(self, version: int | None = None) -> GroupsLook:
        """Return the groups at the latest, or an earlier ``version`` of the state log (``state_versions``)."""
        reader = StateReader.open(self.location, version)
        return GroupsLook(reader, self.kafka, self.topic_table, self.request_timeout_ms)

    def list_groups(self) -> list[GroupListing]:
        """Return all groups with state."""
        return self.look().list_groups()

    def describe_offsets(self, group_id: str) -> list[PartitionOffsets]:
        """Return the offsets by topic and partition."""
        return self.look().describe_offsets(group_id)

    def lag_ms(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the age in ms of the oldest unfinished record, by (topic, partition), for share-partitions with a lag.
        The age is the time since the record was written."""
        look = self.look()
        return look.lag_ms(look.describe_offsets(group_id))

    def describe_members(self, group_id: str) -> list[GroupMember]:
        """Return the engine, if one runs."""
        return self.look().describe_members(group_id)

    def describe_group(self, group_id: str) -> GroupListing:
        """Return the state of a group."""
        return self.look().describe_group(group_id)

    def record_history(self, group_id: str, topic: str, partition: int, offset: int) -> RecordHistory:
        """Return the history of one record, each failure with its error."""
        return self.look().record_history(group_id, topic, partition, offset)

    def pauses(self, group_id: str) -> Pauses:
        """Return the present pauses of the group."""
        return self.look().pauses(group_id)

    def plan_pause(
        self, group_id: str, topics: Mapping[str, Collection[int]] | None = None, until_ms: int | None = None
    ) -> Pauses:
        """Return what would be paused of the group; change nothing. ``topics``: with their partitions, none for all of
        them; None: the whole group. ``until_ms`` (milliseconds since the epoch): the end of the pause. Raises
        ConfigError for a topic or partition that the group does not have."""
        look = self.look()
        partitions_of(look.reader.group(group_id), topics)
        return look.pauses(group_id).paused(topics, until_ms)

    def plan_resume(self, group_id: str, topics: Mapping[str, Collection[int]] | None = None) -> Pauses:
        """Return what would still be paused of the group; change nothing. ``topics`` as in ``plan_pause``; None: all
        pauses. Raises ConfigError for a topic or partition that is neither paused nor the group's, and where a wider
        pause would still hold it."""
        look = self.look()
        found = look.pauses(group_id)
        partitions_of(look.reader.group(group_id), found.not_paused(topics))
        if (wider := found.still_holding(topics)) is not None:
            raise ConfigError(f"group {group_id!r}: {wider} is paused as a whole, resume that")
        return found.resumed(topics)

    def set_pauses(self, group_id: str, pauses: Pauses) -> None:
        """Set what ``plan_pause`` or ``plan_resume`` returned. A running engine applies it at its next micro-batch, the
        next engine from its start: it acquires nothing of what is paused, and finishes what it has."""
        reader = self.look().reader
        reader.require(group_id)
        reader.pause_file(group_id).write(pauses)

    def describe_configs(self, group_id: str) -> list[ConfigEntry]:
        """Return all settings: the values that count, and their source. The job's are those of the last engine."""
        reader = self.look().reader
        reader.require(group_id)
        return entries(reader.job_settings(group_id), reader.dynamic_config_file(group_id).read())

    def plan_configs(
        self, group_id: str, add: Mapping[str, object] | None = None, delete: Collection[str] = ()
    ) -> dict[str, str]:
        """Return the dynamic configs of the group, by key, with the values ``add`` and without the keys ``delete``;
        change nothing. Raises ConfigError for an unknown key, one that cannot change while an engine runs, one to be
        deleted that is not set, and a value that does not fit, by itself or to the others."""
        reader = self.look().reader
        reader.require(group_id)
        return planned_configs(reader, group_id, add or {}, delete)

    def alter_configs(
        self, group_id: str, add: Mapping[str, object] | None = None, delete: Collection[str] = ()
    ) -> dict[str, str]:
        """Set what ``plan_configs`` returns, with its errors. A running engine applies it at its next micro-batch, and
        so does the next one. Present locks, and delays of waiting records, stay as they are."""
        reader = self.look().reader
        reader.require(group_id)
        found = planned_configs(reader, group_id, add or {}, delete)
        reader.dynamic_config_file(group_id).write(found)
        return found

    def plan_reset(
        self, group_id: str, start: StartAt, number: int = 0, topics: Mapping[str, Collection[int]] | None = None
    ) -> list[NewOffset]:
        """Return where the share-partitions would begin; change nothing. ``number``: for OFFSET, SHIFT and TIME.
        ``topics``: with their partitions, none for all of them; None: all topics. Raises StateError too for a group
        that an engine runs, and ConfigError for a topic or partition that the group does not have."""
        look = self.look()
        chosen = partitions_of(look.idle_group(group_id), topics)
        ends = look.ends(group_id)
        if ends is None:
            raise ConfigError("where the topics are is not known: give the Kafka cluster or the topic table")
        topic_names = {topic for topic, _ in chosen}
        found = {topic: ends.log_ends(topic) for topic in topic_names}
        times = {topic: ends.offsets_at(topic, number) for topic in topic_names} if start is StartAt.TIME else {}
        return [new_offset(topic, state, start, number, found[topic], times.get(topic, {})) for topic, state in chosen]

    def reset_offsets(self, plan: Sequence[NewOffset]) -> None:
        """Reset offsets to what ``plan_reset`` returned, in one commit. Raises FencedError, StateError, SinkError."""
        if plan:
            reset(self.spark, self.location, plan[0].key.group_id, plan)

    def delete_offsets(self, group_id: str, topics: Collection[str]) -> None:
        """Delete the group's state of these topics. As in Kafka the group stays, empty, without any. Raises as
        ``plan_reset`` and ``reset_offsets``."""
        look = self.look()
        chosen = partitions_of(look.idle_group(group_id), dict.fromkeys(topics, ()))
        look.reader.empty_group_file(group_id).write()
        forget(self.spark, self.location, group_id, [state.key for _, state in chosen])

    def require_topics(self, group_id: str, topics: Collection[str]) -> None:
        """Raise what ``delete_offsets`` would raise before it changes anything."""
        partitions_of(self.look().idle_group(group_id), dict.fromkeys(topics, ()))

    def delete_group(self, group_id: str) -> None:
        """Delete all of its state, its members, and the files beside it: pauses, dynamic configs, the heartbeat. If
        that ends half-way, the group is still listed, and can be deleted again. Raises as ``delete_offsets``."""
        look = self.look()
        look.idle_group(group_id)
        look.reader.empty_group_file(group_id).write()
        delete(self.spark, self.location, group_id)
        look.reader.delete_beside(group_id)
