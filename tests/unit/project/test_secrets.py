"""Secrets are planted in every place that takes one, and searched for in everything that comes out without Spark."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from share_spark import KafkaTopics, ShareError, ShareGroup, cli
from share_spark.api.query import ShareGroupQuery, Trigger
from share_spark.cli.arguments import parse_job, parsed
from share_spark.cli.config_files import read_config
from share_spark.cli.dead_letter_commands import RedriveOrder
from share_spark.kafka.broker_admin import BrokerAdmin
from share_spark.kafka.broker_connection import Address
from share_spark.kafka.dead_letter_topic import KafkaDeadLetters
from share_spark.kafka.options import KafkaOptions
from share_spark.kafka.share_groups import ClusterShareGroups
from share_spark.kafka.topic_log import KafkaTopicLog
from share_spark.maintenance.heartbeat import EndKind

ROOT = Path(__file__).parents[3]
SECRET = "hunter2"
NOWHERE = "127.0.0.1:1"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nQ0VSVA==\n-----END CERTIFICATE-----"
KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{SECRET}";'
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
PLANTED: dict[str, dict[str, str]] = {
    "password": {**SASL, "sasl.username": "me", "sasl.password": SECRET},
    "login text": {**SASL, "sasl.jaas.config": LOGIN},
    "client secret": {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": f"http://{NOWHERE}",
    },
    "key": {"security.protocol": "SSL", "ssl.key.pem": KEY, "ssl.certificate.pem": CERTIFICATE},
    "password of a key": {"ssl.key.location": "/k", "ssl.certificate.location": "/c", "ssl.key.password": SECRET},
    "password of a key store": {"ssl.keystore.location": "/none.p12", "ssl.keystore.password": SECRET},
}
ENOUGH = ["run", "--group", "b", "--topic", "t", "--handler", "json:loads", "--state", "./s"]
KAFKA = ["--bootstrap-server", NOWHERE, "--starting", "earliest", "--option", "request.timeout.ms=1s"]


def kafka_options(given: dict[str, str], name: str = "--kafka-option") -> list[str]:
    return [part for key, value in given.items() for part in (name, f"{key}={value}")]


def redrive_order(given: dict[str, str]) -> RedriveOrder:
    where = ["redrive", "--table", "./dead", "--all", "--bootstrap-server", NOWHERE]
    return RedriveOrder.of(parsed(["dead-letters", *where, *kafka_options(given)]))


def texts_of(fault: BaseException) -> str:
    """The error as anybody may print it, with all that it is chained to."""
    chain, at = [], fault
    while at is not None:
        chain += [str(at), repr(at), *traceback.format_exception(at)]
        at = at.__cause__ or at.__context__  # type: ignore[assignment]
    return "\n".join(chain)


@pytest.mark.parametrize("kind", PLANTED)
def test_no_object_that_holds_options_shows_them(kind: str) -> None:
    given = PLANTED[kind]
    options = KafkaOptions.parse({"bootstrap.servers": NOWHERE, **given})
    session: Any = None
    group = ShareGroup("b", spark=session, state="./s").kafka(NOWHERE, **given).subscribe("t").process("json:loads")
    output = [
        "--to-kafka",
        "bills",
        "--output-bootstrap-server",
        NOWHERE,
        *kafka_options(given, "--output-kafka-option"),
    ]
    job = parse_job([*ENOUGH, *KAFKA, *kafka_options(given), *output])
    holders = [options, group, group._spec, job, job.share_group(session), KafkaDeadLetters("dead", options)]
    holders += [KafkaTopics(options), redrive_order(given)]
    holders += [ClusterShareGroups(options, 300)] if kind in ("password", "login text") else []
    for holder in holders:
        assert SECRET not in f"{holder} {holder!r} {holder!s}"
        assert NOWHERE in repr(holder)


def test_a_share_group_reads_well() -> None:
    session: Any = None
    group = ShareGroup("b", spark=session, state="./s").kafka(
        "k:1", sasl_mechanism="PLAIN", sasl_username="me", sasl_password=SECRET
    )
    assert repr(group.subscribe("t").option("state.refresh", "5s").trigger(availableNow=True)) == (
        "ShareGroup('b', state='./s', kafka=KafkaOptions(bootstrap.servers=k:1, sasl.mechanism=PLAIN, "
        "sasl.password=(hidden), sasl.username=(hidden)), subscribe=['t'], options={'state.refresh': '5000'}, "
        "trigger=Trigger(processing_time=None, available_now=True))"
    )


def test_a_file_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(f"[kafka]\nsasl.password = '{SECRET}'\n[output_kafka]\nsasl.password = '{SECRET}'\n")
    assert SECRET not in repr(read_config(str(file)))
    for broken in (
        f"[kafka]\nsasl.password = {SECRET}",
        f"[kafka]\nsasl.password '{SECRET}'",
        f"[kafka]\na='{SECRET}\n",
    ):
        file.write_text(broken)
        with pytest.raises(ShareError) as caught:
            read_config(str(file))
        assert SECRET not in texts_of(caught.value)


WRONG = {
    "before the command": ["--kafka-option", f"sasl.password={SECRET}", "run"],
    "beside a flag": ["-v", f"sasl.password={SECRET}"],
    "an option that there is not": [*ENOUGH, *KAFKA, f"--sasl.password:{SECRET}"],
    "a short option": [*ENOUGH, *KAFKA, f"-p{SECRET}"],
    "a stray value": [*ENOUGH, *KAFKA, SECRET],
    "a colon": [*ENOUGH, *KAFKA, "--kafka-option", f"sasl.password:{SECRET}=="],
    "a colon in a setting": [*ENOUGH, *KAFKA, "--option", f"sasl.password:{SECRET}=="],
    "a setting": [*ENOUGH, *KAFKA, "--option", f"sasl.password={SECRET}"],
    "a misspelt name": [*ENOUGH, *KAFKA, "--kafka-option", f"sasl.pasword={SECRET}"],
    "given twice": [*ENOUGH, *KAFKA, *kafka_options({"sasl.password": SECRET, "kafka.sasl.password": f"{SECRET}3"})],
    "no choice": [*ENOUGH, *KAFKA, "--kafka-option", f"sasl.mechanism={SECRET}"],
    "no login text": [*ENOUGH, *KAFKA, "--kafka-option", f"sasl.jaas.config={SECRET}"],
    "the other source": [*ENOUGH, "--topic-table", "./t", "--kafka-option", f"sasl.password={SECRET}"],
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_on_the_command_line_is_told_without_it(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, case: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert cli.main([*WRONG[case], "--debug"]) == cli.BAD_INPUT
    told = capsys.readouterr()
    assert "share-spark: " in told.err
    assert SECRET not in told.out + told.err + caplog.text


@pytest.mark.parametrize("kind", PLANTED)
def test_our_own_connections_to_a_broker_tell_none(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    options = KafkaOptions.parse({"bootstrap.servers": NOWHERE, **PLANTED[kind]})
    with pytest.raises(ShareError) as caught:  # some kinds are refused at once
        ClusterShareGroups(options, 300)._groups(Address("127.0.0.1", 1))
    assert SECRET not in texts_of(caught.value)
    report = ["report", "--html", "/none/a.html", "--bootstrap-server", NOWHERE, "--timeout", "300", "--debug"]
    assert cli.main([*report, *kafka_options(PLANTED[kind])]) == cli.FAILED
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err


@pytest.mark.parametrize("kind", PLANTED)
def test_a_broker_that_cannot_be_reached_is_told_without_them(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    options = KafkaOptions.parse({"bootstrap.servers": NOWHERE, **PLANTED[kind]})
    with caplog.at_level(logging.DEBUG):
        for ask in (
            lambda: BrokerAdmin(options, 300).describe("t"),
            lambda: KafkaTopicLog(options, request_timeout_ms=300).log_ends("t"),
        ):
            with pytest.raises(ShareError) as caught:
                ask()
            assert SECRET not in texts_of(caught.value)
    assert SECRET not in caplog.text


def test_a_run_that_fails_tells_none(tmp_path: Path) -> None:
    """The process itself: what librdkafka writes to its streams is searched too."""
    (tmp_path / "job.toml").write_text("[kafka]\n" + "".join(f"{k} = '{v}'\n" for k, v in PLANTED["password"].items()))
    command = [sys.executable, "-m", "share_spark.cli", *ENOUGH, *KAFKA, "--config", str(tmp_path / "job.toml"), "-v"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == cli.FAILED, "the broker may be there the next time"
    assert NOWHERE in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_the_text_of_a_client_is_cleaned() -> None:
    options = KafkaOptions.parse({"bootstrap.servers": NOWHERE, **PLANTED["login text"]})
    assert options.without_secrets(f"refused {LOGIN} and {SECRET}") == "refused (hidden) and (hidden)"


def test_the_error_that_a_heartbeat_keeps_has_none() -> None:
    options = KafkaOptions.parse({"bootstrap.servers": "b:1", **SASL, "sasl.username": "me", "sasl.password": SECRET})
    parts = dict.fromkeys(("spark", "engine", "store", "maintenance", "name", "checkpoint"))
    query = ShareGroupQuery(**parts, trigger=Trigger(), without_secrets=options.without_secrets)
    query._fault = RuntimeError(f"login with {SECRET} refused\nby the broker")
    end = query._end()
    assert (end.kind, end.error) == (EndKind.FAILED, "RuntimeError: login with (hidden) refused")
