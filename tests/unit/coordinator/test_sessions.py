"""Share sessions, rule by rule (R147-R162)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from share_spark.coordinator.fault import Fault
from share_spark.coordinator.sessions import (
    NO_FETCH,
    FetchAnswer,
    FetchLimits,
    SessionStep,
    ShareAcknowledge,
    ShareFetch,
    ShareSession,
    acknowledge,
    answered,
    fetch,
    released_with,
)
from share_spark.model.ids import SharePartitionKey

A, B, C = (SharePartitionKey("G1", "orders", partition) for partition in range(3))
LIMITS = FetchLimits(500, 1, 2**20, 500)
MEMBER = "vQ2/U/tR+ZyXwVuTsRqPoN"


class Client:
    """One member and node; its session is put back after each request."""

    def __init__(self) -> None:
        self.session: ShareSession | None = None
        self.step = SessionStep(None)

    def fetch(
        self,
        epoch: int,
        *partitions: SharePartitionKey,
        connection: str = "c1",
        room: bool = True,
        **more: object,
    ) -> str | SessionStep:
        request = ShareFetch(member_id=MEMBER, session_epoch=epoch, partitions=partitions, **{"limits": LIMITS, **more})
        return self.taken(fetch(self.session, request, connection_id=connection, has_room=room))

    def acknowledge(self, epoch: int, *partitions: SharePartitionKey) -> str | SessionStep:
        request = ShareAcknowledge(member_id=MEMBER, session_epoch=epoch, acknowledged=partitions)
        return self.taken(acknowledge(self.session, request))

    def taken(self, found: SessionStep | Fault) -> str | SessionStep:
        if isinstance(found, Fault):
            return found.code.name
        self.session, self.step = found.session, found
        return found

    def listed(
        self, delivered: Sequence[SharePartitionKey] = (), failed: Sequence[SharePartitionKey] = ()
    ) -> tuple[SharePartitionKey, ...]:
        answer = answered(self.session, self.step, delivered, failed)
        assert isinstance(answer, FetchAnswer)
        self.session = answer.session
        return answer.listed


def opened(*partitions: SharePartitionKey) -> Client:
    """A client whose first fetch is answered, without records."""
    client = Client()
    client.fetch(0, *partitions)
    assert client.listed() == partitions
    return client


# ---------------------------------------------------------------------------------------------------- epochs


def test_r148_epoch_0_opens_a_session_with_what_it_names() -> None:
    client = Client()
    found = client.fetch(0, A, B)
    assert isinstance(found, SessionStep)
    assert (found.acknowledge, found.fetch, found.release) == ((), (A, B), ())
    assert found.session == ShareSession(connection_id="c1", epoch=1, partitions={A: True, B: True})


def test_r59_a_new_session_takes_the_place_of_the_old_one_and_releases_nothing() -> None:
    client = opened(A, B)
    found = client.fetch(0, C, connection="c2", room=False)
    assert isinstance(found, SessionStep)
    assert (found.fetch, found.release) == ((C,), ())


def test_r150_fetches_and_acknowledgements_share_one_counter() -> None:
    client = opened(A)
    assert isinstance(client.fetch(1), SessionStep)
    assert isinstance(client.acknowledge(2, A), SessionStep)
    assert isinstance(client.fetch(3), SessionStep)
    assert client.session is not None
    assert client.session.epoch == 4


def test_r150_after_the_last_epoch_comes_1() -> None:
    client = opened(A)
    assert client.session is not None
    client.session = replace(client.session, epoch=2**31 - 1)
    client.fetch(2**31 - 1)
    assert client.session.epoch == 1


@pytest.mark.parametrize("epoch", [2, -2])
def test_r151_r152_any_other_epoch_is_refused_and_nothing_is_done(epoch: int) -> None:
    client = opened(A)
    before = client.session
    assert client.fetch(epoch, B) == client.acknowledge(epoch, A) == "INVALID_SHARE_SESSION_EPOCH"
    assert client.session == before
    client.fetch(1)
    assert client.fetch(1) == "INVALID_SHARE_SESSION_EPOCH"


@pytest.mark.parametrize("epoch", [1, -1])
def test_r151_without_a_session_there_is_nothing_to_go_on_with(epoch: int) -> None:
    client = Client()
    assert client.fetch(epoch, A) == client.acknowledge(epoch, A) == "SHARE_SESSION_NOT_FOUND"


def test_r149_what_opens_a_session_cannot_acknowledge() -> None:
    client = opened(A)
    before = client.session
    assert client.fetch(0, A, acknowledged=(A,)) == "INVALID_REQUEST"
    assert client.acknowledge(0, A) == "INVALID_SHARE_SESSION_EPOCH"
    assert client.session == before


def test_r162_no_more_sessions_than_allowed() -> None:
    assert Client().fetch(0, A, room=False) == "SHARE_SESSION_LIMIT_REACHED"


@pytest.mark.parametrize("member_id", ["", "m" * 37])
def test_a_member_id_has_1_to_36_characters(member_id: str) -> None:
    session = opened(A).session
    fetched = fetch(
        session, ShareFetch(member_id=member_id, session_epoch=1, limits=LIMITS), connection_id="c1", has_room=True
    )
    acknowledged = acknowledge(session, ShareAcknowledge(member_id=member_id, session_epoch=1))
    for found in (fetched, acknowledged):
        assert isinstance(found, Fault)
        assert found.code.name == "INVALID_REQUEST"


def test_the_longest_member_id_is_fine() -> None:
    request = ShareFetch(member_id="m" * 36, session_epoch=0, limits=LIMITS, partitions=(A,))
    assert isinstance(fetch(None, request, connection_id="c1", has_room=True), SessionStep)


# ------------------------------------------------------------------------------------------------ partitions


def test_r153_what_is_not_named_stays_and_new_partitions_come_last() -> None:
    client = opened(A, B)
    found = client.fetch(1, C, A)
    assert isinstance(found, SessionStep)
    assert found.fetch == (A, B, C)


def test_r153_forgotten_partitions_leave() -> None:
    client = opened(A, B)
    found = client.fetch(1, forgotten=(A, C))
    assert isinstance(found, SessionStep)
    assert (found.fetch, found.release) == ((B,), ())


def test_r157_a_partition_that_leaves_is_acknowledged_once_more_and_listed() -> None:
    client = opened(A, B)
    found = client.fetch(1, A, acknowledged=(A,), forgotten=(A,))
    assert isinstance(found, SessionStep)
    assert (found.acknowledge, found.fetch) == ((A,), (B,))
    assert client.listed() == (A,)


def test_r156_a_partition_that_is_named_for_its_acknowledgements_belongs_to_the_session() -> None:
    client = opened(A)
    found = client.fetch(1, B, acknowledged=(B,))
    assert isinstance(found, SessionStep)
    assert (found.acknowledge, found.fetch) == ((B,), (A, B))


def test_an_acknowledgement_of_its_own_leaves_the_partitions_as_they_are() -> None:
    client = opened(A)
    found = client.acknowledge(1, B)
    assert isinstance(found, SessionStep)
    assert (found.acknowledge, found.fetch, found.release) == ((B,), (), ())
    assert client.listed() == (B,)
    assert client.session == ShareSession(connection_id="c1", epoch=2, partitions={A: False})


# ---------------------------------------------------------------------------------------------------- answers


def test_r153_the_first_answer_lists_all_and_later_ones_what_has_something() -> None:
    client = opened(A, B, C)
    client.fetch(1)
    assert client.listed(delivered=[B]) == (B,)
    client.fetch(2)
    assert client.listed() == ()


def test_r153_an_error_is_listed_until_it_has_gone() -> None:
    client = opened(A, B)
    for epoch, failed, listed in ((1, [A], (A,)), (2, [A], (A,)), (3, [], (A,)), (4, [], ())):
        client.fetch(epoch)
        assert client.listed(failed=failed) == listed


def test_r153_partitions_with_acknowledgements_are_listed() -> None:
    client = opened(A, B, C)
    client.fetch(1, B, C, acknowledged=(B, C))
    assert client.listed(delivered=[C]) == (C, B)


def test_what_is_not_of_the_session_does_not_come_into_it_by_its_outcome() -> None:
    client = opened(A, B)
    client.fetch(1, B, acknowledged=(B,), forgotten=(B,))
    assert client.listed(delivered=[C], failed=[B]) == (B,)
    assert client.session is not None
    assert client.session.partitions == {A: False}


def test_r154_partitions_that_delivered_go_to_the_end() -> None:
    client = opened(A, B, C)
    orders = []
    for epoch, delivered in ((1, [A]), (2, [B, C]), (3, [C]), (4, [])):
        client.fetch(epoch)
        orders.append(client.step.fetch)
        client.listed(delivered)
    assert orders == [(A, B, C), (B, C, A), (A, B, C), (A, B, C)]


def test_an_answer_after_the_session_has_gone_on_is_an_error() -> None:
    client = opened(A)
    client.fetch(1)
    step = client.step
    client.acknowledge(2, A)
    late = answered(client.session, step, [A], [])
    gone = answered(None, step, [A], [])
    for found in (late, gone):
        assert isinstance(found, Fault)
        assert found.code.name == "INVALID_SHARE_SESSION_EPOCH"


def test_an_answer_on_another_connection_than_the_session_is_an_error() -> None:
    client = opened(A)
    step = SessionStep(client.session, (), (A,))
    client.fetch(0, A, connection="c2")
    assert isinstance(answered(client.session, step, [A], []), Fault)


# ------------------------------------------------------------------------------------------------- the end


def test_r155_a_fetch_that_closes_acknowledges_and_then_releases_what_the_session_has() -> None:
    client = opened(A, B)
    found = client.fetch(-1, A, acknowledged=(A,))
    assert found == SessionStep(None, (A,), (), (A, B))
    assert client.listed() == (A,)
    assert client.fetch(1) == "SHARE_SESSION_NOT_FOUND"


def test_r155_an_acknowledgement_may_close_as_well() -> None:
    assert opened(A, B).acknowledge(-1, B) == SessionStep(None, (B,), (), (A, B))


def test_a_connection_that_breaks_ends_its_session_and_no_other() -> None:
    client = opened(A, B)
    assert client.session is not None
    assert released_with(client.session, "c1") == (A, B)
    client.fetch(0, A, connection="c2")
    assert released_with(client.session, "c1") is None


# ------------------------------------------------------------------------------------------------- renewals


def test_kip_1222_a_request_that_renews_fetches_nothing() -> None:
    client = opened(A, B)
    found = client.fetch(1, A, acknowledged=(A,), renews=True, limits=NO_FETCH)
    assert isinstance(found, SessionStep)
    assert (found.acknowledge, found.fetch) == ((A,), ())
    assert client.listed() == (A,)


@pytest.mark.parametrize("name", FetchLimits._fields)
def test_kip_1222_a_request_that_renews_has_no_limits(name: str) -> None:
    client = opened(A)
    limits = NO_FETCH._replace(**{name: 1})
    assert client.fetch(1, A, acknowledged=(A,), renews=True, limits=limits) == "INVALID_REQUEST"
    assert client.session is not None
    assert client.session.epoch == 1
