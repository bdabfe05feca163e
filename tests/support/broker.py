"""A real Kafka 4.2.0 of one node, for tests and benchmarks: `with running_broker() as broker: ...`.

KRaft, share groups on, ports chosen by the system, data in a temporary directory that goes with it. The process is
ended on leaving the block, and with this one should that be killed.

    python -m tests.support.broker        in the foreground, until Ctrl-C
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from share_spark.spark.jars import broker_jar_paths, require_java

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 20

QUICK, BEST = "-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=4"
"""The compilers of the broker's JVM: half the start is the second one's, which pays after minutes."""

SETTINGS = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}

# One node holds the only copy of everything, its own topics too.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
# Records of tests have times of long ago, and are not to go while they are looked at.
log.retention.ms=-1

# Share groups, with limits wide enough that a test or a benchmark sets its own.
group.coordinator.rebalance.protocols=classic,consumer,share
group.share.delivery.count.limit=10
group.share.partition.max.record.locks=10000
group.share.min.record.lock.duration.ms=1000
group.share.record.lock.duration.ms=30000
group.share.max.record.lock.duration.ms=3600000
group.share.min.session.timeout.ms=6000
group.share.min.heartbeat.interval.ms=1000

# Tests delete records and wait for it; no test needs them on disk.
log.retention.check.interval.ms=5000
log.cleaner.backoff.ms=1000
log.initial.task.delay.ms=1000
file.delete.delay.ms=1000
"""

LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d{HH:mm:ss,SSS} %p %c{1}: %m%n
"""


class BrokerError(RuntimeError):
    """The broker did not start; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running broker."""

    bootstrap: str
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.directory / "broker.log").read_text(errors="replace")


@contextmanager
def running_broker(
    heap: str = "512m", more_settings: str = "", format_options: Sequence[str] = (), *, compiler: str = QUICK
) -> Iterator[Broker]:
    """Starts a broker, waits until it answers, and ends it. ``more_settings`` win over SETTINGS, with the same fields
    to fill in; ``format_options``: of Kafka's StorageTool; ``compiler``: QUICK, or BEST for what is measured. Raises
    BrokerError, JarsError, JavaError."""
    directory = Path(tempfile.mkdtemp(prefix="share_spark-broker-"))
    try:
        broker = _start(directory, [f"-Xmx{heap}", compiler], SETTINGS + more_settings, format_options)
        try:
            _wait_until_ready(broker)
            yield broker
        finally:
            stop(broker.process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# --------------------------------------------------------------------------------------------- starting


def _start(directory: Path, options: Sequence[str], given: str, format_options: Sequence[str]) -> Broker:
    """Writes the settings, formats the storage, and starts the process without waiting for it."""
    port, controller_port = free_ports(2)
    settings, data = directory / "server.properties", directory / "data"
    settings.write_text(given.format(port=port, controller_port=controller_port, data=data))
    (directory / "log4j2.properties").write_text(LOGGING)
    _format(directory, settings, format_options)
    return Broker(bootstrap=f"127.0.0.1:{port}", directory=directory, process=_launched(directory, options))


def _launched(directory: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    with (directory / "broker.log").open("ab") as log:
        return subprocess.Popen(
            [*die_with_parent(), *_java(directory, *options), "kafka.Kafka", str(directory / "server.properties")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A session of its own: Ctrl-C at the terminal is for us, and we end it in order.
            start_new_session=True,
        )


@contextmanager
def started_again(broker: Broker) -> Iterator[Broker]:
    """The same broker, which was stopped: another process with its data, at the same address."""
    again = replace(broker, process=_launched(broker.directory, ["-Xmx512m", QUICK]))
    try:
        _wait_until_ready(again)
        yield again
    finally:
        stop(again.process)


def _format(directory: Path, settings: Path, format_options: Sequence[str]) -> None:
    command = [*_java(directory, "-Xmx128m", QUICK), "kafka.tools.StorageTool", "format"]
    arguments = ["--cluster-id", _cluster_id(), "--config", str(settings), *format_options]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerError(f"the broker's storage could not be formatted: {done.stdout}{done.stderr}")


def kafka_tool(directory: Path, name: str) -> list[str]:
    """The command of one of Kafka's tools, without its arguments. ``directory``: for its log settings."""
    (directory / "log4j2.properties").write_text(LOGGING)
    return [*_java(directory, "-Xmx128m", QUICK), name]


def _java(directory: Path, *options: str) -> list[str]:
    classpath = os.pathsep.join(broker_jar_paths())
    log_settings = f"-Dlog4j2.configurationFile={(directory / 'log4j2.properties').as_uri()}"
    return [require_java(), *options, "-XX:+UseSerialGC", log_settings, "-cp", classpath]


def die_with_parent() -> list[str]:
    """Asks Linux to end the broker when this process is gone, however it went."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []


def _cluster_id() -> str:
    """Any id that does not begin with a dash, in Kafka's form of 22 characters."""
    return uuid4().hex[:22]


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


# --------------------------------------------------------------------------------- waiting and stopping


def _wait_until_ready(broker: Broker) -> None:
    """Returns when the broker lists its topics; a broker that ended or is silent raises BrokerError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(broker.bootstrap):
        if broker.process.poll() is not None:
            raise BrokerError(f"the broker ended at its start:\n{_last_lines(broker)}")
        if time.monotonic() > deadline:
            raise BrokerError(f"no broker after {START_TIMEOUT_S} s:\n{_last_lines(broker)}")
        time.sleep(0.2)


def _answers(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    with closing(socket.socket()) as probe:
        probe.settimeout(1)
        if probe.connect_ex((host, int(port))) != 0:
            return False
    try:
        return bool(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=5).brokers)
    except KafkaException:
        return False


def _last_lines(broker: Broker) -> str:
    return "\n".join(broker.log.splitlines()[-20:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks first; a broker that does not go in time is killed."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------------------------------- main


def main() -> int:
    """A broker in the foreground. SIGTERM stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with running_broker() as broker:
            print(f"Kafka is ready at {broker.bootstrap} (Ctrl-C stops it)", flush=True)
            code = broker.process.wait()
            print(f"the broker ended by itself with {code}:\n{_last_lines(broker)}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
