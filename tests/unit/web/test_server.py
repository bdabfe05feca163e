"""Pages over HTTP: who gets them, and what is said where there is none."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from share_spark.model.errors import ConfigError, StateError
from share_spark.model.hosts import is_loopback
from share_spark.web.server import COOKIE, PageServer, PageSource
from tests.support.group_details import details, run, state
from tests.support.web_pages import MadeUpGroups, served

TOKEN = "a b;c&d"
QUOTED = "a%20b%3Bc%26d"


@pytest.fixture
def groups() -> MadeUpGroups:
    orders = [state(0, 0, [run("Q", 0, 9)])]
    return MadeUpGroups({"billing": details({"orders": orders}), "a/b": details({"orders": orders}, group_id="a/b")})


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


def got(server: PageServer, path: str = "/", method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.headers.items()), answer.read().decode())
    finally:
        connection.close()


def test_the_groups_and_each_of_them(groups: MadeUpGroups) -> None:
    with served(groups) as server:
        overview = got(server)
        assert (overview.status, overview.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert 'href="/groups/a%2Fb"' in overview.text
        assert "<h2>a/b</h2>" in got(server, "/groups/a%2Fb").text
        assert got(server, "/", "HEAD")[::2] == (200, "")


def test_every_answer_forbids_to_load_to_frame_and_to_keep_it(groups: MadeUpGroups) -> None:
    with served(groups) as server:
        for path in ("/", "/groups/billing", "/nothing"):
            headers = got(server, path).headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
            assert "Python" not in headers["Server"]


def test_what_there_is_not(groups: MadeUpGroups) -> None:
    with served(groups) as server:
        assert got(server, "/groups/nobody").status == 404
        assert "Group &#x27;nobody&#x27; does not exist" in got(server, "/groups/nobody").text
        assert got(server, "/../etc/passwd").status == 404
        assert got(server, "/", "POST").status == 501


def test_a_state_that_cannot_be_read_is_said_and_may_be_read_later(groups: MadeUpGroups) -> None:
    with served(groups) as server:
        groups.fault = StateError("no share-group state at /lake/queues")
        answer = got(server)
        assert answer.status == 503
        assert "no share-group state at /lake/queues" in answer.text
        groups.fault = FileNotFoundError(2, "No such file", "part-0.parquet")
        assert "part-0.parquet" in got(server).text
        groups.fault = None
        assert got(server).status == 200


def test_a_group_that_cannot_be_read_hides_no_other(groups: MadeUpGroups) -> None:
    groups.groups["audit"] = StateError("micro-batch 17 is missing")
    with served(groups) as server:
        assert "micro-batch 17 is missing" in got(server).text
        assert "micro-batch 17 is missing" in got(server, "/groups/audit").text
        assert "billing" in got(server).text


def test_one_look_serves_all_who_ask_within_a_second(groups: MadeUpGroups) -> None:
    source = PageSource(groups, lambda: 1_000_000)
    for path in ("/", "/groups/billing", "/"):
        assert source.page(path)[0] == 200
    assert groups.looks == 1


@pytest.mark.parametrize("name", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""])
def test_without_a_token_only_names_of_this_machine_are_answered(groups: MadeUpGroups, name: str) -> None:
    """A page of another site could have its own name lead here."""
    with served(groups) as server:
        answer = got(server, Host=name)
        assert (answer.status, "billing" in answer.text) == (403, False)
        assert all(got(server, Host=own).status == 200 for own in ("localhost", "127.0.0.1:1", "[::1]:1"))


def test_with_a_token_nothing_is_said_to_those_who_lack_it(groups: MadeUpGroups) -> None:
    with served(groups, token=TOKEN) as server:
        for answer in (
            got(server),
            got(server, "/groups/billing"),
            got(server, "/?token=wrong"),
            got(server, Authorization="Bearer wrong"),
            got(server, Authorization=f"Basic {TOKEN}"),
            got(server, Cookie=f"{COOKIE}=wrong"),
            got(server, Cookie="=;=,[]"),
        ):
            assert (answer.status, "billing" in answer.text) == (401, False)


def test_a_token_is_given_once_and_kept_in_a_cookie(groups: MadeUpGroups) -> None:
    with served(groups, token=TOKEN) as server:
        answer = got(server, f"/groups/billing?token={QUOTED}")
        assert (answer.status, answer.headers["Location"]) == (303, "/groups/billing")
        assert got(server, f"//evil.example?token={QUOTED}").headers["Location"] == "/evil.example"
        record = got(server, f"/groups/billing/record?offset=3&token={QUOTED}")
        assert record.headers["Location"] == "/groups/billing/record?offset=3"
        cookie, *rules = answer.headers["Set-Cookie"].split("; ")
        assert rules == ["HttpOnly", "SameSite=Strict", "Path=/"]
        assert got(server, Cookie=cookie).status == 200
        assert got(server, Authorization=f"Bearer {TOKEN}").status == 200
        assert got(server, Host="queues.example", Cookie=cookie).status == 200


def test_who_is_not_on_this_machine_needs_a_token(groups: MadeUpGroups) -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3", "queues.example"):
        with pytest.raises(ConfigError, match="can be reached by others: give a --token"):
            PageServer(PageSource(groups, groups.clock), host, 0, None)
    with pytest.raises(ConfigError, match="--token is empty"):
        PageServer(PageSource(groups, groups.clock), "127.0.0.1", 0, " ")
    with served(groups, host="0.0.0.0", token=TOKEN) as server:
        assert got(server, Authorization=f"Bearer {TOKEN}").status == 200


def test_a_port_that_is_taken_is_one_line(groups: MadeUpGroups) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            PageServer(PageSource(groups, groups.clock), "127.0.0.1", port, None)


def test_which_hosts_are_this_machine() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "", "localhost.evil.example", "10.0.0.1"))


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_the_address_of_this_machine_in_its_newer_form(groups: MadeUpGroups) -> None:
    with served(groups, host="::1") as server:
        assert server.url == f"http://[::1]:{server.server_address[1]}/"
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            assert answer.status == 200
