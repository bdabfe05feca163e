"""Records of a group in rows of the state log, and readers that look for something else there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from share_spark import ShareGroupAdmin
from share_spark.admin.group_series import GroupSeries
from share_spark.coordinator.group import (
    GroupLimits,
    GroupRecord,
    GroupRequests,
    Heartbeat,
    ShareGroup,
    TopicMetadata,
    decide_together,
    new_group,
    replay,
    snapshot,
)
from share_spark.coordinator.group.records import RecordKey, RecordKind, Tombstone
from share_spark.state.group_rows import group_after
from share_spark.state.log_rows import LOG_SCHEMA, group_row
from tests.support.raw_members import RawMember, connection
from tests.support.share_consumers import GROUP, TOPIC, Place, consumer, work_off
from tests.unit.gateway.test_share_consumer import ACCEPT

TOPICS = {"orders": TopicMetadata("id of orders", 3), "käse": TopicMetadata("id of \u2028", 1)}


def beats(*requests: tuple[str, int, tuple[str, ...]]) -> tuple[Heartbeat, ...]:
    return tuple(
        Heartbeat(
            member_id=name,
            member_epoch=epoch,
            client_id='"quoted"',
            client_host="::1",
            rack_id=None if epoch else "rack",
            subscribed_topic_names=names or None,
        )
        for name, epoch, names in requests
    )


def rows_of(records: list[GroupRecord], *, is_snapshot: bool) -> pa.Table:
    found = group_row(records, is_snapshot=is_snapshot)
    return pa.Table.from_arrays(found.flatten(), schema=pa.schema(list(LOG_SCHEMA)[: len(found.type)]))


STEPS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["m1", "m2", "m\u00e4"]),
            st.sampled_from([0, 0, -1]),
            st.sampled_from([("orders",), ("käse", "orders"), ("no-such",)]),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda one: one[0],
    ),
    max_size=6,
)


@given(STEPS, st.integers(0, 6))
def test_rows_give_the_group_that_was_written(steps: list[list[tuple[str, int, tuple[str, ...]]]], cut: int) -> None:
    """A snapshot may come at any place; what was before it does not matter then."""
    group, read = new_group(GROUP), None
    for number, step in enumerate(steps):
        asked = GroupRequests(heartbeats=beats(*step), topics=TOPICS, limits=GroupLimits())
        records = list(decide_together(group, asked).records)
        if not records:
            continue
        group = replay(records, group) or group
        is_snapshot = number == cut
        written = list(snapshot(group)) if is_snapshot else records
        before: ShareGroup | None = None if is_snapshot else read
        read = group_after(before, rows_of(written, is_snapshot=is_snapshot), GROUP)
        assert read == group


def test_a_tombstone_is_a_record_without_a_value() -> None:
    key = RecordKey(RecordKind.MEMBER_METADATA, GROUP, "m1")
    rows = rows_of([Tombstone(key=key)], is_snapshot=False)
    assert rows.column("group_records").to_pylist() == [[{"kind": 10, "member_id": "m1", "record": None}]]


def test_readers_of_share_partitions_do_not_see_members(tmp_path: Path) -> None:
    place = Place.below(tmp_path, partitions=1)
    place.produce(1, 10)
    with place.gateway(history__retention="1d") as address, connection(address) as at:
        with consumer(address) as found:
            work_off(found, 10, lambda _: ACCEPT)
        for _ in range(5):
            member = RawMember("m1")
            member.join(at)
            member.leave(at)
    look = ShareGroupAdmin(place.state).look()
    kinds = [event.event for event in look.record_history(GROUP, TOPIC, 0, 4).events]
    assert kinds[:1] == ["acquired"]
    assert "accepted" in kinds
    series = GroupSeries(GROUP).read(look.reader)
    assert sum(one.finished for one in series) == 10
    assert [(one.start_offset, one.lag) for one in ShareGroupAdmin(place.state).describe_offsets(GROUP)] == [(10, 0)]
