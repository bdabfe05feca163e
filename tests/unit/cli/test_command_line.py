"""The command line without Spark: what is refused, and how; what a file and an argument mean together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from share_spark import ShareGroup, cli
from share_spark.cli.arguments import parse_job
from share_spark.cli.config_files import ConfigFile, _flat, read_config
from share_spark.cli.written_values import topics_named
from share_spark.kafka.options import KafkaOptions
from share_spark.model.config import SETTINGS
from share_spark.model.errors import EnvironmentFault, TopicUnreachableError

ROOT = Path(__file__).parents[3]
ENOUGH = ["run", "--group", "billing", "--topic", "orders", "--handler", "json:loads", "--state", "./state"]
TABLE = ["--topic-table", "./topics"]
KAFKA = ["--bootstrap-server", "127.0.0.1:1"]
TO_KAFKA = ["--to-kafka", "bills"]
ELSEWHERE = ["--output-bootstrap-server", "127.0.0.1:2"]
FOR_CLIENTS = ["run", "--group", "billing", "--topic", "orders", "--state", "./state", "--listen", "127.0.0.1:0"]


def of_batches(batch: pa.RecordBatch) -> None: ...


REFUSED = {
    "no command": ([], "required: run"),
    "no group": (["run"], "--group is missing"),
    "empty group": (["run", "--group", "  ", *ENOUGH[3:], *TABLE], "group id is empty"),
    "group that is no text": (["run", "--group", "a\udcff", *ENOUGH[3:], *TABLE], "group id 'a\\udcff' is no text"),
    "no topic": (["run", "--group", "billing"], "--topic is missing"),
    "empty topic": ([*ENOUGH, "--topic", "", *TABLE], "--topic is empty"),
    "no state": ([*ENOUGH[:-2], *TABLE], "--state is missing"),
    "no source": (ENOUGH, "choose one source"),
    "two sources": ([*ENOUGH, *TABLE, *KAFKA], "choose one source"),
    "unknown argument": ([*ENOUGH, *TABLE, "--colour", "red"], "unknown argument --colour"),
    "abbreviated": ([*ENOUGH, *TABLE, "--avail"], "unknown argument --avail"),
    "a stray word": ([*ENOUGH, *TABLE, "now"], "unknown argument"),
    "argument without value": ([*ENOUGH, "--topic-table"], "--topic-table: expected one argument"),
    "handler's form": ([*ENOUGH, *TABLE, "--handler", "bill"], "'bill' is not of the form module:function"),
    "handler's module": ([*ENOUGH, *TABLE, "--handler", "no_such:f"], "module no_such does not import"),
    "handler's function": ([*ENOUGH, *TABLE, "--handler", "json:f"], "module json has no function f"),
    "cost's form": ([*ENOUGH, *TABLE, "--cost", "tokens"], "cost function 'tokens' is not of the form module:function"),
    "cost's function": ([*ENOUGH, *TABLE, "--cost", "json:f"], "cost function json:f: module json has no function f"),
    "value-from's form": (
        [*ENOUGH, *TABLE, "--value-from", "avro"],
        "value_from 'avro' is not of the form module:funct",
    ),
    "value-from's module": (
        [*ENOUGH, *TABLE, "--value-from", "no_such:f"],
        "value_from no_such:f: module no_such does not import",
    ),
    "value-from's function": (
        [*ENOUGH, *TABLE, "--value-from", "json:f"],
        "value_from json:f: module json has no function f",
    ),
    "values without a handler": ([*FOR_CLIENTS, *TABLE, "--value-from", "json:loads"], "--value-from needs --handler"),
    "messages without a handler": ([*FOR_CLIENTS, *KAFKA, *TO_KAFKA], "--to-kafka needs --handler"),
    "two outputs": ([*ENOUGH, *KAFKA, *TO_KAFKA, "--to-delta", "./bills"], "choose one output: --to-delta or --to-ka"),
    "messages with columns": ([*ENOUGH, *KAFKA, *TO_KAFKA, "--output-schema", "id bigint"], "go together"),
    "messages of batches": (
        [*ENOUGH, *KAFKA, *TO_KAFKA, "--handler", f"{__name__}:of_batches"],
        f"handler {__name__}:of_batches takes batches: messages come from handlers of records",
    ),
    "messages to no topic": ([*ENOUGH, *KAFKA, "--to-kafka", " "], "--to-kafka is empty"),
    "messages to no cluster": ([*ENOUGH, *TABLE, *TO_KAFKA], "a table of topics has no cluster: give --output-bootstr"),
    "a cluster without messages": ([*ENOUGH, *KAFKA, *ELSEWHERE], "--output-bootstrap-server needs --to-kafka"),
    "output options without a cluster": (
        [*ENOUGH, *KAFKA, *TO_KAFKA, "--output-kafka-option", "client.id=x"],
        "--output-kafka-option needs --output-bootstrap-server",
    ),
    "unknown output option": (
        [*ENOUGH, *KAFKA, *TO_KAFKA, *ELSEWHERE, "--output-kafka-option", "sasl.pasword=x"],
        "unknown Kafka option 'sasl.pasword'",
    ),
    "handler's type": ([*ENOUGH, *TABLE, "--handler", "sys:path"], "is not a function: it is of type list"),
    "unknown setting": (
        [*ENOUGH, *TABLE, "--option", "share.delivery.count.limt=3"],
        "unknown setting 'share.delivery.count.limt' (did you mean 'share.delivery.count.limit'?)",
    ),
    "setting out of range": (
        [*ENOUGH, *TABLE, "--option", "share.delivery.count.limit=26"],
        "share.delivery.count.limit: 26 is outside 2..25",
    ),
    "setting of another type": (
        [*ENOUGH, *TABLE, "--option", "share.record.lock.duration.ms=long"],
        "share.record.lock.duration.ms: not a duration: 'long'",
    ),
    "setting without value": ([*ENOUGH, *TABLE, "--option", "state.refresh"], "--option takes key=value"),
    "start": ([*ENOUGH, *TABLE, "--starting", "somewhere"], "not an offset reset policy: 'somewhere'"),
    "trigger": ([*ENOUGH, *TABLE, "--trigger", "often"], "--trigger: not an interval: 'often'"),
    "two triggers": ([*ENOUGH, *TABLE, "--trigger", "5s", "--available-now"], "exclude each other"),
    "state's name": ([*ENOUGH, *TABLE, "--state", "a.b.c.d"], "'a.b.c.d' is neither a path"),
    "Kafka options without Kafka": ([*ENOUGH, *TABLE, "--kafka-option", "client.id=x"], "needs --bootstrap-server"),
    "unknown Kafka option": ([*ENOUGH, *KAFKA, "--kafka-option", "sasl.pasword=x"], "unknown Kafka option 'sasl.pas"),
    "no such file": ([*ENOUGH, *TABLE, "--config", "none.toml"], "--config none.toml: No such file"),
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    code = cli.main(list(arguments))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("share-spark: ")
    return code, captured.err


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[case]
    code, line = run(capsys, *arguments)
    assert code == cli.BAD_INPUT
    assert message in line
    assert list(tmp_path.iterdir()) == []


FILES = {
    "not TOML": ("group = ", "not TOML"),
    "unknown table": ("[jobs]\ngroup = 'a'", "unknown table or key 'jobs'"),
    "key outside a table": ("group = 'a'", "unknown table or key 'group'"),
    "unknown key": ("[job]\ngroop = 'a'", "unknown key 'groop' in [job] (did you mean 'group'?)"),
    "wrong type": ("[job]\ntopic = 'orders'", "topic in [job] must be of type list"),
    "unknown setting": ("[share_group]\nstate.refrish = '10s'", "unknown setting 'state.refrish' (did you mean"),
    "setting out of range": ("[share_group]\n'max.records.per.trigger' = 0", "max.records.per.trigger: 0 is outside"),
}


@pytest.mark.parametrize("case", FILES)
def test_bad_files_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str) -> None:
    text, message = FILES[case]
    file = tmp_path / "job.toml"
    file.write_text(text)
    code, line = run(capsys, *ENOUGH, *TABLE, "--config", str(file))
    assert code == cli.BAD_INPUT
    assert f"--config {file}: " in line
    assert message in line


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"share-spark {version('share_spark')}\n"


def test_to_look_no_times_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = run(capsys, "top", "--location", "./state", "--count", "0")
    assert code == cli.FAILED
    assert "--count: '0' is not a number from 1 up" in line


def test_secrets_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hunter2"
    sasl = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=me", f"sasl.password={secret}"]
    given = [*TO_KAFKA, *ELSEWHERE]
    given += [part for option in sasl for name in ("kafka", "output-kafka") for part in (f"--{name}-option", option)]
    assert secret not in repr(parse_job([*ENOUGH, *KAFKA, *given]))
    colon = [[name, f"sasl.password:{secret}"] for name in ("--kafka-option", "--output-kafka-option")]
    for wrong in (["--kafka-opt", sasl[-1]], *colon, [f"--sasl={secret}"]):
        code, line = run(capsys, *ENOUGH, *KAFKA, *given, *wrong)
        assert (code, secret in line) == (cli.BAD_INPUT, False)


def test_a_kafka_that_does_not_answer_costs_no_jvm(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = run(capsys, *ENOUGH, *KAFKA, "--option", "request.timeout.ms=1s", "--starting", "earliest")
    assert code == cli.FAILED, "to start it again may help"
    assert "127.0.0.1:1" in line


def test_the_cluster_for_messages_is_asked_without_spark() -> None:
    job = parse_job([*ENOUGH, *TABLE, *TO_KAFKA, *ELSEWHERE, "--option", "request.timeout.ms=1s"])
    with pytest.raises(TopicUnreachableError, match=r"127\.0\.0\.1:2"):
        job.ask_brokers()


def test_messages_by_file_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        "[job]\nto-kafka = 'filed'\noutput-bootstrap-server = 'other:9092'\nvalue-from = 'json:loads'\n"
        "[output_kafka]\nclient.id = 'me'\nlinger.ms = 5\n"
    )
    config = ["--config", str(file), "--output-kafka-option", "client.id=you"]
    job = parse_job([*ENOUGH, *KAFKA, *config, "--to-kafka", "said"])
    spec = job.share_group(cast("Any", None))._spec
    assert (spec.out_topic, spec.kafka) == ("said", KafkaOptions.parse({"bootstrap.servers": "127.0.0.1:1"}))
    assert spec.out_cluster is not None
    assert spec.out_cluster.values == {"bootstrap.servers": "other:9092", "client.id": "you", "linger.ms": "5"}
    assert spec.required_handler.values is not None
    assert spec.required_handler.values.made_from is json.loads


def test_messages_go_to_the_cluster_of_the_topics() -> None:
    job = parse_job([*ENOUGH, *KAFKA, *TO_KAFKA])
    assert job.share_group(cast("Any", None))._spec.out_cluster is job.kafka


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        "[job]\ngroup = 'filed'\ntopic = ['a', 'b']\nhandler = 'json:loads'\nstate = '/filed'\nstarting = 'earliest'\n"
        "bootstrap-server = 'broker:9092'\n[kafka]\nclient.id = 'me'\n"
        "[share_group]\nshare.delivery.count.limit = 7\nstate.refresh = '3s'\n"
    )
    job = parse_job(["run", "--config", str(file), "--group", "said", "--option", "share.delivery.count.limit=9"])
    assert (job.group, job.topics, job.state, job.starting) == ("said", ("a", "b"), "/filed", "earliest")
    assert job.kafka is not None
    assert job.kafka.values == {"bootstrap.servers": "broker:9092", "client.id": "me"}
    assert (job.config.max_delivery_count, job.config.state_refresh_ms) == (9, 3_000)
    assert str(job.config.offset_reset) == "earliest"


@pytest.mark.parametrize(
    ("text", "interval"), [("5 seconds", 5_000), ("1 minute", 60_000), ("250ms", 250), ("PT2S", 2_000)]
)
def test_intervals(text: str, interval: int) -> None:
    assert parse_job([*ENOUGH, *TABLE, "--trigger", text]).trigger == f"{interval} milliseconds"


@pytest.mark.parametrize(
    ("texts", "topics"),
    [
        (["a:0", "a:2,1", "b"], {"a": [0, 2, 1], "b": []}),
        (["a", "a:2"], {"a": []}),
        (["a:2", "a"], {"a": []}),
    ],
)
def test_topics_that_are_named_more_than_once(texts: list[str], topics: dict[str, list[int]]) -> None:
    assert topics_named(texts) == topics


def test_the_shipped_file_has_every_setting_at_its_default() -> None:
    """Two starts are left to the user: Kafka's default is named in a comment, so that it is not chosen by accident."""
    shipped = ROOT / "conf" / "share-spark.toml"
    said = tomllib.loads(shipped.read_text())["share_group"]
    assert set(_flat(said)) == {setting.key for setting in SETTINGS.values()} - {"share.auto.offset.reset"}
    assert read_config(str(shipped)) == ConfigFile(job={"available_now": False})
    assert '# share.auto.offset.reset = "latest"' in shipped.read_text()


def test_help_needs_no_spark() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "share_spark.cli", "run", "--help"], capture_output=True, text=True, check=True
    )
    assert "--handler MODULE:FUNCTION" in result.stdout


@pytest.mark.parametrize(
    ("line", "next_words"),
    [
        ("share-spark gro", {"groups"}),
        ("share-spark dead-letters re", {"redrive"}),
        ("share-spark ui --po", {"--port"}),
    ],
)
def test_a_shell_is_told_what_may_come_next(tmp_path: Path, line: str, next_words: set[str]) -> None:
    """In the protocol of argcomplete."""
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    out = tmp_path / "completions"
    environment = {**os.environ, **asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    subprocess.run([sys.executable, "-m", "share_spark.cli"], env=environment, check=False)
    assert set(out.read_text().split()) == next_words


def test_a_session_of_spark_connect_is_refused_by_name() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    group = ShareGroup("billing", spark=remote, state="./state").table("./topics").subscribe("orders").process(print)
    with pytest.raises(EnvironmentFault, match="needs a classic Spark session"):
        group.start()
