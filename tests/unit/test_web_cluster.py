"""A cluster's own share groups: requests and answers byte by byte, what is advised, and the page."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from share_spark import cli
from share_spark.kafka.broker_connection import Address, connected
from share_spark.kafka.broker_login import BrokerLogin
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.share_group_requests import (
    API_VERSIONS,
    DESCRIBE_OFFSETS,
    LIST_GROUPS,
    ask,
    asked_descriptions,
    asked_groups,
    asked_offsets,
)
from share_spark.kafka.share_groups import (
    Cluster,
    ClusterGroup,
    ClusterMember,
    ClusterPartition,
    ClusterShareGroups,
    advice,
    cluster_group,
)
from share_spark.model.errors import TopicUnreachableError
from share_spark.web.cluster_page import cluster_group_page, cluster_page, cluster_report
from share_spark.web.cluster_source import ClusterPageSource
from tests.support.group_details import NOW_MS
from tests.support.page_elements import Elements

NASTY = "<script>alert('x')</script>\x1b"


def test_requests_are_what_the_broker_defines() -> None:
    assert asked_groups() == b"\x01\x02\x06share\0"
    assert asked_descriptions(["a", "bc"]) == b"\x03\x02a\x03bc\0\0"
    assert asked_offsets(["a"]) == b"\x02\x02a\0\0\0"
    assert asked_descriptions(["x" * 200])[:4] == b"\x02\xc9\x01x", "a length of two bytes"


@contextmanager
def broker(*answers: bytes) -> Iterator[Address]:
    """Gives these answers on one connection; an empty one: it closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    connection.recv(4096)
                    connection.sendall(len(answer).to_bytes(4) + answer if answer else b"")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address(*server.getsockname())
        thread.join(10)


CORRELATION = (4711).to_bytes(4)


def test_answers_are_read_as_the_broker_defines_them() -> None:
    listed = CORRELATION + b"\0" + bytes(4) + bytes(2) + b"\x02\x04own\x06share\x07Stable\x06share\0" + b"\0"
    partition = (3).to_bytes(4) + (40).to_bytes(8) + (1).to_bytes(4) + (7).to_bytes(8) + bytes(2) + b"\0\0"
    topic = b"\x02\x07orders" + bytes(16) + b"\x02" + partition + b"\0"
    offsets = CORRELATION + b"\0" + bytes(4) + b"\x02\x04own" + topic + bytes(2) + b"\0" + b"\x01\x05\x02hi" + b"\0"
    versions = CORRELATION + bytes(2) + b"\x02" + (90).to_bytes(2) + bytes(2) + (1).to_bytes(2) + b"\0"
    with broker(listed, offsets, versions) as address, connected(address, BrokerLogin(), 10) as connection:
        (group,) = ask(connection, LIST_GROUPS, asked_groups())["groups"]
        assert group == {"group_id": "own", "protocol": "share", "state": "Stable", "kind": "share"}
        (group,) = ask(connection, DESCRIBE_OFFSETS, asked_offsets(["own"]))["groups"]
        assert group["topics"][0]["partitions"][0]["lag"] == 7
        assert ask(connection, API_VERSIONS, b"")["versions"] == [{"key": 90, "least": 0, "most": 1}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"", "it has closed the connection"), (CORRELATION + b"\0", "the answer is cut")],
)
def test_what_is_no_answer_is_one_line(answer: bytes, reason: str) -> None:
    groups = ClusterShareGroups(KafkaOptions.parse({"bootstrap.servers": "b:1"}), 5_000)
    with broker(answer) as address, pytest.raises(TopicUnreachableError, match=f"gave no answer .{reason}"):
        groups._groups(address)


def member(name: str, **assigned: list[int]) -> ClusterMember:
    return ClusterMember(
        member_id=name, client_id="app", host="/10.0.0.7", epoch=2, subscribed=["orders"], assigned=assigned
    )


