"""Kafka's own integration tests of share groups, unmodified, with a gateway in front of their clusters.

Each test starts a cluster in its JVM. Its raw requests go through one class of Kafka's, ``IntegrationTestUtils``; ours
(``tests/support/judges``) is in front of it on the class path. It asks ``GatewaysOfJudges`` for a gateway, which runs
in this process, and sends it the requests of share groups. All others, and the Admin client of a test, go to the
cluster.
"""

from __future__ import annotations

import os
import re
import socketserver
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock
from xml.etree import ElementTree

from share_spark.coordinator.group.draft import Draft
from share_spark.coordinator.group.records import TopicState
from share_spark.delta.location import Location
from share_spark.gateway import group_host
from share_spark.gateway.gateway import Gateway
from share_spark.gateway.group_host import GroupPlace
from share_spark.gateway.nodes import LoneNode, Node
from share_spark.gateway.served_groups import AnyGroup
from share_spark.gateway.topic_catalog import TopicCatalog
from share_spark.gateway.topic_source import TopicSource
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.options import KafkaOptions
from share_spark.maintenance.heartbeat import wall_clock_ms
from share_spark.model.config import GroupConfig, field_of
from share_spark.spark.jars import BROKER_VERSION, broker_jar_paths, cached_set, require_java
from tests.support.broker import LOGGING, QUICK, die_with_parent

JUNIT_VERSION, COMPILER_VERSION = "1.13.1", "3.39.0"
"""Of JUnit's platform, with which Kafka's tests are built, and of Eclipse's compiler: a Java runtime has none."""

_TESTS_OF = ("kafka_2.13", "kafka-clients", "kafka-metadata", "kafka-server", "kafka-server-common")
_FOR_TESTS = ("kafka-test-common-internal-api", "kafka-test-common-runtime", "kafka-test-common-util")

_SOURCE = Path(__file__).with_name("judges") / "IntegrationTestUtils.java"

_TIMEOUT_S = 1_500


# -------------------------------------------------------------------------------------------------- jars


def judge_jar_paths() -> list[str]:
    """Kafka's tests with what they need beside a broker, JUnit, and a compiler. Raises JarsError."""
    told = f"the integration tests of Kafka {BROKER_VERSION}"
    return [str(path) for path in cached_set(f"judges-{BROKER_VERSION}", told, _ivy_module())]


def _ivy_module() -> str:
    """No jar brings others along: what they need is in the set of the broker."""
    wanted = [
        *(_dependency("org.apache.kafka", name, BROKER_VERSION, "test") for name in _TESTS_OF),
        *(_dependency("org.apache.kafka", name, BROKER_VERSION) for name in _FOR_TESTS),
        _dependency("org.junit.platform", "junit-platform-console-standalone", JUNIT_VERSION),
        _dependency("org.eclipse.jdt", "ecj", COMPILER_VERSION),
    ]
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="share_spark" module="jars"/>'
        f"<dependencies>{''.join(wanted)}</dependencies></ivy-module>"
    )


def _dependency(org: str, name: str, version: str, classifier: str | None = None) -> str:
    of_class = f'<artifact name="{name}" type="jar" ext="jar" m:classifier="{classifier}"/>' if classifier else ""
    return f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->master">{of_class}</dependency>'


def compiled(to: Path) -> Path:
    """Compile our class in front of Kafka's. Returns the directory for the class path."""
    jars = judge_jar_paths()
    (compiler,) = (path for path in jars if Path(path).name.startswith("ecj-"))
    options = ["-source", "17", "-target", "17", "-proc:none", "-nowarn", "-d", str(to)]
    class_path = os.pathsep.join([*jars, *broker_jar_paths()])
    subprocess.run([require_java(), "-jar", compiler, *options, "-cp", class_path, str(_SOURCE)], check=True)
    return to


# ---------------------------------------------------------------------------------------------- gateways


_write_state = Draft.write_state


def _write_state_and_count(draft: Draft, wanted: Mapping[str, TopicState]) -> None:
    """As a broker counts, since tests compare epochs: what it begins the state of is assigned in one more (R129)."""
    before = draft.group.topics
    _write_state(draft, wanted)
    if draft.group.topics != before:
        draft.write(replace(draft.group.metadata, epoch=draft.group.epoch + 1))


@contextmanager
def _as_tests_expect() -> Iterator[None]:
    """A fetch finds all that was produced before it: a gateway may know log ends of 80 ms ago, and give the rest to the
    next fetch. Epochs are counted as by a broker."""
    with (
        mock.patch.object(group_host, "_LOG_ENDS_AGE_MS", 0),
        mock.patch.object(Draft, "write_state", _write_state_and_count),
    ):
        yield


