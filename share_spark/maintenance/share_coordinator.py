"""The share coordinator on Delta: Initialize, Read, Write, Delete and ReadSummary on the state log of a location.

The pure coordinator (``share_spark.coordinator``) decides the answers; this module reads its state from the log, and
writes its records to it. Nothing is kept between requests: engines write the same log, so each request reads the log up
to the last commit that counts.

A request that changes nothing claims nothing. Any other claims the group as an engine would, reads the state again,
and writes a snapshot of every share-partition, and of the group's members and epochs, in one append (R74); a deleted
one is not among them, and that is its tombstone (R91, O5). A group with a running engine is refused before that. If an
append fails, its outcome is unknown; every request may be repeated (R84, R93, R101).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from share_spark import coordinator
from share_spark.coordinator import STATE_PARTITIONS, CoordinatorShard, state_partition_of
from share_spark.coordinator.group import ShareGroup, end_deletion, replay, snapshot
from share_spark.coordinator.messages import InitializeState, ShareGroupStateRequest, ShareState, StateResult
from share_spark.delta.direct_append import DirectAppends
from share_spark.delta.location import Location
from share_spark.delta.table_log import TableLog, UnknownTableError
from share_spark.delta.table_maintenance import KeptTable
from share_spark.maintenance.heartbeat import ALIVE_MS, Beat, age_ms, has_journals, heartbeat_file
from share_spark.maintenance.idle_groups import LeftInJournals, claim_idle_sinks
from share_spark.maintenance.kip_takeover import after_write, durable_state, new_live_form
from share_spark.maintenance.retention import drop_segments
from share_spark.model.errors import ConfigError, ErrorCode, FencedError, StateError
from share_spark.model.ids import SharePartitionKey
from share_spark.model.records import UNINITIALIZED_START_OFFSET
from share_spark.partition import SharePartition, take_snapshot
from share_spark.spark import functions as F
from share_spark.spark.on_demand import AnySpark, session_of
from share_spark.state.commits import CommitListing, CommitsAsOf
from share_spark.state.fold import LogState
from share_spark.state.group_log import GroupLog
from share_spark.state.live_state import LiveState, rows_of
from share_spark.state.log_rows import claim_table, record_table
from share_spark.state.segments import LogTail
from share_spark.state.state_view import replace_status, state_bucket, status_app_id
from share_spark.state.tables import ensure_tables, log_table, state_table

if TYPE_CHECKING:
    from pyspark.sql import Column

GroupStates = dict[SharePartitionKey, tuple[str, SharePartition]]
"""(topic name, live state) by key."""


class DeltaShareCoordinator:
    """The share coordinator for the keys of some state partitions of one location, for groups without a running engine.

    ``buckets``: the state partitions (0 to 49, R71) that it owns, None: all; others get NOT_COORDINATOR (R72).
    ``topic_names``: topic id -> name, for topics that are new to a group; a topic that is not in it has its id in the
    log in place of the name. ``spark``: used only for what cannot be done with files. Raises
    ConfigError for a bucket that does not exist.
    """

    def __init__(
        self,
        spark: AnySpark,
        location: str | Location,
        *,
        buckets: Collection[int] | None = None,
        topic_names: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._place = Location.parse(location) if isinstance(location, str) else location
        self._buckets = frozenset(range(STATE_PARTITIONS) if buckets is None else buckets)
        self._topic_names = dict(topic_names or {})
        self._commits: CommitListing | None = None
        strange = sorted(self._buckets - set(range(STATE_PARTITIONS)))
        if strange or not self._buckets:
            raise ConfigError(f"unknown buckets {strange}: they are 0 to {STATE_PARTITIONS - 1}, and at least one")

    def load(self) -> None:
        """Open the location; until then every key of ours gets COORDINATOR_LOAD_IN_PROGRESS (R73).

        Raises StateError: not ours, of a newer version, out of reach.
        """
        ensure_tables(self._spark, self._place)
        self._commits = CommitListing.of(self._spark, log_table(self._place).directory(self._spark))

    def answer(self, request: ShareGroupStateRequest) -> tuple[StateResult, ...]:
        """Return one result per entry, in their order (R98); none without a group id (R97). Changes are committed.

        Raises FencedError if an engine runs the group or starts to, StateError if the log is damaged, cannot be
        written, or holds work for the group's next engine, SinkError if a sink of the group cannot be claimed. After
        each of them the request may be repeated.
        """
        if not request.group_id:
            return ()
        if self._commits is None:
            return self._answered(request, {}).results
        log = _GroupLog.of(self._spark, self._place, request.group_id, self._commits)
        seen = log.open()
        known = log.folded(seen)
        found = self._answered(request, known.partitions)
        if found.states == known.partitions:
            return found.results
        log.refuse_unless_idle()
        claim = log.claim_idle(seen)
        if claim.valid != seen.valid:
            known = log.folded(claim)
            found = self._answered(request, known.partitions)
        if found.states != known.partitions:
            forgotten = known.partitions.keys() - found.states.keys()
            log.write(claim, _left_with(found.states, known.group), forgotten)
        return found.results

    def delete_group(self, group_id: str) -> None:
        """Delete the state of all share-partitions of a group, and its members, in one commit. Call it after ``load``.

        Raises as ``answer``.
        """
        assert self._commits is not None, "delete_group before load"
        log = _GroupLog.of(self._spark, self._place, group_id, self._commits)
        seen = log.open()
        if log.folded(seen) == LogState({}):
            return
        log.refuse_unless_idle()
        claim = log.claim_idle(seen)
        log.write(claim, LogState({}), forgotten=log.folded(claim).partitions.keys())

    def _answered(self, request: ShareGroupStateRequest, states: GroupStates) -> _Answered:
        """Return the pure coordinator's result of each entry, one after the other, and the states after them."""
        after = dict(states)
        results = []
        for key, entry in zip(_keys(request), request.entries, strict=True):
            _, live = after.get(key, ("", None))
            result, now = self._after_entry(key, live, replace(request, entries=(entry,)))
            results.append(result)
            if now is None:
                after.pop(key, None)
            elif now is not live:
                after[key] = (self._topic_name(key.topic_id, states), now)
        return _Answered(tuple(results), after)

    def _after_entry(
        self, key: SharePartitionKey, live: SharePartition | None, request: ShareGroupStateRequest
    ) -> tuple[StateResult, SharePartition | None]:
        """Answer ``request``, which has one entry. Returns ``live`` itself if that changes nothing."""
        known = durable_state(live) if live is not None else None
        records, (result,) = coordinator.answer(self._shard(key, known), request)
        if not records:
            return result, live
        state = coordinator.replay(records, {key: known} if known is not None else {}).get(key)
        if state is None:
            return result, None
        if state.start_offset == UNINITIALIZED_START_OFFSET and state.state_batches:
            message = f"{key} has no start offset yet, so there is no place for state batches"
            return replace(result, error=ErrorCode.INVALID_REQUEST, message=message), live
        if live is None or isinstance(request.entries[0], InitializeState):
            return result, new_live_form(state, -1 if live is None else live.snapshot_epoch)
        return result, after_write(live, state)

    def _shard(self, key: SharePartitionKey, known: ShareState | None) -> CoordinatorShard:
        owner = state_partition_of(key)
        return CoordinatorShard(
            state_partition=owner if owner in self._buckets else min(self._buckets),
            loaded=self._commits is not None,
            states={key: known} if known is not None else {},
        )

    def _topic_name(self, topic_id: str, states: GroupStates) -> str:
        named = (topic for key, (topic, _) in states.items() if key.topic_id == topic_id)
        return next(named, None) or self._topic_names.get(topic_id, topic_id)


def _left_with(states: GroupStates, group: ShareGroup | None) -> LogState:
    """Return the state of a group that has only these share-partitions left."""
    if group is None:
        return LogState(states)
    left = {key.topic_id for key in states}
    gone = [topic_id for topic_id in group.topics.initialized if topic_id not in left]
    return LogState(states, replay(end_deletion(group, gone).records, group))


class _Answered(NamedTuple):
    results: tuple[StateResult, ...]
    states: GroupStates


def _keys(request: ShareGroupStateRequest) -> list[SharePartitionKey]:
    return [SharePartitionKey(request.group_id, entry.topic_id, entry.partition) for entry in request.entries]


@dataclass(slots=True, kw_only=True)
class _GroupLog(GroupLog):
    """One group's part of the log for one request: states as they were written."""

    @classmethod
    def of(cls, spark: AnySpark, location: Location, group_id: str, commits: CommitListing) -> _GroupLog:
        """Return the log at its latest version."""
        version = commits.latest_version()
        return cls(
            spark=spark,
            location=location,
            group_id=group_id,
            run_id=f"coordinator-{uuid.uuid4().hex[:12]}",
            commits=CommitsAsOf(commits.files, version),
            version=version,
        )

    def refuse_unless_idle(self) -> None:
        """Raise FencedError while an engine runs the group, StateError if the last one left work for the next."""
        heartbeat = heartbeat_file(self.spark, self.location, self.group_id)
        age = age_ms(heartbeat)
        beat = Beat.from_text(heartbeat.read())
        if age is not None and beat.is_running(age):
            raise FencedError(
                f"group {self.group_id!r} is run by an engine ({beat.member_id}, last heartbeat {age // 1_000} s ago); "
                f"stop it, and {ALIVE_MS // 1_000} s later its state can be changed"
            )
        if has_journals(self.spark, self.location, self.group_id):
            raise self._unfinished()

    def claim_idle(self, seen: LogTail) -> LogTail:
        """Claim the group, and the sinks to which a frozen engine might still write. Raises FencedError, SinkError, and
        StateError if an engine has left work since the group was judged to be idle."""
        claim = self.claim(seen)
        if not claim_idle_sinks(LeftInJournals(self), claim.epoch):
            raise self._unfinished()
        return claim

    def _unfinished(self) -> StateError:
        return StateError(
            f"the last engine of group {self.group_id!r} has left work that the next one finishes first; start one"
        )

    def write(self, claim: LogTail, state: LogState, forgotten: Collection[SharePartitionKey]) -> None:
        """Write ``state``, all that the group has from now on (R74). Call it after ``claim``.

        Raises FencedError, StateError. If nothing is left, this is a records commit without records, by a micro-batch
        before the first. The segments before it are dropped (R92): where log clean-up removes that commit's note, they
        would be the newest again.
        """
        states, is_left = state.partitions, state != LogState({})
        note = self.note("records", claim.last_segment, 0 if is_left else -1, claim.at_ms)
        kept = KeptTable(self.spark, self.table)
        with self.as_state_error():
            # Ask for a needed session before the commit: a failure must not leave it half done.
            status = self._status_appends() if forgotten else None
            if not is_left:
                kept.prepare_to_drop()
            self.append(lambda: record_table(_snapshots(state), note, None) if is_left else claim_table(note), note)
            if not is_left and not drop_segments(kept, self.group_id, note.segment):
                raise StateError(f"{self.table}: other writers were always first; ask again")
            if forgotten:
                left = LiveState(
                    states=states, writer_epoch=note.writer_epoch, batch_id=note.batch_id, at_ms=note.at_ms
                )
                self._hide(status, left, forgotten)

    def _status_appends(self) -> DirectAppends | None:
        """Return the appends to the status table; None where only Spark can change its rows."""
        place = state_table(self.location)
        try:
            appends = DirectAppends.to(self.spark, place.directory(self.spark), replaces=True, names_removed=False)
            appends.log.check_can_replace()
        except UnknownTableError as reason:
            session_of(self.spark, f"rows of {place} can be deleted by Spark only ({reason})")
            return None
        return appends

    def _hide(self, status: DirectAppends | None, left: LiveState, forgotten: Collection[SharePartitionKey]) -> None:
        """Remove their rows from the status table: an engine rewrites only buckets that have a share-partition.
        ``left``: the group's state."""
        place, buckets = state_table(self.location), {state_bucket(key) for key in forgotten}
        if status is not None:
            app_id = status_app_id(self.group_id, TableLog.open(self.opened().files).table_id)
            with suppress(NotImplementedError):
                replace_status(status, left, self.group_id, app_id, buckets)
                return
        session = session_of(self.spark, f"rows of {place} can be deleted by Spark only")
        for key in forgotten:
            place.delta_table(session).delete(_row_of(key))


def _row_of(key: SharePartitionKey) -> Column:
    """Return the condition for its row of the status table."""
    place = (F.col("group_id") == key.group_id) & (F.col("bucket") == state_bucket(key))
    return place & (F.col("topic_id") == key.topic_id) & (F.col("partition") == key.partition)


def _snapshots(state: LogState) -> pa.StructArray:
    records = [(topic, take_snapshot(one)) for topic, one in state.partitions.values()]
    return rows_of(records, () if state.group is None else snapshot(state.group), is_snapshot=True)