def group(*members: ClusterMember, **changes: Any) -> ClusterGroup:
    partitions = [ClusterPartition(topic="orders", partition=at, start_offset=40, lag=7) for at in range(2)]
    plain = {"group_id": "own", "state": "Stable", "assignor": "simple", "members": members, "partitions": partitions}
    return ClusterGroup(**{**plain, **changes})


def test_advice() -> None:
    assert advice(group(member("a", orders=[0]), member("b", orders=[1])), 2_000) == []
    assert advice(group(member("a", orders=[0, 1]), member("b", orders=[1]), member("c")), 2_000) == [
        "consumer c (app at 10.0.0.7) got no partition",
        "orders, partition 1 has 2 consumers: keep their max.poll.records below 1,000 (2,000 record locks ÷ 2), else "
        "some of them get nothing",
    ]
    assert advice(group(member("a", orders=[0]), member("b", orders=[0])), None) == []


def test_a_group_that_may_not_be_read_says_why() -> None:
    described = {"group_id": "own", "state": "Stable", "assignor": "", "members": [], "error": 30, "message": None}
    assert cluster_group(described, {"error": 0, "topics": ()}).fault == "error 30"
    described |= {"error": 0}
    assert cluster_group(described, {"error": 29, "message": "no rights", "topics": ()}).fault == "no rights"


def cluster(*groups: ClusterGroup) -> Cluster:
    return Cluster(servers="b:9092", groups=groups, locks=2_000)


def test_the_pages_of_a_cluster() -> None:
    found = group(member("a", orders=[0, 1]), member("b", orders=[1]))
    broken = group(group_id="audit", fault="no rights")
    for page in (cluster_report(cluster(found, broken), NOW_MS), cluster_group_page(cluster(found), found, NOW_MS)):
        text = Elements(page).text
        for said in (
            *("Kafka at b:9092", "own", "Stable", "Lag 14; assignor simple.", "orders: 0, 1", "10.0.0.7", "40"),
            "keep their max.poll.records below 1,000",
        ):
            assert said in text, said
    assert "no rights" in Elements(cluster_page(cluster(broken), NOW_MS)).text
    assert "This cluster has no share groups." in cluster_page(cluster(), NOW_MS)
    assert "<script" not in cluster_report(cluster(found), NOW_MS)


def test_of_many_share_partitions_those_behind_are_shown() -> None:
    many = [ClusterPartition(topic="orders", partition=at, start_offset=0, lag=at) for at in range(5_000)]
    page = cluster_group_page(cluster(), group(partitions=many), NOW_MS)
    assert "Those with the greatest lag; 4,000 more are not shown." in page
    assert len(page) < 700_000


def test_foreign_names_are_only_names() -> None:
    part = ClusterPartition(topic=NASTY, partition=0, start_offset=-1, lag=None, fault=NASTY)
    nasty = group(member(NASTY, **{NASTY: [0]}), group_id=NASTY, state=NASTY, assignor=NASTY, partitions=[part])
    for page in (cluster_report(cluster(nasty), NOW_MS), cluster_page(cluster(nasty), NOW_MS)):
        assert NASTY not in page
        assert page.count("<script") == page.count("</script>") <= 1
        assert NASTY.replace("\x1b", "\\x1b") in Elements(page).text


def test_pages_by_path() -> None:
    class Asked:
        def look(self) -> Cluster:
            return cluster(group(group_id="a/b"))

    source = ClusterPageSource(Asked(), lambda: NOW_MS)
    assert [source.page(path)[0] for path in ("/", "/groups/a%2Fb", "/groups/nobody", "/else")] == [200, 200, 404, 404]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--location (share groups of share_spark) or --bootstrap-server (a cluster's own) is missing"),
        (["--bootstrap-server", "b:1", "--dead-letter", "/x"], "--dead-letter takes a --location, too"),
        (["--bootstrap-server", "b:1", "--version", "3"], "--version takes a --location, too"),
        (["--bootstrap-server", "127.0.0.1:1", "--timeout", "300"], "Kafka at 127.0.0.1:1 gave no answer"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(["report", "--html", str(tmp_path / "a.html"), *arguments]) == cli.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []
