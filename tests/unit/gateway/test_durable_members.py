"""Members of a group outlive its gateway: they go on with their epochs and assignments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raw_members import RawMember, connection, stored
from tests.support.share_consumers import TOPIC, Place

UNKNOWN_MEMBER, FENCED_EPOCH = 25, 110


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place.below(tmp_path, partitions=4)
    place.produce(1, 4)
    return place


def test_a_member_goes_on_after_a_restart(place: Place) -> None:
    member = RawMember("m1")
    with place.gateway() as address, connection(address) as at:
        member.join(at)
        epoch, held = member.epoch, member.held
        assert (epoch, len(held)) == (1, 4), "the first answer has the assignment"
        assert (stored(place).epoch, set(stored(place).members)) == (1, {"m1"})
    for _ in range(3):
        with place.gateway() as address, connection(address) as at:
            assert (member.beat(at), member.epoch) == (0, epoch)
            assert member.beat(at, TOPIC) == 0
            assert (member.epoch, member.held) == (epoch, held)
            assert RawMember("m2", epoch=1).beat(at) == UNKNOWN_MEMBER
            assert RawMember("m1").beat(at, epoch=7) == FENCED_EPOCH
    assert stored(place).epoch == epoch
