"""A share group whose records are applied at once, with the log of them; and short forms of requests."""

from __future__ import annotations

from share_spark.coordinator.group import (
    GroupDecision,
    GroupLimits,
    Heartbeat,
    HeartbeatResponse,
    ShareGroup,
    TopicMetadata,
    evolve,
    heartbeats,
    replay,
    snapshot,
)
from share_spark.coordinator.group.records import GroupRecord

GROUP_ID = "G1"


def request(
    member_id: str,
    epoch: int,
    *names: str,
    rack_id: str | None = None,
    client_id: str = "client",
    client_host: str = "/127.0.0.1",
) -> Heartbeat:
    """A heartbeat; without names the subscription is not given."""
    return Heartbeat(
        member_id=member_id,
        member_epoch=epoch,
        client_id=client_id,
        client_host=client_host,
        rack_id=rack_id,
        subscribed_topic_names=names or None,
    )


class GroupInMemory:
    """One group, its records in order, and the topics that it sees: name to number of partitions, id = "id of name"."""

    def __init__(self, max_size: int = 200, **topics: int) -> None:
        self.limits = GroupLimits(max_size=max_size)
        self.topics = {name: TopicMetadata(f"id of {name}", partitions) for name, partitions in topics.items()}
        self.group: ShareGroup | None = None
        self.log: list[GroupRecord] = []
        self.last: GroupDecision | None = None

    def __call__(self, member_id: str, epoch: int, *names: str, **more: str) -> HeartbeatResponse:
        """Answer a heartbeat, and commit what it decided."""
        (response,) = self.batch(request(member_id, epoch, *names, **more))
        return response

    def batch(self, *requests: Heartbeat) -> tuple[HeartbeatResponse, ...]:
        """Answer heartbeats together, and commit what they decided."""
        self.last = heartbeats(GROUP_ID, self.group, requests, self.topics, self.limits)
        self.commit(self.last.records)
        return self.last.responses

    def commit(self, records: tuple[GroupRecord, ...]) -> None:
        """Apply records one by one; a replay of all, and one of a snapshot, must give the same."""
        for record in records:
            self.group = evolve(self.group, record)
        self.log += records
        assert replay(self.log) == self.group
        if self.group is not None:
            assert replay(snapshot(self.group)) == self.group

    def join(self, *member_ids: str, names: tuple[str, ...]) -> None:
        """Let members join, then have each its latest assignment."""
        for member_id in member_ids:
            self(member_id, 0, *names)
        self.settle()

    def settle(self) -> None:
        """One heartbeat of every member."""
        assert self.group is not None
        for member_id, known in list(self.group.assignments.items()):
            self(member_id, known.member_epoch)

    def held(self, member_id: str) -> dict[str, tuple[int, ...]]:
        """What the member was told, by topic name."""
        assert self.group is not None
        found = self.group.assignments[member_id].partitions
        return {topic_id.removeprefix("id of "): partitions for topic_id, partitions in found.items()}
