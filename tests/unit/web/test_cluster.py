"""A cluster's own share groups: requests and answers byte by byte, what is advised, and the page."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.describe_share_group_offsets.v1.response import DescribeShareGroupOffsetsResponseGroup
from kio.schema.errors import ErrorCode
from kio.schema.share_group_describe.v1.response import DescribedGroup

from share_spark import cli
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.share_groups import (
    Cluster,
    ClusterGroup,
    ClusterMember,
    ClusterPartition,
    ClusterShareGroups,
    advice,
    cluster_group,
)
from share_spark.model.errors import TopicError, TopicUnreachableError
from share_spark.web.cluster_page import ClusterPageSource, cluster_group_page, cluster_page, cluster_report
from tests.support.group_details import NOW_MS
from tests.support.page_elements import Elements

NASTY = "<script>alert('x')</script>\x1b"
ROOT = Path(__file__).parents[3]
SAID: list[bytes] = []


@contextmanager
def broker(*answers: bytes) -> Iterator[Address]:
    """Gives these answers on one connection; an empty one: it closes. What it is asked is in ``SAID``."""
    SAID.clear()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    SAID.append(connection.recv(4096))
                    connection.sendall(len(answer).to_bytes(4) + answer if answer else b"")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address(*server.getsockname())
        thread.join(10)


def groups_at(address: Address) -> list[ClusterGroup]:
    return ClusterShareGroups(KafkaOptions.parse({"bootstrap.servers": "b:1"}), 5_000)._groups(address)


CORRELATION = (4711).to_bytes(4)
HEAD = CORRELATION + (11).to_bytes(2) + b"share-spark"


def api(key: int, least: int, most: int) -> bytes:
    return b"".join(number.to_bytes(2) for number in (key, least, most))


# What a Kafka 4.2.0 answered; of its 75 APIs those that are needed.
VERSIONS = CORRELATION + bytes(2) + (3).to_bytes(4) + api(16, 0, 5) + api(77, 1, 1) + api(90, 0, 1) + bytes(4)
LISTED = bytes.fromhex("000012670000000000000002046f776e06736861726507537461626c650673686172650000")
DESCRIBED = bytes.fromhex(
    "00001267000000000002000000046f776e07537461626c6500000002000000020773696d706c650217486c44533557477554"
    "6f57726e5047473752736c6c410000000002046170700b2f3132372e302e302e3102076f726465727302b8f76f518a694634"
    "a8ba252eab3ddd56076f7264657273030000000000000001000000800000000000"
)
OFFSETS = bytes.fromhex(
    "00001267000000000002046f776e02076f7264657273b8f76f518a694634a8ba252eab3ddd56030000000000000000000000"
    "0d0000000000000000000000030000000000000001000000000000000c000000000000000000000000000000000000000000"
    "00"
)
NOT_BEGUN = bytes.fromhex(
    "00001267000000000002046f776e02076f72646572735257d82283124c3a993880447ef626b90300000000ffffffffffffff"
    "ff00000000ffffffffffffffff0000000000000001ffffffffffffffff00000000ffffffffffffffff000000000000000000"
    "00"
)


def test_requests_and_answers_are_what_the_broker_defines() -> None:
    with broker(VERSIONS, LISTED, DESCRIBED, OFFSETS) as address:
        (found,) = groups_at(address)
    assert found == ClusterGroup(
        group_id="own",
        state="Stable",
        assignor="simple",
        members=[member("HlDS5WGuToWrnPGG7RsllA", host="/127.0.0.1", orders=(0, 1))],
        partitions=[
            ClusterPartition(topic="orders", partition=0, start_offset=13, lag=3),
            ClusterPartition(topic="orders", partition=1, start_offset=12, lag=0),
        ],
    )
    assert [said[4:] for said in SAID] == [
        (18).to_bytes(2) + (2).to_bytes(2) + HEAD,
        (16).to_bytes(2) + (5).to_bytes(2) + HEAD + b"\0" + b"\x01\x02\x06share\0",
        (77).to_bytes(2) + (1).to_bytes(2) + HEAD + b"\0" + b"\x02\x04own\0\0",
        (90).to_bytes(2) + (1).to_bytes(2) + HEAD + b"\0" + b"\x02\x04own\0\0\0",
    ]
    assert [int.from_bytes(said[:4]) for said in SAID] == [len(said) - 4 for said in SAID]


def test_a_share_partition_that_has_not_begun_has_no_lag() -> None:
    with broker(VERSIONS, LISTED, DESCRIBED, NOT_BEGUN) as address:
        (found,) = groups_at(address)
    assert [(one.partition, one.start_offset, one.lag) for one in found.partitions] == [(0, -1, None), (1, -1, None)]


UNKNOWN_TAG = LISTED[:-1] + b"\x01\x09\x01x"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([b""], "it has closed the connection"),
        ([CORRELATION + b"\0"], "the answer is cut"),
        ([VERSIONS[:3]], "the answer is cut"),
        ([(4712).to_bytes(4) + VERSIONS[4:]], "the answer is not one to our request"),
        ([VERSIONS, UNKNOWN_TAG], "the answer cannot be read, KeyError: 'Unknown tagged field tag: 9'"),
        ([VERSIONS, LISTED[:9] + b"\x7f\xff" + LISTED[11:]], "the answer cannot be read, ValueError: 32767 is not"),
        ([VERSIONS, LISTED[:11] + b"\xff" * 11], "the answer cannot be read, ValueError: "),
        ([VERSIONS, LISTED.replace(b"own", b"\xff\xfe\xfd")], "the answer cannot be read, InvalidUnicode: "),
    ],
)
def test_what_is_no_answer_is_one_line(answers: list[bytes], reason: str) -> None:
    with broker(*answers) as address, pytest.raises(TopicUnreachableError) as fault:
        groups_at(address)
    assert str(fault.value).startswith(f"Kafka at {address} gave no answer ({reason}")
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("known", [api(90, 0, 1), api(16, 0, 5) + api(77, 0, 0) + api(90, 0, 1)])
def test_a_broker_that_knows_no_share_groups_is_refused_by_name(known: bytes) -> None:
    answer = CORRELATION + bytes(2) + (len(known) // 6).to_bytes(4) + known + bytes(4)
    with broker(answer) as address, pytest.raises(TopicError, match=f"Kafka at {address} cannot tell of share groups"):
        groups_at(address)


def test_a_broker_that_does_not_list_its_groups_is_refused_by_name() -> None:
    refused = LISTED[:9] + (15).to_bytes(2) + b"\x01\0"
    told = r"refuses to list its groups \(COORDINATOR_NOT_AVAILABLE\)"
    with broker(VERSIONS, refused) as address, pytest.raises(TopicError, match=told):
        groups_at(address)


def test_a_broker_without_groups_is_asked_for_none() -> None:
    with broker(VERSIONS, LISTED[:11] + b"\x01\0") as address:
        assert groups_at(address) == []


def test_other_commands_do_not_import_the_messages(tmp_path: Path) -> None:
    """They take 0.2 s."""
    code = (
        "import sys; from share_spark.cli import main; "
        "[main([*line, '--location', '/none']) for line in (['ui'], ['report', '--html', '/none/a.html'])]; "
        "main(['report', '--html', '/none/a.html']); import share_spark.web.server; sys.exit('kio' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True).returncode == 0


def member(name: str, *, host: str = "/10.0.0.7", **assigned: Sequence[int]) -> ClusterMember:
    return ClusterMember(member_id=name, client_id="app", host=host, epoch=2, subscribed=("orders",), assigned=assigned)


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


def described(error_code: ErrorCode) -> DescribedGroup:
    counts = {"group_epoch": 0, "assignment_epoch": 0}
    return DescribedGroup(
        error_code=error_code, group_id="own", group_state="Stable", assignor_name="", members=(), **counts
    )


def test_a_group_that_may_not_be_read_says_why() -> None:
    assert cluster_group(described(ErrorCode.group_authorization_failed), None).fault == "GROUP_AUTHORIZATION_FAILED"
    assert cluster_group(described(ErrorCode.group_id_not_found), None).fault == "GROUP_ID_NOT_FOUND"
    offsets = DescribeShareGroupOffsetsResponseGroup(
        group_id="own", topics=(), error_code=ErrorCode.topic_authorization_failed, error_message="no rights"
    )
    assert cluster_group(described(ErrorCode.none), offsets).fault == "no rights"


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
