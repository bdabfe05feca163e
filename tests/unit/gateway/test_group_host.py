"""The engine of a group, begun by its first client and ended for a change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from share_spark import ShareGroupAdmin
from share_spark.delta.location import Location
from share_spark.gateway.client_queue import ClientQueue
from share_spark.gateway.group_host import GroupHost, GroupPlace
from share_spark.model.config import GroupConfig
from share_spark.model.errors import StateError
from tests.support.share_consumers import GROUP, TOPIC, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.below(tmp_path, partitions=1)
    place.produce(1, 10)
    return place


@pytest.fixture
def host(place: Place) -> Iterator[GroupHost]:
    config = GroupConfig.parse({"share.auto.offset.reset": "earliest"})
    where = GroupPlace(state=Location.parse(place.state), log=place.log, topics=place.topics, config=config)
    host = GroupHost(group_id=GROUP, place=where, clients=ClientQueue())
    yield host
    host.end()
    host.join()


def epoch(place: Place) -> int:
    """The number of engines and changes that the group has had."""
    return ShareGroupAdmin(place.state).look().reader.group(GROUP).writer_epoch


def wait_for_state(place: Place, writer_epoch: int, partitions: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            found = ShareGroupAdmin(place.state).look().reader.group(GROUP)
        except StateError:
            found = None
        if found is not None and (found.writer_epoch, len(found.partitions)) == (writer_epoch, partitions):
            return
        time.sleep(0.05)
    raise AssertionError(f"no engine of epoch {writer_epoch} with {partitions} share-partitions: {found}")


def delete_offsets(place: Place) -> None:
    ShareGroupAdmin(place.state).delete_offsets(GROUP, [TOPIC])


def test_no_engine_runs_before_a_client_comes(place: Place, host: GroupHost) -> None:
    assert host.is_idle
    assert host.without_engine(lambda: "changed") == "changed"
    assert host.is_idle
    host.subscribe([TOPIC])
    wait_for_state(place, 1, 1)


def test_after_a_change_the_next_client_begins_an_engine(place: Place, host: GroupHost) -> None:
    host.subscribe([TOPIC])
    wait_for_state(place, 1, 1)
    host.without_engine(lambda: delete_offsets(place))
    assert host.is_idle
    time.sleep(0.3)
    assert (epoch(place), ShareGroupAdmin(place.state).describe_offsets(GROUP)) == (2, [])
    host.subscribe([TOPIC])
    wait_for_state(place, 3, 1)


def test_a_client_that_comes_during_a_change_has_an_engine_after_it(place: Place, host: GroupHost) -> None:
    host.subscribe([TOPIC])
    wait_for_state(place, 1, 1)

    def change() -> None:
        host.subscribe([TOPIC])
        time.sleep(0.3)
        delete_offsets(place)

    host.without_engine(change)
    assert not host.is_idle
    wait_for_state(place, 3, 1)


def test_a_change_that_fails_leaves_the_group_to_the_next_engine(place: Place, host: GroupHost) -> None:
    host.subscribe([TOPIC])
    wait_for_state(place, 1, 1)

    def change() -> None:
        raise StateError("the disk is full")

    with pytest.raises(StateError, match="the disk is full"):
        host.without_engine(change)
    host.subscribe([TOPIC])
    wait_for_state(place, 2, 1)


def test_an_engine_that_was_replaced_is_followed_after_a_change(place: Place, host: GroupHost) -> None:
    host.subscribe([TOPIC])
    wait_for_state(place, 1, 1)
    thread = host._thread
    assert thread is not None
    other = GroupHost(group_id=GROUP, place=host.place, clients=ClientQueue())
    other.subscribe([TOPIC])
    wait_for_state(place, 2, 1)
    place.log.create_topic("other", 1)
    host.subscribe(["other"])
    thread.join(30)
    assert host.was_replaced
    assert not host.is_running
    other.end()
    other.join()
    host.without_engine(lambda: delete_offsets(place))
    host.subscribe([TOPIC])
    wait_for_state(place, 4, 1)


def test_a_group_goes_on_without_a_topic_that_was_deleted_and_begins_anew_with_one_of_its_name(
    place: Place, host: GroupHost
) -> None:
    place.log.create_topic("other", 1)
    former = place.log.describe("other").topic_id
    host.subscribe([TOPIC, "other"])
    wait_for_state(place, 1, 2)
    place.log.delete_topic("other")
    wait_for_state(place, 2, 2)  # its state stays: a broker may not know a topic for a moment
    assert former in stored_topics(place)
    place.log.create_topic("other", 1)
    host.subscribe(["other"])
    wait_for_state(place, 4, 2)  # the third has deleted the former state
    assert stored_topics(place) == {place.log.describe(name).topic_id for name in (TOPIC, "other")}
    assert host.is_running


def stored_topics(place: Place) -> set[str]:
    return {key.topic_id for key in ShareGroupAdmin(place.state).look().reader.group(GROUP).partitions}


def test_a_host_that_has_ended_begins_no_engine(place: Place, host: GroupHost) -> None:
    host.subscribe([TOPIC])
    wait_for_state(place, 1, 1)
    began, go_on = threading.Event(), threading.Event()

    def change() -> None:
        began.set()
        go_on.wait(30)

    changes = threading.Thread(target=host.without_engine, args=(change,))
    changes.start()
    assert began.wait(30)
    host.subscribe([TOPIC])
    host.end()
    go_on.set()
    changes.join(30)
    host.join()
    assert (host._thread, epoch(place)) == (None, 1)
