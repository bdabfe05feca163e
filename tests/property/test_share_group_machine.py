"""A share group with clients that lose answers, against a plain model; and every recovery against the live state."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from share_spark.coordinator.group import (
    GroupLimits,
    Heartbeat,
    HeartbeatResponse,
    NewOffset,
    ShareGroup,
    TopicMetadata,
    alter_offsets,
    begin_deletion,
    delete_group,
    end_deletion,
    heartbeats,
    remove_members,
    replay,
    snapshot,
    topics_to_delete,
)
from share_spark.coordinator.group.records import GroupRecord
from share_spark.coordinator.messages import InitializeState
from tests.support.balance import check_balance, pairs
from tests.support.examples import examples
from tests.support.share_group import GROUP_ID, request

NAMES = ("orders", "audit", "clicks")
CLIENTS = tuple(f"m{number}" for number in range(6))
MAX_SIZE = 4
SUBSCRIPTIONS = st.sets(st.sampled_from(NAMES), min_size=1).map(lambda names: tuple(sorted(names)))


@dataclass
class Known:
    """What the model remembers of a member: its subscription, and the epochs that answers have named."""

    names: tuple[str, ...]
    epoch: int = 0
    previous: int = 0


@dataclass
class Client:
    """What a client has received: its epoch, 0 before it joins, and its assignment."""

    epoch: int = 0
    names: tuple[str, ...] = ("orders",)
    held: set[tuple[str, int]] = field(default_factory=set)


class GroupAgainstModel(RuleBasedStateMachine):
    """Clients that obey the protocol, and some that do not; topics that come, grow and go."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = GroupLimits(max_size=MAX_SIZE)
        self.group: ShareGroup | None = None
        self.log: list[GroupRecord] = []
        self.topics: dict[str, TopicMetadata] = {"orders": TopicMetadata("orders-0", 2)}
        self.made = 0
        self.members: dict[str, Known] = {}
        self.exists = False
        self.with_state: set[tuple[str, int]] = set()
        self.deleting: set[str] = set()
        self.clients = {name: Client() for name in CLIENTS}
        self.fresh = False  # whether the group has seen the topics as they are

    # ------------------------------------------------------------------------------------- the coordinator

    def commit(self, records: tuple[GroupRecord, ...], initialize: tuple[InitializeState, ...] = ()) -> None:
        epoch = self.group.epoch if self.group else 0
        self.log += records
        self.group = replay(records, self.group)
        for entry in initialize:
            assert self.group is not None
            assert epoch < entry.state_epoch <= self.group.epoch
            assert (entry.topic_id, entry.partition) not in self.with_state
            self.with_state.add((entry.topic_id, entry.partition))

    def ask(self, *requests: Heartbeat, lost: bool = False) -> list[HeartbeatResponse]:
        """One batch. Its answers are those of the model, and clients read them unless they are ``lost``."""
        decision = heartbeats(GROUP_ID, self.group, requests, self.topics, self.limits)
        expected = [self.expected(one, answer) for one, answer in zip(requests, decision.responses, strict=True)]
        assert [answer.error.name for answer in decision.responses] == expected
        self.fresh = self.fresh or "NONE" in expected
        self.commit(decision.records, decision.initialize)
        for one, answer in zip(requests, decision.responses, strict=True):
            if not lost:
                self.receive(self.clients[one.member_id], answer)
        return list(decision.responses)

    def receive(self, client: Client, answer: HeartbeatResponse) -> None:
        """Do as a client does: an error ends the membership as it knows it."""
        if answer.error.name != "NONE" or answer.member_epoch == -1:
            client.epoch, client.held = 0, set()
            return
        client.epoch = answer.member_epoch
        if answer.assignment is not None:
            client.held = pairs(answer.assignment)

    # ------------------------------------------------------------------------------------------- the model

    def expected(self, asked: Heartbeat, answer: HeartbeatResponse) -> str:
        """The error by the rules, and what the model remembers afterwards."""
        error = self.error_of(asked.member_id, asked.member_epoch, bool(asked.subscribed_topic_names))
        if error != "NONE":
            return error
        if asked.member_epoch == -1:
            del self.members[asked.member_id]
            return error
        self.exists = True
        known = self.members.setdefault(asked.member_id, Known(()))
        known.names = asked.subscribed_topic_names or known.names
        assert answer.member_epoch >= known.epoch
        if answer.member_epoch > known.epoch:
            known.previous, known.epoch = known.epoch, answer.member_epoch
        return error

    def error_of(self, member_id: str, epoch: int, with_names: bool) -> str:
        if epoch < -1 or (epoch == 0 and not with_names):
            return "INVALID_REQUEST"
        if not self.exists and epoch != 0:
            return "GROUP_ID_NOT_FOUND"
        known = self.members.get(member_id)
        if known is None:
            if epoch != -1 and len(self.members) >= MAX_SIZE:
                return "GROUP_MAX_SIZE_REACHED"
            return "NONE" if epoch == 0 else "UNKNOWN_MEMBER_ID"
        return "NONE" if epoch in (-1, 0, known.epoch, known.previous) else "FENCED_MEMBER_EPOCH"

    # ------------------------------------------------------------------------------------------- heartbeats

    @rule(who=st.sampled_from(CLIENTS), names=SUBSCRIPTIONS, lost=st.booleans())
    def join(self, who: str, names: tuple[str, ...], lost: bool) -> None:
        self.clients[who].names = names
        (answer,) = self.ask(request(who, 0, *names), lost=lost)
        assert answer.error.name != "NONE" or answer.assignment is not None

    @rule(who=st.sampled_from(CLIENTS), lost=st.booleans())
    def stay(self, who: str, lost: bool) -> None:
        client = self.clients[who]
        (answer,) = self.ask(request(who, client.epoch, *(() if client.epoch else client.names)), lost=lost)
        if answer.error.name == "NONE" and not lost:
            assert self.group is not None
            assert client.held == pairs(self.group.assignments[who].partitions)

    @rule(who=st.sampled_from(CLIENTS), names=SUBSCRIPTIONS)
    def subscribe(self, who: str, names: tuple[str, ...]) -> None:
        self.clients[who].names = names
        self.ask(request(who, self.clients[who].epoch, *names))

    @rule(who=st.sampled_from(CLIENTS), epoch=st.integers(-3, 12))
    def any_epoch(self, who: str, epoch: int) -> None:
        self.ask(request(who, epoch), lost=epoch != self.clients[who].epoch)

    @rule(who=st.sampled_from(CLIENTS), lost=st.booleans())
    def leave(self, who: str, lost: bool) -> None:
        self.ask(request(who, -1), lost=lost)

    @rule(whom=st.lists(st.sampled_from(CLIENTS), min_size=2, max_size=5, unique=True))
    def all_at_once(self, whom: list[str]) -> None:
        """A batch is one group epoch at most."""
        epoch = self.group.epoch if self.group else 0
        self.ask(*(request(who, self.clients[who].epoch, *self.clients[who].names) for who in whom))
        assert self.group is None or self.group.epoch <= epoch + 1

    @precondition(lambda self: self.members)
    @rule()
    def settle(self) -> None:
        """Without changes, each member soon has its target, whatever answers were lost, and nothing is written."""
        for _ in range(4):
            records = len(self.log)
            for who in list(self.members):
                client = self.clients[who]
                self.ask(request(who, client.epoch, *(() if client.epoch else self.members[who].names)))
        assert len(self.log) == records
        assert self.group is not None
        for who in self.members:
            assert self.group.assignments[who].partitions == self.group.targets[who].partitions
            assert self.clients[who].epoch == self.group.epoch
            assert self.clients[who].held == pairs(self.group.targets[who].partitions)

    # ----------------------------------------------------------------------------------- everything else

    @rule(name=st.sampled_from(NAMES), more=st.integers(0, 3))
    def topic_appears_or_grows(self, name: str, more: int) -> None:
        self.fresh = False
        if name in self.topics:
            topic_id, partitions = self.topics[name]
            self.topics[name] = TopicMetadata(topic_id, partitions + more)
        else:
            self.made += 1
            self.topics[name] = TopicMetadata(f"{name}-{self.made}", more)

    @rule(name=st.sampled_from(NAMES))
    def topic_goes(self, name: str) -> None:
        self.fresh = False
        self.topics.pop(name, None)

    @precondition(lambda self: self.exists and not self.members)
    @rule(names=SUBSCRIPTIONS)
    def offsets_begin_to_be_deleted(self, names: tuple[str, ...]) -> None:
        """Until the deletion ends, members that come get nothing of these topics."""
        assert self.group is not None
        self.fresh = False
        ids = [self.topics[name].topic_id for name in names if name in self.topics]
        self.commit(begin_deletion(self.group, ids).records)
        self.deleting |= {topic_id for topic_id, _ in self.with_state if topic_id in ids}

    @precondition(lambda self: self.exists)
    @rule(in_two_commits=st.booleans())
    def deletions_end(self, in_two_commits: bool) -> None:
        """Of topics that are gone, and of those above."""
        assert self.group is not None
        self.fresh = self.fresh and not self.deleting
        there = {topic.topic_id for topic in self.topics.values()}
        expected = {pair for pair in self.with_state if pair[0] not in there or pair[0] in self.deleting}
        chosen = topics_to_delete(self.group, there)
        if in_two_commits:
            self.commit(begin_deletion(self.group, chosen).records)
            assert self.group is not None
        decision = end_deletion(self.group, chosen)
        self.commit(decision.records)
        assert {(key.topic_id, key.partition) for key in decision.delete} == expected
        self.with_state -= expected
        self.deleting = set()

    @rule(whom=st.sets(st.sampled_from(CLIENTS)))
    def sessions_end(self, whom: set[str]) -> None:
        if self.group is None:
            return
        decision = remove_members(self.group, sorted(whom), self.topics)
        self.fresh = self.fresh or bool(whom & self.members.keys())
        self.commit(decision.records, decision.initialize)
        for who in whom:
            self.members.pop(who, None)

    @precondition(lambda self: not self.members)
    @rule(start=st.integers(0, 5))
    def offsets_are_altered(self, start: int) -> None:
        self.fresh = False
        offsets = [NewOffset(name, topic.topic_id, 0, start) for name, topic in self.topics.items() if topic.partitions]
        decision = alter_offsets(GROUP_ID, self.group, offsets)
        assert {offset.topic_id for offset in decision.refused} == {o.topic_id for o in offsets} & self.deleting
        begun = {(entry.topic_id, entry.partition) for entry in decision.initialize}
        self.with_state -= begun
        self.commit(decision.records, decision.initialize)
        self.exists = True

    @precondition(lambda self: self.exists and not self.members)
    @rule()
    def group_is_deleted(self) -> None:
        self.fresh = False
        assert self.group is not None
        decision = delete_group(self.group)
        assert {(key.topic_id, key.partition) for key in decision.delete} == self.with_state
        self.commit(decision.records)
        assert self.group is None
        self.exists, self.with_state, self.deleting = False, set(), set()

    @precondition(lambda self: self.group is not None)
    @rule()
    def log_is_compacted(self) -> None:
        assert self.group is not None
        self.log = list(snapshot(self.group))

    # ------------------------------------------------------------------------------------------- what holds

    @invariant()
    def a_replay_gives_the_live_state(self) -> None:
        assert replay(self.log) == self.group

    @invariant()
    def the_model_has_the_same_members(self) -> None:
        assert (self.group is not None) == self.exists
        if self.group is None:
            return
        assert set(self.group.members) == set(self.group.targets) == set(self.group.assignments) == set(self.members)
        for who, known in self.members.items():
            current = self.group.assignments[who]
            assert (current.member_epoch, current.previous_member_epoch) == (known.epoch, known.previous)
            assert self.group.members[who].subscribed_topic_names == known.names
            assert current.member_epoch <= self.group.assignment_epoch <= self.group.epoch

    @invariant()
    def record_15_lists_what_has_state(self) -> None:
        if self.group is not None:
            known = {**self.group.topics.initialized, **self.group.topics.deleting}
            assert {(topic_id, p) for topic_id, state in known.items() for p in state.partitions} == self.with_state

    @invariant()
    def after_a_heartbeat_everything_is_assigned_evenly(self) -> None:
        if not self.fresh or self.group is None or not self.members:
            return
        assert self.group.assignment_epoch == self.group.epoch
        counts = {t.topic_id: t.partitions for t in self.topics.values() if t.topic_id not in self.deleting}
        ids = {name: topic.topic_id for name, topic in self.topics.items() if topic.topic_id in counts}
        check_balance(
            {who: frozenset(ids[name] for name in known.names if name in ids) for who, known in self.members.items()},
            counts,
            {who: target.partitions for who, target in self.group.targets.items()},
        )


TestGroupAgainstModel = GroupAgainstModel.TestCase
TestGroupAgainstModel.settings = settings(max_examples=examples(400), stateful_step_count=50, deadline=None)