@contextmanager
def _gateway(servers: str, state: Path, broker_settings: Mapping[str, str]) -> Iterator[Address]:
    """A gateway with the settings of a broker, as far as it has such settings."""
    options = {name: value for name, value in broker_settings.items() if field_of(name) is not None}
    config = GroupConfig.parse({**options, "request.timeout.ms": 2_000})
    source = TopicSource.of_cluster(KafkaOptions.parse({"bootstrap.servers": servers}), config)
    place = GroupPlace(state=Location.parse(str(state)), log=source.log, kafka=source.kafka, config=config)
    catalog = TopicCatalog(source.log)
    alone = LoneNode(Node(1, Address("127.0.0.1", 0)))
    groups = AnyGroup(place=place, reader=source.reader, catalog=catalog, clock=wall_clock_ms, nodes=alone)
    gateway = Gateway.open(Address("127.0.0.1", 0), groups, catalog)
    try:
        yield gateway.address
    finally:
        gateway.close()


class GatewaysOfJudges:
    """A gateway for the cluster of the present test; that of the test before is closed. ``port``: where our class in
    the JVM asks for it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cluster: str | None = None
        self._address: Address | None = None
        self._open = ExitStack()
        self._lock = threading.Lock()
        gateways = self

        class _Asked(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"%d\n" % gateways.port_for(self.rfile.readline().decode()))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Asked)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def port_for(self, line: str) -> int:
        """The port of the gateway for the cluster of this line: its id, its servers, settings of its share groups."""
        cluster, servers, *settings = line.split()
        with self._lock:
            if cluster != self._cluster:
                self._open.close()
                state = self._directory / f"state-{cluster}"
                given = dict(one.split("=", 1) for one in settings)
                self._address = self._open.enter_context(_gateway(servers, state, given))
                self._cluster = cluster
            assert self._address is not None
            return self._address.port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._open.close()


# ------------------------------------------------------------------------------------------------- tests


class Judgement(NamedTuple):
    """How a test has ended. ``fault``: what it complains of, empty if it has passed."""

    test: str
    fault: str


def judgements(directory: Path, test_class: str) -> list[Judgement]:
    """Run all tests of a class. Those that run once for each kind of a broker's share state run with the first: a
    gateway has its own."""
    gateways = GatewaysOfJudges(directory)
    try:
        with _as_tests_expect():
            _run(directory, test_class, gateways.port)
    finally:
        gateways.close()
    return _reported(directory / "reports")


def _run(directory: Path, test_class: str, port: int) -> None:
    launcher = _launcher(directory, port)
    tests = [f"method:{test_class}#{name}()[0]" for name in _tests_of(launcher, test_class)]
    options = ["--reports-dir", str(directory / "reports"), "--details", "none"]
    command = [*die_with_parent(), *launcher, "execute", *(f"--select-iteration={one}" for one in tests), *options]
    with (directory / "output.txt").open("wb") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=directory, timeout=_TIMEOUT_S, check=False)


def _launcher(directory: Path, port: int) -> list[str]:
    (directory / "log4j2.properties").write_text(LOGGING.replace("warn", "error"))
    class_path = os.pathsep.join([str(compiled(directory / "classes")), *judge_jar_paths(), *broker_jar_paths()])
    settings = [f"-Dlog4j2.configurationFile={(directory / 'log4j2.properties').as_uri()}", f"-Djudges.port={port}"]
    java = [require_java(), "-Xmx1g", QUICK, "-XX:+UseSerialGC", *settings, "-cp", class_path]
    return [*java, "org.junit.platform.console.ConsoleLauncher"]


def _tests_of(launcher: list[str], test_class: str) -> list[str]:
    command = [*launcher, "discover", "--select-class", test_class, "--details", "verbose"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    return sorted(set(re.findall(r"/\[(?:test-template|method):(\w+)\(", said)))


def _reported(reports: Path) -> list[Judgement]:
    found = ElementTree.parse(reports / "TEST-junit-jupiter.xml").getroot()
    return [Judgement(re.sub(r"\W.*", "", case.attrib["name"]), _fault(case)) for case in found.iter("testcase")]


def _fault(case: ElementTree.Element) -> str:
    complaint = next((one for kind in ("failure", "error", "skipped") for one in case.iter(kind)), None)
    if complaint is None:
        return ""
    (line, *_) = re.findall(r"\(\w+RequestTest\.scala:\d+\)", complaint.text or "") or [""]
    return f"{complaint.get('message') or complaint.get('type') or complaint.tag} {line}"
