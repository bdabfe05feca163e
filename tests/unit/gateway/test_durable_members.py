"""Members of a group outlive its gateway: they go on with their epochs and assignments."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from share_spark import ShareGroupAdmin
from share_spark.audit.verify import verify
from share_spark.coordinator.group import ShareGroup
from share_spark.delta.location import Location
from share_spark.kafka.broker_connection import Address
from share_spark.maintenance.compaction import compact
from share_spark.maintenance.compaction_order import CompactionOrder
from share_spark.state import tables
from tests.support.asking import asking
from tests.support.older_release import older_release
from tests.support.raw_members import NOT_COORDINATOR, RawMember, connection, log_version, stored
from tests.support.share_consumers import GROUP, TOPIC, Place
from tests.twins.memory import ManualClock
from tests.unit.gateway.test_admin_requests import NON_EMPTY

UNKNOWN_MEMBER, FENCED_EPOCH = 25, 110
SESSION_MS = 45_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.below(tmp_path, partitions=4)
    place.produce(1, 4)
    return place


def joined(address: Address, *names: str) -> list[RawMember]:
    """Members that have joined one after the other, and know their epochs."""
    members = [RawMember(name) for name in names]
    with connection(address) as at:
        for member in members:
            member.join(at)
        for member in members:
            assert member.beat(at) == 0
    return members


def expect_as_before(address: Address, *members: RawMember) -> None:
    """Each goes on with its epoch, and is told the assignment that it had."""
    with connection(address) as at:
        for member in members:
            epoch, held = member.epoch, member.held
            assert (member.beat(at), member.epoch) == (0, epoch)
            assert member.beat(at, TOPIC) == 0
            assert (member.epoch, member.held) == (epoch, held)


def test_a_member_goes_on_after_a_restart(place: Place) -> None:
    with place.gateway() as address:
        (member,) = joined(address, "m1")
        assert (member.epoch, len(member.held)) == (1, 4)
    for _ in range(3):
        with place.gateway() as address, connection(address) as at:
            expect_as_before(address, member)
            assert RawMember("m2", epoch=1).beat(at) == UNKNOWN_MEMBER
            assert RawMember("m1").beat(at, epoch=7) == FENCED_EPOCH
    assert (stored(place).epoch, set(stored(place).members)) == (1, {"m1"})


def test_the_first_answer_has_the_assignment(place: Place) -> None:
    with place.gateway() as address, connection(address) as at:
        member = RawMember("m1")
        member.join(at)
        assert len(member.held) == 4


def test_what_changes_nothing_writes_nothing(place: Place) -> None:
    with place.gateway() as address, connection(address) as at:
        members = joined(address, "m1", "m2")
        version = log_version(place)
        for _ in range(5):
            assert [member.beat(at) for member in members] == [0, 0]
        assert RawMember("m3", epoch=3).beat(at) == UNKNOWN_MEMBER
        assert log_version(place) == version


def test_members_that_have_left_are_gone(place: Place) -> None:
    with place.gateway() as address, connection(address) as at:
        stays, leaves = joined(address, "m1", "m2")
        leaves.leave(at)
    with place.gateway() as address, connection(address) as at:
        assert leaves.beat(at, epoch=2) == UNKNOWN_MEMBER
        assert stays.beat(at) == 0
        assert (stays.epoch, len(stays.held)) == (3, 4)


def test_sessions_begin_anew_with_the_gateway(place: Place) -> None:
    clock = ManualClock()
    with place.gateway(clock=clock) as address:
        stays, vanishes = joined(address, "m1", "m2")
    clock.advance(10 * SESSION_MS)
    with place.gateway(clock=clock) as address, connection(address) as at:
        for _ in range(2):
            assert stays.beat(at) == 0
            assert set(stored(place).members) == {"m1", "m2"}
            clock.advance(SESSION_MS // 2)
        epoch = stays.epoch
        assert stays.beat(at) == 0
        assert (stays.epoch, len(stays.held)) == (epoch + 1, 4)
        assert set(stored(place).members) == {"m1"}
        assert vanishes.beat(at) == UNKNOWN_MEMBER


def test_another_gateway_takes_over_and_the_first_writes_no_more(place: Place) -> None:
    with place.gateway() as first:
        members = joined(first, "m1", "m2")
        with place.gateway(node_id=None) as second, connection(first) as at:
            expect_as_before(second, *members)
            group = stored(place)
            assert RawMember("late").beat(at, TOPIC, epoch=0, attempts=1) == NOT_COORDINATOR
            assert members[0].beat(at, epoch=-1, attempts=1) == NOT_COORDINATOR
            assert stored(place) == group
            expect_as_before(second, *members)


def test_each_group_has_its_own(place: Place) -> None:
    groups = ["billing", "shipping", "audit"]
    members = [RawMember("m1", group_id=name) for name in groups]
    with place.gateway() as address, connection(address) as at:
        for number, member in enumerate(members):
            for _ in range(number + 1):
                member.join(at)
                member.leave(at)
            member.join(at)
    assert [member.epoch for member in members] == [3, 5, 7]
    with place.gateway() as address:
        expect_as_before(address, *members)
    assert [stored(place, name).epoch for name in groups] == [3, 5, 7]


# ----------------------------------------------------------------------------------------------- the log


def test_each_segment_has_all_members(place: Place) -> None:
    clock = ManualClock()
    settings = {"share__coordinator__snapshot__update__records__per__snapshot": 3}
    with place.gateway(clock=clock, **settings) as address, connection(address) as at:
        (member,) = joined(address, "m1")
        for _ in range(5):
            joined(address, "m2")[0].leave(at)
        assert member.beat(at) == 0
        found = stored(place)
    assert segments_of(place) > 3
    assert (found.epoch, set(found.members)) == (11, {"m1"})
    with place.gateway(**settings) as address:
        expect_as_before(address, member)
    assert verify(None, place.state).agrees


def segments_of(place: Place) -> int:
    files = ShareGroupAdmin(place.state).look().reader.log.active.values()
    return len({file.values["segment"] for file in files})


def test_a_compaction_keeps_members(place: Place) -> None:
    with place.gateway() as address:
        members = joined(address, "m1", "m2")
    before = stored(place)
    order = CompactionOrder(state=Location.parse(place.state), idle_ms=0, history_retention_ms=0)
    report = compact(None, order)
    assert any("snapshot" in step.text for step in report.steps), report.steps
    assert (stored(place), segments_of(place)) == (before, 1)
    with place.gateway() as address:
        expect_as_before(address, *members)


def test_members_of_topics_that_are_missing_outlive_a_clean_up_of_the_log(place: Place) -> None:
    """The group has no share-partition; the notes of its commits are gone, so the rows have to suffice."""
    with place.gateway() as address, connection(address) as at:
        member = RawMember("m1")
        member.join(at, "no-such")
        assert (member.epoch, member.held) == (1, set())
    found = stored(place)
    forget_notes(place)
    assert stored(place) == found
    with place.gateway() as address, connection(address) as at:
        assert (member.beat(at), member.epoch) == (0, 1)


def forget_notes(place: Place) -> None:
    """Do as the clean-up of a log: what is in the checkpoint stays, the commits go."""
    log = Path(place.state, tables.LOG_TABLE, "_delta_log")
    table = DeltaTable(str(log.parent))
    table.create_checkpoint()
    for commit in log.glob("*.json"):
        if int(commit.stem) < table.version():
            commit.unlink()
    (last,) = log.glob("*.json")
    last.write_text("\n".join(line for line in last.read_text().splitlines() if "commitInfo" not in line))


def test_a_table_of_an_older_release_gets_the_column(place: Place) -> None:
    with pytest.MonkeyPatch.context() as older:
        older_release(older)
        tables.ensure_tables(None, Location.parse(place.state))
    with place.gateway() as address:
        members = joined(address, "m1")
    with place.gateway() as address:
        expect_as_before(address, *members)


# -------------------------------------------------------------------------------------------- changes


def test_a_group_that_is_deleted_has_no_members_left(place: Place) -> None:
    with place.gateway() as address:
        members = joined(address, "m1", "m2")
        assert members[0].epoch == 2
    ShareGroupAdmin(place.state).delete_group(GROUP)
    assert ShareGroupAdmin(place.state).list_groups() == []
    with place.gateway() as address, connection(address) as at:
        assert members[0].beat(at) == UNKNOWN_MEMBER
        members[0].join(at)
        assert members[0].epoch == 1


def test_a_group_without_share_partitions_is_deleted(place: Place) -> None:
    with place.gateway() as address, connection(address) as at:
        RawMember("m1").join(at, "no-such")
    ShareGroupAdmin(place.state).delete_group(GROUP)
    assert ShareGroupAdmin(place.state).list_groups() == []


def test_epochs_go_on_after_changes_of_offsets(place: Place) -> None:
    admin = ShareGroupAdmin(place.state)
    with place.gateway() as address, connection(address) as at:
        (member,) = joined(address, "m1")
        member.leave(at)
    before = stored(place)
    assert topics_of(before) == {TOPIC}
    admin.delete_offsets(GROUP, [TOPIC])
    after = stored(place)
    assert (after.epoch, after.members, topics_of(after)) == (2, {}, set())
    with place.gateway() as address, connection(address) as at:
        member.join(at)
        assert (member.epoch, len(member.held)) == (3, 4)
        member.leave(at)
    assert topics_of(stored(place)) == {TOPIC}


def topics_of(group: ShareGroup) -> set[str]:
    return {topic.name for topic in group.topics.initialized.values()}


def test_a_gateway_that_has_just_begun_deletes_no_group_whose_members_may_come_back(place: Place) -> None:
    with place.gateway() as address:
        members = joined(address, "m1")
    with ExitStack() as stack:
        address = stack.enter_context(place.gateway())
        tools = stack.enter_context(asking(address))
        assert (tools.state(), tools.listed()) == ("Stable", {GROUP: "Stable"})
        assert tools.delete() == NON_EMPTY
        with connection(address) as at:
            members[0].leave(at)
        assert tools.state() == "Empty"
        assert tools.delete() == 0
