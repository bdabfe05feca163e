"""Several gateways on one state: clients may come to any of them, and go on when one is gone."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from share_spark import ShareGroupAdmin
from share_spark.delta.location import Location
from share_spark.gateway import apis
from share_spark.gateway.access import EVERYTHING, Rules
from share_spark.gateway.door import Door
from share_spark.gateway.node_login import MECHANISM, credentials
from share_spark.gateway.node_register import SILENT_S, NodeRegister
from share_spark.gateway.nodes import Node, leader_of, owner_of
from share_spark.gateway.tls import Tls
from share_spark.gateway.users import User, Users, users_text
from share_spark.kafka.broker_connection import Address, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.topic_ids import uuid_of
from share_spark.model.errors import EnvironmentFault
from tests.support.asking import Asking, asking
from tests.support.certificates import Authority
from tests.support.share_consumers import TOPIC, GatewayProcess, Place, consumer, polled, work_off
from tests.unit.gateway.test_server import wait_for

ACCEPT = AcknowledgeType.ACCEPT


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.below(tmp_path)


def node(number: int) -> Node:
    return Node(number, Address("127.0.0.1", 9_000 + number), f"secret {number}")


def group_of(owner: int, of: int = 2) -> str:
    """A group that is owned by this one of the nodes 1, 2, ..."""
    nodes = [node(number) for number in range(1, of + 1)]
    return next(name for name in (f"group-{at}" for at in range(1_000)) if owner_of(name, nodes).node_id == owner)


# ------------------------------------------------------------------------------------------- who does what


@given(st.sets(st.integers(1, 100), min_size=2, max_size=8), st.text())
def test_only_what_a_node_has_changes_hands_when_it_goes(numbers: set[int], group: str) -> None:
    nodes = [node(number) for number in numbers]
    owner = owner_of(group, nodes)
    assert owner_of(group, nodes[::-1]) == owner
    for gone in nodes:
        left = [one for one in nodes if one != gone]
        assert (owner_of(group, left) == owner) is (gone != owner)


def test_groups_and_partitions_are_spread_over_the_nodes() -> None:
    nodes = [node(number) for number in (1, 2, 3)]
    owners = Counter(owner_of(f"group-{at}", nodes).node_id for at in range(3_000))
    leaders = Counter(leader_of("topic", at, nodes).node_id for at in range(3_000))
    assert min(*owners.values(), *leaders.values()) > 850


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def registers(place: Place, *numbers: int) -> tuple[Clock, list[NodeRegister]]:
    clock = Clock()
    found = [NodeRegister.at(Location.parse(place.state), node(number)) for number in numbers]
    for one in found:
        one.clock = clock
    return clock, found


def test_who_is_silent_counts_as_gone_and_is_told_so_when_it_comes_back(place: Place) -> None:
    clock, (one, two) = registers(place, 1, 2)
    for register in (one, two, one):
        register.beat()
        register.look()
    assert [each.node_id for each in one.live] == [each.node_id for each in two.live] == [1, 2]
    clock.now_s += SILENT_S - 0.1
    assert not one.beat()
    one.look()
    assert [each.node_id for each in one.live] == [1, 2]
    clock.now_s += 0.1
    one.look()
    assert [each.node_id for each in one.live] == [1]
    assert two.beat()
    one.look()
    assert [each.node_id for each in one.live] == [1, 2]


def test_a_file_that_is_being_written_is_as_before(place: Place) -> None:
    _, (one, two) = registers(place, 1, 2)
    two.beat()
    one.look()
    file = Path(place.state) / "_gateways" / "2"
    text = file.read_text()
    file.write_text(text[:20])
    one.look()
    assert [each.node_id for each in one.live] == [1, 2]
    file.unlink()
    one.look()
    assert [each.node_id for each in one.live] == [1]


def test_two_gateways_cannot_have_one_number(place: Place) -> None:
    _, (one,) = registers(place, 1)
    one.start(one.me.address, lambda _: None)
    try:
        with pytest.raises(
            EnvironmentFault, match=r"node id 1 is that of the gateway at 127.0.0.1:9001: choose another"
        ):
            NodeRegister.at(Location.parse(place.state), Node(1, Address("127.0.0.1", 1)))
    finally:
        one.close()
    assert NodeRegister.at(Location.parse(place.state), Node(1, Address("127.0.0.1", 1))).live


# ---------------------------------------------------------------------------------------------- by requests


def coordinator(tools: Asking, group: str) -> tuple[int, int]:
    (found,) = tools.ask(apis.FIND_COORDINATOR, key_type=0, coordinator_keys=(group,)).coordinators
    return found.node_id, found.port


def leaders_at(tools: Asking) -> dict[int, int]:
    asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    (topic,) = tools.ask(apis.METADATA, topics=None, **asked).topics
    return {one.partition_index: one.leader_id for one in topic.partitions}


def beat(tools: Asking, group: str, epoch: int = 0) -> Any:
    return tools.heartbeat(group, "one", TOPIC, epoch=epoch)


def test_all_gateways_say_the_same_of_who_is_there_and_owns_what(place: Place) -> None:
    with (
        place.gateway(node_id=1) as first,
        place.gateway(node_id=2) as second,
        asking(first) as one,
        asking(second) as two,
    ):
        wait_for(lambda: len(one.ask(apis.DESCRIBE_CLUSTER, **_CLUSTER).brokers) == 2)
        brokers = {(at.broker_id, at.port) for at in one.ask(apis.DESCRIBE_CLUSTER, **_CLUSTER).brokers}
        assert brokers == {(1, first.port), (2, second.port)}
        for number, address in ((1, first), (2, second)):
            group = group_of(number)
            assert coordinator(one, group) == coordinator(two, group) == (number, address.port)
            owner, other = (one, two) if number == 1 else (two, one)
            assert beat(other, group).error_code is ErrorCode.not_coordinator
            assert other.described(group).error_code == ErrorCode.not_coordinator
            assert other.delete(group) == ErrorCode.not_coordinator
            assert beat(owner, group).error_code is ErrorCode.none
            assert (group in owner.listed(), group in other.listed()) == (True, False)
            assert other.alter_configs(group, share_record_lock_duration_ms="40000") == (0, None)
        leaders = [leaders_at(tools) for tools in (one, two)]
        assert leaders[0] == leaders[1]


_CLUSTER = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}


def fetch(tools: Asking, group: str, topic_id: Any, epoch: int, *, accepted: tuple[int, int] | None = None) -> Any:
    return tools.share_fetch(group, "one", topic_id, epoch, accepted=accepted, max_records=5, acquire_mode=1)


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    assert answer.error_code is ErrorCode.none, answer
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


def test_a_fetch_at_a_gateway_that_does_not_own_the_group_is_passed_on(place: Place) -> None:
    place.produce(1, 80)
    group = group_of(2)
    with place.gateway(node_id=1) as first, place.gateway(node_id=2) as second:
        with asking(first) as elsewhere, asking(second) as owner:
            wait_for(lambda: coordinator(elsewhere, group)[0] == 2)
            topic_id = beat(owner, group).assignment.topic_partitions[0].topic_id
            assert acquired(fetch(elsewhere, group, topic_id, 0)) == [(0, 4, 1)]
            assert acquired(fetch(elsewhere, group, topic_id, 1, accepted=(0, 4))) == [(5, 9, 1)]
            # A member has a session at each node, also where both lead to the same gateway.
            assert acquired(fetch(owner, group, topic_id, 0)) == [(10, 14, 1)]
            assert acquired(fetch(elsewhere, group, topic_id, 2, accepted=(5, 9))) == [(15, 19, 1)]
            assert owner.offsets(group)[TOPIC, 0][0] == 10
        with asking(second) as owner:  # what was held ends with the connections, that of the other gateway too
            wait_for(lambda: acquired(fetch(owner, group, topic_id, 0))[:1] == [(10, 14, 2)])


def test_acknowledgements_are_taken_though_the_session_went_with_its_gateway(place: Place) -> None:
    place.produce(1, 80)
    group = group_of(2)
    with place.gateway(node_id=1) as first, asking(first) as elsewhere:
        with GatewayProcess(place, options=("--node-id", "2")) as second:
            wait_for(lambda: coordinator(elsewhere, group)[0] == 2)
            with asking(second.address) as owner:
                topic_id = beat(owner, group).assignment.topic_partitions[0].topic_id
            assert acquired(fetch(elsewhere, group, topic_id, 0)) == [(0, 4, 1)]
        began = time.monotonic()
        answer = fetch(elsewhere, group, topic_id, 1, accepted=(0, 4))
        assert answer.error_code is ErrorCode.share_session_not_found
        assert time.monotonic() - began < SILENT_S + 5
        assert elsewhere.offsets(group)[TOPIC, 0][0] == 5
        assert acquired(fetch(elsewhere, group, topic_id, 0)) == [(5, 9, 1)]


def test_only_gateways_of_the_register_pass_on_requests(place: Place) -> None:
    with place.gateway() as address:
        secret = json.loads((Path(place.state) / "_gateways" / "1").read_text())["secret"]
        for shown, error in (("guessed", ErrorCode.sasl_authentication_failed), (secret, ErrorCode.none)):
            with asking(address) as other:
                assert other.ask(apis.SASL_HANDSHAKE, mechanism=MECHANISM).error_code is ErrorCode.none
                said = credentials(shown, 7, EVERYTHING)
                assert other.ask(apis.SASL_AUTHENTICATE, auth_bytes=said).error_code is error


def test_gateways_know_each_other_by_their_certificates_and_tell_what_a_user_may_do(
    place: Place, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.certificate("127.0.0.1"))
    tls, group = Tls(certificate=certificate, key=key, client_ca=str(authority.ca)), group_of(2)
    # More than one may say to a gateway before the login.
    rules = Rules(groups=(group,), topics=(TOPIC, *(f"{TOPIC} of {day}" for day in range(2_000))))
    users = tmp_path / "users.toml"
    users.write_text(users_text(Users.none().with_user("uses", User.of(b"hunter2", rules))))
    place.log.create_topic("other", 1)
    place.produce(1, 400)
    door = Door.of(Address("127.0.0.1", 0), tls=tls, users=str(users))
    security = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca),
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "uses",
        "sasl.password": "hunter2",
    }
    login = BrokerLogin.of(KafkaOptions.parse({"bootstrap.servers": "b:1", **security}))
    with place.gateway(node_id=1, door=door) as first, place.gateway(node_id=2, door=door) as second:
        with connected(first, login, 30) as at, connected(second, login, 30) as there:
            elsewhere, owner = Asking(at), Asking(there)
            wait_for(lambda: coordinator(elsewhere, group)[0] == 2)
            topic_id = beat(owner, group).assignment.topic_partitions[0].topic_id
            assert acquired(fetch(elsewhere, group, topic_id, 0)) == [(0, 4, 1)]
            other_id = uuid_of(place.log.describe("other").topic_id)
            (topic,) = fetch(elsewhere, group, other_id, 0).responses
            assert topic.partitions[0].error_code is ErrorCode.topic_authorization_failed
            assert fetch(elsewhere, "another", topic_id, 0).error_code is _NO_RIGHT
            assert beat(owner, group, epoch=-1).error_code is ErrorCode.none
        with consumer(first, group=group, security=security) as found:
            work_off(found, 395, lambda _: ACCEPT)


_NO_RIGHT = ErrorCode.group_authorization_failed


# ------------------------------------------------------------------------------------- by share consumers


def test_a_consumer_may_be_pointed_at_any_gateway(place: Place) -> None:
    place.produce(1, 4_000)
    with place.gateway(node_id=1) as first, place.gateway(node_id=2) as second, asking(first) as tools:
        wait_for(lambda: coordinator(tools, group_of(2))[0] == 2)
        for number in (1, 2):
            said = Counter[tuple[int, int]]()
            for address in (first, second):
                with consumer(address, group=group_of(number)) as found:
                    said += work_off(found, 2_000, lambda _: ACCEPT)
            assert (len(said), max(said.values())) == (4_000, 1)


@pytest.fixture
def gateways(place: Place) -> Iterator[dict[int, GatewayProcess]]:
    with (
        GatewayProcess(place, options=("--node-id", "1")) as one,
        GatewayProcess(place, options=("--node-id", "2")) as two,
    ):
        yield {1: one, 2: two}


class Accepted:
    """The values that a consumer has accepted. ``unsure``: those of which it was told an error, or nothing in time:
    they count, or come again."""

    def __init__(self, found: ShareConsumer) -> None:
        self.found = found
        self.confirmed: Counter[int] = Counter()
        self.unsure: set[int] = set()

    @property
    def delivered(self) -> set[int]:
        return {*self.confirmed, *self.unsure}

    def go_on(self, until: Callable[[], bool], seconds: float = 90.0) -> float:
        """Accept until it is so. Return the longest time without a record that was confirmed."""
        began = last = time.monotonic()
        longest = 0.0
        while not until():
            assert time.monotonic() - began < seconds, f"{len(self.confirmed)} confirmed, {len(self.unsure)} unsure"
            messages = polled(self.found, 0.5)
            for message in messages:
                self.found.acknowledge(message, ACCEPT)
            refused = {at.partition for at, fault in self.found.commit_sync().items() if fault is not None}
            sure = [value_of(message) for message in messages if message.partition() not in refused]
            self.confirmed.update(sure)
            self.unsure.update(value_of(message) for message in messages if message.partition() in refused)
            if sure:
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest


def value_of(message: Message) -> int:
    return int(message.value() or b"-1")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_consumers_go_on_when_a_gateway_goes(
    place: Place, gateways: dict[int, GatewayProcess], how: signal.Signals
) -> None:
    place.produce(1, 20_000)
    group = group_of(2)

    def is_done() -> bool:
        return sum(one.start_offset for one in ShareGroupAdmin(place.state).describe_offsets(group)) == 20_000

    # What a client has sent to a process that is stopped it waits for, here as with a broker; by default for a minute.
    with consumer(gateways[1].address, group=group, security={"socket.timeout.ms": "4000"}) as found:
        accepted = Accepted(found)
        accepted.go_on(lambda: len(accepted.delivered) >= 4_000)
        gateways[2].process.send_signal(how)
        longest_s = accepted.go_on(lambda: len(accepted.delivered) >= 14_000)
        print(f"{how.name}: the longest wait was {longest_s:.1f} s")
        assert longest_s < 30
        if how is signal.SIGSTOP:
            gateways[2].process.send_signal(signal.SIGCONT)
        accepted.go_on(is_done)
    assert accepted.delivered == set(range(1, 20_001))
    assert max(accepted.confirmed.values()) == 1


def test_a_gateway_that_cannot_register_does_not_start(place: Place) -> None:
    Path(place.state).mkdir()
    (Path(place.state) / "_gateways").write_text("a file")
    with pytest.raises(EnvironmentFault, match="gateways cannot be registered in"), place.gateway():
        pass
