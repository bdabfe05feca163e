"""Share sessions against a plain model of Kafka's, with random requests; and the fairness of their order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from share_spark.coordinator.fault import Fault
from share_spark.coordinator.sessions import (
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
from tests.support.examples import examples

KEYS = tuple(SharePartitionKey("G1", "orders", partition) for partition in range(5))
LIMITS = FetchLimits(500, 1, 2**20, 500)
SOME = st.lists(st.sampled_from(KEYS), max_size=4, unique=True).map(tuple)
EPOCHS = st.integers(-2, 3) | st.just(2**31 - 1)


@dataclass
class Cached:
    """A session as Kafka keeps it: one object that changes."""

    connection: str
    epoch: int = 1
    partitions: list[SharePartitionKey] = field(default_factory=list)
    due: set[SharePartitionKey] = field(default_factory=set)


class SessionAgainstModel(RuleBasedStateMachine):
    """One member on one node, on connections that break."""

    def __init__(self) -> None:
        super().__init__()
        self.session: ShareSession | None = None
        self.cached: Cached | None = None

    def epoch(self, given: int | None) -> int:
        """The next epoch, unless another one is given."""
        return given if given is not None else self.cached.epoch if self.cached else 0

    @rule(named=SOME, forgotten=SOME, acknowledged=SOME, given=st.none() | EPOCHS, room=st.booleans(), data=st.data())
    def fetches(
        self,
        named: tuple[SharePartitionKey, ...],
        forgotten: tuple[SharePartitionKey, ...],
        acknowledged: tuple[SharePartitionKey, ...],
        given: int | None,
        room: bool,
        data: st.DataObject,
    ) -> None:
        epoch, connection = self.epoch(given), data.draw(st.sampled_from(["c1", "c2"]))
        acknowledged = tuple(key for key in acknowledged if key in named) if epoch else ()
        request = ShareFetch(
            member_id="m1",
            session_epoch=epoch,
            limits=LIMITS,
            partitions=named,
            forgotten=forgotten,
            acknowledged=acknowledged,
        )
        found = fetch(self.session, request, connection_id=connection, has_room=room)
        if epoch == 0 and (self.cached or room):
            self.cached = Cached(connection, 1, list(named), set(named))
        elif epoch == 0:
            assert self.error_of(found) == "SHARE_SESSION_LIMIT_REACHED"
            return
        elif self.refused_or_closed(found, epoch, acknowledged):
            return
        elif self.cached:
            new = [key for key in named if key not in self.cached.partitions]
            self.cached.partitions = [key for key in self.cached.partitions + new if key not in forgotten]
            self.cached.due = (self.cached.due | set(new)) - set(forgotten)
        assert isinstance(found, SessionStep)
        assert self.cached is not None
        assert (found.acknowledge, found.fetch, found.release) == (acknowledged, tuple(self.cached.partitions), ())
        self.session = found.session
        self.answer(found, data)

    @rule(acknowledged=SOME, given=st.none() | EPOCHS)
    def acknowledges(self, acknowledged: tuple[SharePartitionKey, ...], given: int | None) -> None:
        epoch = self.epoch(given)
        found = acknowledge(
            self.session, ShareAcknowledge(member_id="m1", session_epoch=epoch, acknowledged=acknowledged)
        )
        if epoch == 0:
            assert self.error_of(found) == "INVALID_SHARE_SESSION_EPOCH"
        elif not self.refused_or_closed(found, epoch, acknowledged):
            assert isinstance(found, SessionStep)
            assert (found.acknowledge, found.fetch, found.release) == (acknowledged, (), ())
            self.session = found.session
        self.agree()

    @rule(connection=st.sampled_from(["c1", "c2"]))
    def connection_breaks(self, connection: str) -> None:
        if self.session is None or self.cached is None:
            return
        released = released_with(self.session, connection)
        assert (released is not None) == (self.cached.connection == connection)
        if released is not None:
            assert list(released) == self.cached.partitions
            self.session = self.cached = None

    def refused_or_closed(
        self, found: SessionStep | Fault, epoch: int, acknowledged: tuple[SharePartitionKey, ...]
    ) -> bool:
        """Follow a request that is no open; False: it goes on with the session."""
        if self.cached is None:
            assert self.error_of(found) == "SHARE_SESSION_NOT_FOUND"
            return True
        if epoch == -1:
            assert found == SessionStep(None, acknowledged, (), tuple(self.cached.partitions))
            self.session = self.cached = None
            return True
        if epoch != self.cached.epoch:
            assert self.error_of(found) == "INVALID_SHARE_SESSION_EPOCH"
            return True
        self.cached.epoch += 1
        return False

    def answer(self, step: SessionStep, data: st.DataObject) -> None:
        """A fetch that is done: partitions deliver, fail, or have nothing."""
        assert self.cached is not None
        outcomes = {key: data.draw(st.sampled_from(["", "delivers", "fails"])) for key in step.fetch}
        delivered = [key for key in step.fetch if outcomes[key] == "delivers"]
        failed = [key for key in step.fetch if outcomes[key] == "fails"]
        found = answered(self.session, step, delivered, failed)
        assert isinstance(found, FetchAnswer)
        expected = set(step.acknowledge)
        for key in step.fetch:
            if outcomes[key] or key in self.cached.due:
                expected.add(key)
            self.cached.due.discard(key)
            if outcomes[key] == "fails":
                self.cached.due.add(key)
            if outcomes[key] == "delivers":
                self.cached.partitions.remove(key)
                self.cached.partitions.append(key)
        assert len(found.listed) == len(expected)
        assert set(found.listed) == expected
        self.session = found.session
        self.agree()

    def agree(self) -> None:
        if self.cached is None:
            assert self.session is None
            return
        assert self.session is not None
        assert (self.session.connection_id, self.session.epoch) == (self.cached.connection, self.cached.epoch)
        assert list(self.session.partitions.items()) == [(k, k in self.cached.due) for k in self.cached.partitions]

    @staticmethod
    def error_of(found: SessionStep | Fault) -> str:
        assert isinstance(found, Fault)
        return found.code.name


TestSessionAgainstModel = SessionAgainstModel.TestCase
TestSessionAgainstModel.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)


@settings(max_examples=examples(200), deadline=None)
@given(with_records=st.sets(st.sampled_from(KEYS), min_size=1), before=st.lists(st.sampled_from(KEYS), max_size=6))
def test_no_partition_starves_where_each_fetch_has_room_for_one(
    with_records: set[SharePartitionKey], before: list[SharePartitionKey]
) -> None:
    """After any history, as many fetches as there are partitions with records serve each of them once."""
    step = fetch(
        None,
        ShareFetch(member_id="m1", session_epoch=0, limits=LIMITS, partitions=KEYS),
        connection_id="c1",
        has_room=True,
    )
    served: list[SharePartitionKey] = []
    for wanted in [*({key} for key in before), *([with_records] * len(with_records))]:
        assert isinstance(step, SessionStep)
        first = next(key for key in step.fetch if key in wanted)
        served.append(first)
        done = answered(step.session, step, [first], [])
        assert isinstance(done, FetchAnswer)
        assert done.session is not None
        request = ShareFetch(member_id="m1", session_epoch=done.session.epoch, limits=LIMITS)
        step = fetch(done.session, request, connection_id="c1", has_room=True)
    assert set(served[len(before) :]) == with_records
