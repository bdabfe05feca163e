"""Kafka's own integration tests of share groups judge the gateway: each passes, or stands here with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka_judges import judgements

_SWITCHED_OFF = "Share groups are switched off in its cluster; a gateway is there to serve them."
_ONE_NODE = "It asks a broker that does not lead the partition; a gateway is one node, which leads all."
_EPOCH_LEFT_OUT = (
    "It names the epoch that a broker gives a member before its assignment; a gateway assigns at once (R129), so the "
    "member has never had that epoch, and is fenced."
)

FAIL = {
    "ShareGroupHeartbeatRequestTest": {
        "testShareGroupHeartbeatIsInAccessibleWhenConfigsDisabled": _SWITCHED_OFF,
        "testShareGroupHeartbeatWithMultipleMembers": _EPOCH_LEFT_OUT,
        "testGroupCoordinatorChange": _EPOCH_LEFT_OUT,
    },
    "ShareGroupDescribeRequestTest": {
        "testShareGroupDescribeIsInAccessibleWhenConfigsDisabled": _SWITCHED_OFF,
    },
    "ShareFetchAcknowledgeRequestTest": {
        "testShareFetchRequestIsInAccessibleWhenConfigsDisabled": _SWITCHED_OFF,
        "testShareAcknowledgeRequestIsInAccessibleWhenConfigsDisabled": _SWITCHED_OFF,
        "testShareFetchRequestToNonLeaderReplica": _ONE_NODE,
    },
}
"""The tests that fail, by class, and why."""

TESTS = {
    "ShareGroupHeartbeatRequestTest": 9,
    "ShareGroupDescribeRequestTest": 2,
    "ShareFetchAcknowledgeRequestTest": 27,
}


@pytest.mark.long
@pytest.mark.parametrize("judge", FAIL)
def test_kafkas_own_tests_pass_on_a_gateway(judge: str, tmp_path: Path) -> None:
    found = judgements(tmp_path, f"kafka.server.{judge}")
    faults = {test: fault for test, fault in found if fault}
    unexpected = [f"{test}: {fault}" for test, fault in faults.items() if test not in FAIL[judge]]
    assert not unexpected, "\n".join(unexpected)
    pass_now = sorted(FAIL[judge].keys() - faults.keys())
    assert not pass_now, f"take these out of the list, they pass: {pass_now}"
    assert len(found) == TESTS[judge]
